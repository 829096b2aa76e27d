"""What all ways of packing share: the stage, packs as arrays, and packs that are planned from known lengths."""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch._common.checks import count
from midepoch._common.hashing import I32, I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import SurveyMismatchError
from midepoch.stages.counted import (
    CHUNK,
    Amounts,
    CountedItems,
    Groups,
    Known,
    Pieces,
    TokensOf,
    Wanted,
    amounts_of_pieces,
    sum_amounts,
)
from midepoch.stages.flow import Context, Flow, RowRun, SingleItem, compare_check, concat_runs, keys_inside
from midepoch.stages.pack.documents import IGNORED, DocumentReader, Documents, PackSpec, Values
from midepoch.stages.stage import Stage
from midepoch.values.columns import Form
from midepoch.values.convert import join_others
from midepoch.values.rows import convert_item


@dataclass(frozen=True, slots=True)
class Packs:
    """The pieces of each pack. Piece ``p`` is the tokens ``starts[p]`` to ``stops[p]`` of ``documents[p]``.

    Pack ``k`` holds the pieces from ``bounds[k]`` to ``bounds[k + 1]``.
    """

    documents: I64
    starts: I64
    stops: I64
    bounds: I64

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def owners(self) -> I64:
        """The number of each piece's pack."""
        return np.repeat(np.arange(len(self)), np.diff(self.bounds))

    def select(self, packs: I64) -> "Packs":
        """These packs alone."""
        sizes = self.bounds[packs + 1] - self.bounds[packs]
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        pieces = np.repeat(self.bounds[packs] - bounds[:-1], sizes) + np.arange(bounds[-1])
        return Packs(self.documents[pieces], self.starts[pieces], self.stops[pieces], bounds)

    def keep(self, pieces: npt.NDArray[np.bool_]) -> "Packs":
        """The same packs with only the pieces where the mask is true. A pack may have none of them."""
        bounds = np.concatenate([[0], np.cumsum(pieces)])[self.bounds]
        return Packs(self.documents[pieces], self.starts[pieces], self.stops[pieces], bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackStage(Stage):
    """Packs documents. Nothing that waits in a packer is part of a state."""

    spec: PackSpec
    keeps_rows = False
    many_outputs: ClassVar[bool] = True
    needs_survey: ClassVar[bool] = True
    makes_batches: ClassVar[bool] = False
    """True if the outputs are batches of rows, not packs."""
    planned: ClassVar[Callable[..., CountedItems]]
    """Makes counted packs of inputs, the stage, its own numbers in a cursor, and the context."""

    @property
    def name(self) -> str:
        return self.spec.op

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        return self.flow_of(self.read(inputs, cursor, context), inputs)

    def flow_of(self, packs: Iterator[SingleItem], inputs: Flow) -> Flow:
        """A flow of packs that are made of inputs."""
        form = pack_form(inputs)
        return Flow(single_items=packs, form=form, batched=self.makes_batches, ragged=self.is_ragged)

    @abstractmethod
    def read(self, inputs: Flow, cursor: Cursor, context: Context) -> Iterator[SingleItem]:
        """The packs from the cursor on, of documents that are read in order."""

    def counted(self, inputs: CountedItems, cursor: Cursor, context: Context) -> CountedItems:
        return self.planned(inputs, self, cursor[len(inputs.cursor(0)) :], context)

    def make_items(
        self, documents: Documents, layout: Packs, cursors: I64, keys: I64, form: Form, context: Context
    ) -> Iterator[SingleItem]:
        """The packs of a layout of these documents, each with its cursor and key.

        Documents that are left out of an epoch under way keep their places in the layout. A pack may have no others.
        """
        if context.left_out:
            kept = np.array([key not in context.left_out for key in documents.keys.tolist()], np.bool_)
            layout = layout.keep(kept[layout.documents])
        begins = documents.begins[layout.documents]
        starts, stops = (begins + layout.starts).tolist(), (begins + layout.stops).tolist()
        all_sizes, inside = layout.stops - layout.starts, layout.documents.tolist()
        keys_of_packs = self.keys(documents.keys, layout, keys).tolist()
        for (first, last), cursor, key in zip(
            pairwise(layout.bounds.tolist()), map(tuple, cursors.tolist()), keys_of_packs, strict=True
        ):
            if first == last:
                continue
            pieces = {
                name: [column[starts[piece] : stops[piece]] for piece in range(first, last)]
                for name, column in documents.columns.items()
            }
            sizes = all_sizes[first:last]
            pack = self.make_pack(pieces, sizes, form)
            for name, values in documents.others.items():
                pack[name] = self.join(name, [values[document] for document in inside[first:last]], form)
            context.packs.places += self.spec.places(sizes)
            context.packs.tokens += int(sizes.sum())
            yield pack, cursor, key

    def make_pack(self, pieces: Mapping[str, Sequence[Values]], sizes: I64, form: Form) -> dict[str, Any]:
        """A pack in its own memory: the pieces of each column joined and padded, and where each begins and ends."""
        spec, ends = self.spec, cumulative(sizes)
        real = int(ends[-1])
        total = real if spec.pad is None else max(real, spec.length)
        pack: dict[str, Any] = {}
        for name, arrays in pieces.items():
            values = np.empty(total, arrays[0].dtype)
            np.concatenate(arrays, out=values[:real])
            if total > real:
                values[real:] = spec.pad if name == spec.column else IGNORED if name == "labels" else 0
            pack[name] = values
        pack["position_ids"], pack["document_ids"] = ids_within(ends, total)
        pack["cu_seqlens"] = ends
        converted: dict[str, Any] = convert_item(pack, form) if form == "torch" else pack
        return converted

    def join(self, name: str, values: Sequence[Any], form: Form) -> Any:
        """The values that documents of a pack have in a column besides the tokens."""
        return join_others(name, values, form)

    def keys(self, of_documents: I64, layout: Packs, keys: I64) -> I64:
        """The keys of the packs of a layout, of which these are made of an input's key and a number."""
        return keys

    def is_ragged(self, name: str) -> bool:
        """True if a column's arrays differ in length from pack to pack."""
        return self.spec.is_ragged(name)

    @property
    def length_column(self) -> str:
        return self.spec.column

    def sizes(self, lengths: I64) -> I64:
        """How many tokens of documents of these lengths, an ``eos`` included, go into packs."""
        return np.where(lengths > self.spec.length, 0, lengths) if self.spec.overlong == "drop" else lengths

    def document_lengths(self, inputs: Flow, context: Context) -> Iterator[tuple[I64, I64]]:
        return DocumentReader(self.spec, context).lengths(inputs)

    def count(self, inputs: int) -> int | None:
        return None

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        return None


class Planned(NamedTuple):
    """Packs that are planned."""

    layout: Packs
    """Which pieces of which inputs they are made of."""
    keyed: I64
    """For each pack, the input whose key its own is made of."""
    numbers: I64
    """For each pack, its number among those of that input."""


class PlannedPacks(Groups[Known]):
    """Packs that are planned from the lengths of a survey. A reader takes only the documents of its own packs."""

    _checked_inputs: int | None = None
    """How many inputs of its first group a check in the cursor is of; None for all."""

    def __init__(self, inputs: CountedItems, stage: PackStage, own_numbers: Cursor, context: Context) -> None:
        super().__init__(inputs, stage.group_size if stage.makes_windows else CHUNK, own_numbers)
        self.batched, self.members = stage.makes_batches, stage.spec.length if stage.makes_batches else 1
        self._stage, self._spec, self._context = stage, stage.spec, context
        self._end = int(stage.spec.eos is not None)

    @abstractmethod
    def _plans(self, numbers: I64) -> Iterator[Planned]:
        """The plans that make these packs together, in their order; none if there are no numbers."""

    def inputs_of(self, numbers: I64) -> Pieces:
        pieces, done = [Pieces(*[numbers[:0]] * 4)], 0
        for layout, *_ in self._plans(numbers):
            pieces.append(Pieces(done + layout.owners, layout.documents, layout.starts, layout.stops))
            done += len(layout)
        return Pieces._make(np.concatenate(columns) for columns in zip(*pieces, strict=True))

    def passed(self, cursor: Cursor, tokens_of: TokensOf = np.asarray, *, counting: bool = False) -> Amounts:
        width = len(self._inputs.cursor(0))
        amounts = self._inputs.passed(cursor[:width], lambda lengths: self._stage.sizes(lengths + self._end))
        documents, delivered = amounts[""].items, cursor[width]
        if delivered:
            begun = amounts_of_pieces(self._inputs, *self._begun(documents, delivered))
            amounts = sum_amounts([amounts, begun])
        packs = self._packs_before(documents, delivered, amounts[""].tokens or 0) if counting else 0
        return amounts | {"": amounts[""]._replace(items=packs)}

    @abstractmethod
    def _begun(self, documents: int, delivered: int) -> tuple[I64, I64]:
        """What is delivered of the group after so many documents: its documents, and the tokens of their pieces."""

    @abstractmethod
    def _packs_before(self, documents: int, delivered: int, tokens: int) -> int:
        """The number of packs with these tokens: of all groups of so many documents, and those delivered after."""

    def keys(self, numbers: I64) -> I64:
        return np.concatenate([numbers[:0], *map(self._keys_of, self._plans(numbers))])

    def _keys_of(self, planned: Planned) -> I64:
        inputs, of_packs = np.unique(planned.keyed, return_inverse=True)
        return keys_inside(self._inputs.keys(inputs)[of_packs], planned.numbers)

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        for check in self._own_numbers[1:]:
            checked = self._inputs.keys(self._members(0)[: self._checked_inputs])
            compare_check(check, checked, self._spec.number, self._context)
        begun: deque[tuple[Planned, I64]] = deque()
        flow = self._inputs.flow(opened, self._documents(wanted, begun))
        return self._stage.flow_of(self._read(flow, begun), flow)

    def _documents(self, wanted: Wanted, begun: deque[tuple[Planned, I64]]) -> Iterator[I64]:
        """The documents of the wanted packs. Each plan is noted with its documents, which rise.

        Where there are no plans, the next ones are not known yet.
        """
        for numbers in wanted:
            for planned in self._plans(numbers):
                documents = np.unique(planned.layout.documents)
                begun.append((planned, documents))
                yield documents
            if not len(numbers):
                yield numbers

    def _read(self, flow: Flow, begun: deque[tuple[Planned, I64]]) -> Iterator[SingleItem]:
        """The packs of the plans. The flow adds plans as it asks for rows: no plan comes before a row."""
        waiting: list[RowRun] = []
        reader = DocumentReader(self._spec, self._context)
        for run in reader.runs(flow, iter(lambda: len(begun[0][1]), None)):
            waiting.append(run)
            while begun and sum(map(len, waiting)) >= (needed := len(begun[0][1])):
                (planned, numbers), joined = begun.popleft(), concat_runs(waiting)
                documents = reader.read(joined.slice(0, needed))
                self._compare_lengths(numbers, documents.lengths)
                layout = replace(planned.layout, documents=np.searchsorted(numbers, planned.layout.documents))
                cursors = np.empty((len(layout), 0), np.int64)
                yield from self._stage.make_items(
                    documents, layout, cursors, self._keys_of(planned), pack_form(flow), self._context
                )
                waiting = [joined.slice(needed, len(joined))] if len(joined) > needed else []

    def _compare_lengths(self, documents: I64, lengths: I64) -> None:
        """Raise if a document does not have the length that the survey says."""
        surveyed = self._lengths_of(documents)
        for number in np.flatnonzero(lengths != surveyed).tolist()[:1]:
            end = self._spec.eos is not None
            raise SurveyMismatchError(
                f"{self._spec.op}: a document has {count('token', int(lengths[number]) - end)}, and the survey says "
                f"{int(surveyed[number]) - end:,}{self._place(int(documents[number]))}. A function before "
                f"{self._spec.op} has changed, or does not always return the same. After a change pass another version "
                "to survey(version=...)."
            )

    def _place(self, document: int) -> str:
        """Where a document comes from."""
        row = self._inputs.trace(np.array([document]))
        return f", at row {row.rows[0]:,} of {row.files[0]}"

    def _lengths_of(self, numbers: I64) -> I64:
        """The tokens of these documents, with the one that ends each."""
        return (self._inputs.lengths(numbers) if len(numbers) else numbers) + self._end


def pack_form(inputs: Flow) -> Literal["numpy", "torch"]:
    """Packs hold tensors where the inputs do, else arrays."""
    return "torch" if inputs.form == "torch" else "numpy"


def cumulative(sizes: I64) -> I32:
    """Where each piece of a pack begins, and where the last one ends: the ``cu_seqlens`` of attention kernels."""
    ends = np.zeros(len(sizes) + 1, np.int32)
    ends[1:] = sizes.cumsum()
    return ends


def ids_within(ends: I32, total: int) -> tuple[I32, I32]:
    """Each token's position in its piece, and the number of that piece; 0 and -1 on padding up to ``total``."""
    sizes, real = ends[1:] - ends[:-1], int(ends[-1])
    positions, numbers = np.empty(total, np.int32), np.empty(total, np.int32)
    np.subtract(np.arange(real, dtype=np.int32), ends[:-1].repeat(sizes), out=positions[:real])
    numbers[:real] = np.arange(len(sizes), dtype=np.int32).repeat(sizes)
    positions[real:], numbers[real:] = 0, -1
    return positions, numbers
