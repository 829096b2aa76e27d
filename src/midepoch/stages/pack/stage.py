"""The two stages that pack documents: whole documents in windows, or one stream of tokens cut at every pack's end.

Nothing that waits in a packer is part of a state. The cursor in a window is that of any group: the window's start, and
how many of its packs are delivered. The cursor in a stream has the same shape: the start of the next pack's first
document, and how many of its tokens are delivered.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch._common.hashing import keys_of, mix64
from midepoch._common.types import I32, I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import CheckpointMismatchError
from midepoch.stages.counted import CountedItems
from midepoch.stages.flow import (
    Context,
    Flow,
    Idle,
    SingleItem,
    check_delivered,
    check_of,
    compare_check,
    resume_groups,
    single_groups,
    split_cursor,
)
from midepoch.stages.pack.documents import (
    Documents,
    Values,
    check_same_dtype,
    document_lengths,
    read_documents,
    runs_of_stream,
    runs_of_windows,
)
from midepoch.stages.pack.items import StreamCuts, make_pack, pack_form, seqlens_between, stacked_pack, stacked_packs
from midepoch.stages.pack.planned_stream import PlannedStream
from midepoch.stages.pack.planned_windows import PlannedWindows
from midepoch.stages.pack.spec import PackSpec
from midepoch.stages.pack.strategies import ASSIGN, Strategy, cumulative, pack
from midepoch.stages.stacked import StackedRun
from midepoch.stages.stage import Stage
from midepoch.values.collate import join_others
from midepoch.values.forms import Form

NO_TOKENS = "pack got no tokens to pack, because documents are empty, or too long with overlong='drop',"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackWindows(Stage):
    """Lay out whole documents, or pieces of long ones, inside windows of ``window`` rows."""

    spec: PackSpec
    strategy: Strategy
    window: int
    name = "pack"
    keeps_rows = False
    many_outputs: ClassVar[bool] = True
    needs_survey: ClassVar[bool] = True
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

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        form = pack_form(inputs)
        packs = self._packs(inputs, cursor, context, form)
        return Flow(single_items=packs, form=form, ragged=self.spec.is_ragged)

    @property
    def length_column(self) -> str:
        return self.spec.column

    def document_lengths(self, inputs: Flow, context: Context) -> Iterator[tuple[I64, I64]]:
        return document_lengths(inputs, self.spec, context)

    def _packs(self, inputs: Flow, cursor: Cursor, context: Context, form: Form) -> Iterator[SingleItem]:
        spec = self.spec
        idle = Idle(inputs.passes, NO_TOKENS)
        windows = single_groups(runs_of_windows(inputs, self.window, spec, context), self.window)
        for window in resume_groups(windows, cursor, inputs.skips, spec.number, context):
            documents = read_documents(window.inputs, spec, context)
            packs = pack(documents.lengths, length=spec.length, strategy=self.strategy, overlong=spec.overlong)
            cursors, keys = window.cursors_and_keys(len(packs))
            idle.note(len(packs) > 0)
            cursor_and_key = list(zip(map(tuple, cursors.tolist()), keys.tolist(), strict=True))
            kept = _not_left_out(window.inputs.keys[packs.documents], context)
            begins = (np.cumsum(documents.lengths) - documents.lengths)[packs.documents]
            starts, stops = (packs.starts + begins).tolist(), (packs.stops + begins).tolist()
            sizes, bounds = packs.stops - packs.starts, packs.bounds.tolist()
            for number in range(window.delivered, len(packs)):
                first, last = bounds[number], bounds[number + 1]
                here = range(first, last) if kept is None else [piece for piece in range(first, last) if kept[piece]]
                if not here:
                    continue
                pieces = {
                    name: [column[starts[piece] : stops[piece]] for piece in here]
                    for name, column in documents.columns.items()
                }
                picked = slice(first, last) if kept is None else here
                item = make_pack(pieces, cumulative(sizes[picked]), spec, form)
                inside = packs.documents[picked].tolist()
                for name, values in documents.others.items():
                    item[name] = join_others(name, [values[document] for document in inside], form)
                yield item, *cursor_and_key[number]

    def count(self, inputs: int) -> int | None:
        return None

    def counted(self, inputs: CountedItems, cursor: Cursor, context: Context) -> CountedItems:
        return PlannedWindows(inputs, self.spec, self.strategy, self.window, cursor[len(inputs.cursor(0)) :], context)

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        return None

    def describe(self) -> dict[str, Any] | None:
        return self.spec.describe() | {"strategy": self.strategy, "window": self.window}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackStream(Stage):
    """Cut one stream of all documents' tokens every ``length``. All packs are full but the last of a lane."""

    spec: PackSpec
    name = "pack"
    keeps_rows = False
    many_outputs: ClassVar[bool] = True
    needs_survey: ClassVar[bool] = True

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
        packs = self._packs(inputs, cursor, context)
        return Flow(stacked_runs=packs, form=pack_form(inputs), ragged=self._is_ragged)

    @property
    def length_column(self) -> str:
        return self.spec.column

    def document_lengths(self, inputs: Flow, context: Context) -> Iterator[tuple[I64, I64]]:
        return document_lengths(inputs, self.spec, context)

    def _packs(self, inputs: Flow, cursor: Cursor, context: Context) -> Iterator[StackedRun]:
        length = self.spec.length
        waiting: list[DocumentRun] = []
        tokens = 0
        for run in self._document_runs(inputs, cursor, context):
            waiting.append(run)
            tokens += len(run)
            if tokens >= length:
                joined = _join(waiting)
                bounds = range(0, tokens + 1, length)
                yield from self._packs_between(bounds, joined, inputs.skips, context)
                waiting, tokens = [joined.after(bounds[-1])], tokens - bounds[-1]
        if tokens:
            yield from self._packs_between((0, tokens), _join(waiting), inputs.skips, context)

    def _document_runs(self, inputs: Flow, cursor: Cursor, context: Context) -> Iterator["DocumentRun"]:
        """The documents that have tokens to pack, from the cursor on."""
        spec = self.spec
        start, delivered, check = split_cursor(cursor, inputs.skips)
        cursor_before = np.array([start], np.int64)
        idle = Idle(inputs.passes, NO_TOKENS)
        for run in runs_of_stream(inputs, delivered, spec, context):
            compare_check(check, run.keys[:1], spec.number, context)
            documents = read_documents(run, spec, context)
            before = np.concatenate([cursor_before, run.cursors[:-1]])
            cursor_before = run.cursors[-1:]
            kept = documents.lengths > 0
            if spec.overlong == "drop":
                kept &= documents.lengths <= spec.length
            idle.note(bool(kept.any()))
            if delivered:
                check_delivered(delivered, int(documents.lengths[0]) if kept[0] else 0)
            if not kept.all():
                documents = documents.keep(kept)
            offsets = np.zeros(len(documents.lengths), np.int64)
            document_run = DocumentRun(documents, offsets, before[kept], run.cursors[kept], run.keys[kept])
            yield document_run.after(delivered) if delivered else document_run
            delivered = check = 0
        compare_check(check, np.empty(0, np.int64), spec.number, context)
        if delivered:
            raise CheckpointMismatchError(
                "The state is inside a document that does not exist any more. Restore the data, or start the epoch "
                "over without the state."
            )

    def _packs_between(
        self, bounds: Sequence[int], run: "DocumentRun", skips: bool, context: Context
    ) -> Iterator[StackedRun]:
        """A pack from each bound, in tokens of the run, to the next."""
        cursors, keys = run.cursors_at(bounds[1:], skips), run.keys_at(bounds[:-1])
        document_ends = np.cumsum(run.documents.lengths)
        firsts = np.searchsorted(document_ends, bounds[:-1], "right")
        lasts = np.searchsorted(document_ends, bounds[1:], "left")
        kept = _not_left_out(run.keys, context)
        begins_and_ends = np.array(bounds[:-1], np.int64), np.array(bounds[1:], np.int64)
        all_seqlens = seqlens_between(document_ends, begins_and_ends, (firsts, lasts))
        cuts = StreamCuts(bounds[:-1], bounds[1:], all_seqlens, list(map(tuple, cursors.tolist())), keys.tolist())
        if kept is None:
            yield from stacked_packs(run.documents.columns, cuts, self.spec)
            return
        for number, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
            if kept[first : last + 1].any():
                begin, end = bounds[number], bounds[number + 1]
                pieces = {name: [column[begin:end]] for name, column in run.documents.columns.items()}
                remaining, seqlens = _kept_pieces(pieces, all_seqlens[number], kept[first : last + 1])
                yield stacked_pack(remaining, seqlens, cuts.cursors[number], cuts.keys[number], self.spec)

    def _is_ragged(self, name: str) -> bool:
        # Packs are equally long, but for the last of a lane. Only the number of documents in them differs.
        return name == "cu_seqlens"

    def count(self, inputs: int) -> int | None:
        return None

    def counted(self, inputs: CountedItems, cursor: Cursor, context: Context) -> CountedItems:
        return PlannedStream(inputs, self.spec, cursor[len(inputs.cursor(0)) :], context)

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        return None

    def describe(self) -> dict[str, Any] | None:
        return self.spec.describe() | {"strategy": "concat"}


@dataclass(frozen=True, slots=True)
class DocumentRun:
    """Consecutive documents, or what is left of them, as consecutive tokens of the stream."""

    documents: Documents
    offsets: I64
    """How many tokens of each document come before the run: not 0 only for the first."""
    cursors_before: I64
    cursors_after: I64
    keys: I64

    def __len__(self) -> int:
        return int(self.documents.lengths.sum())

    def after(self, tokens: int) -> "DocumentRun":
        """The run without its first ``tokens`` tokens."""
        ends = np.cumsum(self.documents.lengths)
        first = int(np.searchsorted(ends, tokens, "right"))
        lengths, offsets = self.documents.lengths[first:].copy(), self.offsets[first:].copy()
        if len(lengths):
            removed = tokens - (int(ends[first - 1]) if first else 0)
            lengths[0] -= removed
            offsets[0] += removed
        columns = {name: column[tokens:] for name, column in self.documents.columns.items()}
        documents = Documents(columns, lengths)
        return DocumentRun(
            documents,
            offsets,
            self.cursors_before[first:],
            self.cursors_after[first:],
            self.keys[first:],
        )

    def cursors_at(self, bounds: Sequence[int], skips: bool) -> I64:
        """The stage's cursor at each bound: after a document that ends there, else inside the one that does not.

        If earlier stages may skip, it has a check of that document.
        """
        ends = np.cumsum(self.documents.lengths)
        documents = np.searchsorted(ends, bounds, "left")
        whole = ends[documents] == bounds
        inside = self.offsets[documents] + bounds - (ends - self.documents.lengths)[documents]
        cursors = np.where(whole[:, None], self.cursors_after[documents], self.cursors_before[documents])
        numbers = [np.where(whole, 0, inside)]
        if skips:
            checks = [check_of(self.keys[document : document + 1]) for document in documents.tolist()]
            numbers.append(np.where(whole, 0, checks))
        return np.concatenate([cursors, np.stack(numbers, axis=1)], axis=1)

    def keys_at(self, bounds: Sequence[int]) -> I64:
        """The key of a pack that begins at each bound: a hash of its first document and of the offset in that."""
        ends = np.cumsum(self.documents.lengths)
        documents = np.searchsorted(ends, bounds, "right")
        inside = self.offsets[documents] + bounds - (ends - self.documents.lengths)[documents]
        return mix64(keys_of(self.keys[documents].tolist()) + inside.astype(np.uint64)).astype(np.int64)


def _not_left_out(keys: I64, context: Context) -> npt.NDArray[np.bool_] | None:
    """Which documents go into packs; None for all of them. The others keep their places in the layout."""
    kept = np.array([key not in context.left_out for key in keys.tolist()], np.bool_) if context.left_out else None
    return None if kept is None or kept.all() else kept


def _kept_pieces(
    pieces: Mapping[str, Sequence[Values]], ends: I32, kept: npt.NDArray[np.bool_]
) -> tuple[dict[str, list[Values]], I32]:
    """A pack of consecutive documents without those that are left out: their tokens, and where each ends."""
    spans = [(begin, end) for begin, end, keep in zip(ends[:-1], ends[1:], kept, strict=True) if keep]
    remaining = {name: [column[begin:end] for begin, end in spans] for name, [column] in pieces.items()}
    return remaining, cumulative(np.array([end - begin for begin, end in spans], np.int64))


def _join(runs: Sequence[DocumentRun]) -> DocumentRun:
    """Consecutive runs as one. All must have the same columns."""
    full = [run for run in runs if len(run.keys)]
    if len(full) == 1:
        return full[0]
    first = full[0].documents.columns
    for run in full:
        columns = run.documents.columns
        if set(columns) != set(first):
            raise ValueError(
                f"pack: one row has the columns {sorted(first)} to pack and another {sorted(columns)}. Let the "
                "function before it return the same columns for every row."
            )
        for name, column in columns.items():
            check_same_dtype(name, first[name].dtype, column.dtype)
    joined = {name: np.concatenate([run.documents.columns[name] for run in full]) for name in first}
    return DocumentRun(
        Documents(joined, np.concatenate([run.documents.lengths for run in full])),
        np.concatenate([run.offsets for run in full]),
        np.concatenate([run.cursors_before for run in full]),
        np.concatenate([run.cursors_after for run in full]),
        np.concatenate([run.keys for run in full]),
    )
