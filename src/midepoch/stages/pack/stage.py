"""The two stages that pack documents: whole documents in windows, or one stream of tokens cut at every pack's end.

Nothing that waits in a packer is part of a state. The cursor in a window is that of any group: the window's start, and
how many of its packs are delivered. The cursor in a stream has the same shape: the start of the next pack's first
document, and how many of its tokens are delivered.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from midepoch._common.hashing import I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.stages.counted import CountedItems
from midepoch.stages.flow import Context, Flow
from midepoch.stages.pack.documents import document_lengths
from midepoch.stages.pack.items import pack_form
from midepoch.stages.pack.spec import PackSpec
from midepoch.stages.pack.strategies import ASSIGN, Packs, Strategy, pack
from midepoch.stages.pack.stream import PlannedStream, is_ragged, read_stream
from midepoch.stages.pack.windows import PlannedWindows, read_windows
from midepoch.stages.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class PackStage(Stage):
    """What both stages share."""

    spec: PackSpec
    name = "pack"
    keeps_rows = False
    many_outputs: ClassVar[bool] = True
    needs_survey: ClassVar[bool] = True

    @property
    def length_column(self) -> str:
        return self.spec.column

    def document_lengths(self, inputs: Flow, context: Context) -> Iterator[tuple[I64, I64]]:
        return document_lengths(inputs, self.spec, context)

    def count(self, inputs: int) -> int | None:
        return None

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackWindows(PackStage):
    """Lay out whole documents, or pieces of long ones, inside windows of ``window`` rows."""

    strategy: Strategy
    window: int
    makes_windows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.strategy not in list(ASSIGN):
            choices = ", ".join(map(repr, (*ASSIGN, "concat")))
            raise ValueError(f"strategy is {self.strategy!r}; it can be {choices}.")
        if self.window < 1:
            raise ValueError(f"window is {self.window}; a window needs at least 1 document.")

    @property
    def group_size(self) -> int:
        return self.window

    def lay_out(self, lengths: I64) -> Packs:
        """Which documents of a window, by their lengths, share a pack."""
        return pack(lengths, length=self.spec.length, strategy=self.strategy, overlong=self.spec.overlong)

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        packs = read_windows(inputs, cursor, self.window, self.lay_out, self.spec, context)
        return Flow(single_items=packs, form=pack_form(inputs), ragged=self.spec.is_ragged)

    def counted(self, inputs: CountedItems, cursor: Cursor, context: Context) -> CountedItems:
        own_numbers = cursor[len(inputs.cursor(0)) :]
        return PlannedWindows(inputs, self.spec, self.lay_out, self.window, own_numbers, context)

    def describe(self) -> dict[str, Any] | None:
        return self.spec.describe() | {"strategy": self.strategy, "window": self.window}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackStream(PackStage):
    """Cut one stream of all documents' tokens every ``length``. All packs are full but the last of a lane."""

    def __post_init__(self) -> None:
        if self.spec.others == "join":
            raise ValueError(
                "strategy='concat' cuts documents, which others='join' does not allow. Use another strategy."
            )
        if self.spec.overlong == "alone":
            raise ValueError(
                "strategy='concat' cuts documents wherever a pack ends, so overlong='alone' has no meaning. "
                "Use overlong='cut' or 'drop', or another strategy."
            )

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        packs = read_stream(inputs, cursor, self.spec, context)
        return Flow(stacked_runs=packs, form=pack_form(inputs), ragged=is_ragged)

    def counted(self, inputs: CountedItems, cursor: Cursor, context: Context) -> CountedItems:
        return PlannedStream(inputs, self.spec, cursor[len(inputs.cursor(0)) :], context)

    def describe(self) -> dict[str, Any] | None:
        return self.spec.describe() | {"strategy": "concat"}
