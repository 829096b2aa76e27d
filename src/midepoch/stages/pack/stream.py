"""Packs that are cut from one stream of all documents' tokens, read in order, or planned from the lengths of a survey.

Tokens are numbered from the start of the document that holds the first token to deliver. With lengths known, each
reader finds the documents of the packs that it delivers, and reads no others. Both ways of reading make the same packs.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from midepoch._common.types import I32, I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import CheckpointMismatchError
from midepoch.stages.counted import CHUNK, CountedItems, Groups, Pieces, Wanted
from midepoch.stages.flow import (
    Context,
    Flow,
    Idle,
    check_delivered,
    check_of,
    compare_check,
    keys_inside,
    split_cursor,
)
from midepoch.stages.pack.documents import (
    NO_TOKENS,
    Documents,
    Values,
    join_documents,
    not_left_out,
    read_documents,
    read_planned,
    runs_of_stream,
)
from midepoch.stages.pack.spec import PackSpec, make_pack, pack_form
from midepoch.stages.pack.strategies import cumulative
from midepoch.stages.stacked import StackedRun

STACKED_TOKENS, MOST_STACKED = 1 << 16, 1024
"""The most tokens, and the most packs, that are made together: they fit the CPU cache."""
PACKS_AT_ONCE = 1 << 10
"""The documents of this many packs are looked up together for their keys."""


class StreamLayout(NamedTuple):
    """Where packs are cut, and the documents that hold their tokens, by the numbers of tokens in the stream."""

    begins: I64
    """The first token of each document."""
    ends: I64
    """The token after the last one of each document. Documents may be missing where no pack is cut."""
    starts: I64
    """The first token of each pack."""
    stops: I64
    """The token after the last one of each pack."""

    @property
    def firsts(self) -> I64:
        """The first document of each pack."""
        return np.searchsorted(self.ends, self.starts, "right")

    @property
    def lasts(self) -> I64:
        """The last document of each pack."""
        return np.searchsorted(self.ends, self.stops, "left")

    def keys(self, documents: I64) -> I64:
        """The keys of the packs, from those of their first documents, and from where in these they start."""
        return keys_inside(documents, self.starts - self.begins[self.firsts])

    def pieces(self) -> Pieces:
        """The pieces of documents in the packs."""
        firsts = self.firsts
        sizes = self.lasts - firsts + 1
        items = np.repeat(np.arange(len(sizes)), sizes)
        documents = firsts[items] + np.arange(len(items)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        begins = self.begins[documents]
        starts = np.maximum(self.starts[items], begins) - begins
        stops = np.minimum(self.stops[items], self.ends[documents]) - begins
        return Pieces(items, documents, starts, stops)

    def seqlens(self) -> list[I32]:
        """The ``cu_seqlens`` of the packs: 0, where documents end inside of the pack, and its length."""
        firsts = self.firsts
        sizes = self.lasts - firsts + 2
        stops = np.cumsum(sizes)
        starts = stops - sizes
        joined = np.arange(sizes.sum()) + (firsts - starts - 1).repeat(sizes)  # the documents that end there
        joined = self.ends.take(joined, mode="clip") - self.starts.repeat(sizes)
        joined[starts], joined[stops - 1] = 0, self.stops - self.starts
        narrow = joined.astype(np.int32)
        return [narrow[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]


def cut_packs(
    documents: Documents,
    layout: StreamLayout,
    cursors: Sequence[Cursor],
    kept: npt.NDArray[np.bool_] | None,
    spec: PackSpec,
) -> Iterator[StackedRun]:
    """The packs of a layout of these documents, many at a time. Documents that are not ``kept`` are left out of them.

    All packs are full but the last of a lane, and those of which documents are left out.
    """
    firsts, lasts, seqlens = layout.firsts, layout.lasts, layout.seqlens()
    keys = layout.keys(documents.keys[firsts]).tolist()
    shifts = np.cumsum(documents.lengths) - layout.ends  # from the stream to what is read of it
    begins, ends = (layout.starts + shifts[firsts]).tolist(), (layout.stops + shifts[lasts]).tolist()
    full = len(keys) - (ends[-1] - begins[-1] < spec.length) if kept is None else 0
    at_once = max(1, min(MOST_STACKED, STACKED_TOKENS // spec.length))
    for first in range(0, full, at_once):
        some = slice(first, min(first + at_once, full))
        columns = {name: _stacked(column, begins[some], ends[some]) for name, column in documents.columns.items()}
        columns["position_ids"], columns["document_ids"] = _ids_within_each(seqlens[some], spec.length)
        yield StackedRun(columns, {"cu_seqlens": seqlens[some]}, cursors[some], keys[some])
    for number in range(full, len(keys)):
        bounds = zip(seqlens[number][:-1].tolist(), seqlens[number][1:].tolist(), strict=True)
        spans = [(begins[number] + start, begins[number] + stop) for start, stop in bounds]
        if kept is not None:
            of_pack = kept[firsts[number] : lasts[number] + 1]
            spans = [span for span, is_kept in zip(spans, of_pack, strict=True) if is_kept]
        if spans:
            pieces = {name: [column[start:stop] for start, stop in spans] for name, column in documents.columns.items()}
            pack = make_pack(pieces, cumulative(np.array([stop - start for start, stop in spans])), spec, "numpy")
            ragged = {"cu_seqlens": [pack.pop("cu_seqlens")]}
            columns = {name: values[None] for name, values in pack.items()}
            yield StackedRun(columns, ragged, cursors[number : number + 1], keys[number : number + 1])


def _stacked(column: Values, begins: Sequence[int], ends: Sequence[int]) -> Values:
    """Equally long parts of a column as lines of one array: a view of the column if they lie side by side."""
    if list(ends[:-1]) == list(begins[1:]):
        return column[begins[0] : ends[-1]].reshape(len(begins), -1)
    return np.stack([column[begin:end] for begin, end in zip(begins, ends, strict=True)])


def _ids_within_each(seqlens: Sequence[I32], length: int) -> tuple[I32, I32]:
    """``ids_within`` of several full packs, one in each line."""
    joined = np.concatenate(seqlens)
    firsts = np.cumsum([0, *map(len, seqlens)])
    inside = np.ones(len(joined), bool)
    inside[firsts[1:] - 1] = False  # the end of a pack is no piece's start
    starts, sizes = joined[inside], np.diff(joined, append=0)[inside]
    pieces = np.diff(firsts) - 1
    numbers = np.arange(len(sizes), dtype=np.int32) - (np.cumsum(pieces) - pieces).astype(np.int32).repeat(pieces)
    positions = np.arange(length, dtype=np.int32) - starts.repeat(sizes).reshape(len(seqlens), length)
    return positions, numbers.repeat(sizes).reshape(len(seqlens), length)


@dataclass(frozen=True, slots=True)
class StreamRun:
    """Consecutive documents of the stream."""

    documents: Documents
    ends: I64
    """For each document, the number of the token after its last one."""
    cursors: I64
    """For each document, the cursor of the inputs before it and the one after it."""

    def after(self, token: int) -> "StreamRun":
        """The documents that end after a token."""
        first = int(np.searchsorted(self.ends, token, "right"))
        return StreamRun(self.documents.after(first), self.ends[first:], self.cursors[first:])

    def packs(self, starts: I64, stops: I64, skips: bool, spec: PackSpec, context: Context) -> Iterator[StackedRun]:
        """The packs with these tokens. If earlier stages may skip, their cursors have a check."""
        layout = StreamLayout(self.ends - self.documents.lengths, self.ends, starts, stops)
        kept = not_left_out(self.documents.keys, context)
        yield from cut_packs(self.documents, layout, self._cursors(layout, skips), kept, spec)

    def _cursors(self, layout: StreamLayout, skips: bool) -> list[Cursor]:
        """The cursor after each pack: after a document that ends there, else inside the one that does not."""
        lasts = layout.lasts
        whole = layout.ends[lasts] == layout.stops
        numbers = [layout.stops - layout.begins[lasts]]
        if skips:
            checks = [check_of(self.documents.keys[document : document + 1]) for document in lasts.tolist()]
            numbers.append(np.array(checks))
        own_numbers = np.where(whole, 0, numbers).T
        of_inputs = self.cursors[lasts, whole.astype(np.int64)]
        return list(map(tuple, np.concatenate([of_inputs, own_numbers], axis=1).tolist()))


def read_stream(inputs: Flow, cursor: Cursor, spec: PackSpec, context: Context) -> Iterator[StackedRun]:
    """The packs of the stream, from the cursor on."""
    waiting: list[StreamRun] = []
    _, start, _ = split_cursor(cursor, inputs.skips)
    for last in _runs(inputs, cursor, spec, context):
        waiting.append(last)
        if packs := (int(last.ends[-1]) - start) // spec.length:
            run = _join(waiting)
            starts = start + spec.length * np.arange(packs)
            yield from run.packs(starts, starts + spec.length, inputs.skips, spec, context)
            start += packs * spec.length
            waiting = [run.after(start)] if run.ends[-1] > start else []
    if waiting:
        run = _join(waiting)
        yield from run.packs(np.array([start]), run.ends[-1:], inputs.skips, spec, context)


def _runs(inputs: Flow, cursor: Cursor, spec: PackSpec, context: Context) -> Iterator[StreamRun]:
    """The documents that have tokens to pack, from the cursor on."""
    start, delivered, check = split_cursor(cursor, inputs.skips)
    before, tokens = np.array([start], np.int64), 0
    idle = Idle(inputs.passes, NO_TOKENS)
    for run in runs_of_stream(inputs, delivered, spec, context):
        compare_check(check, run.keys[:1], spec.number, context)
        documents = read_documents(run, spec, context)
        cursors = np.stack([np.concatenate([before, run.cursors[:-1]]), run.cursors], axis=1)
        before = run.cursors[-1:]
        kept = documents.lengths > 0
        if spec.overlong == "drop":
            kept &= documents.lengths <= spec.length
        idle.note(bool(kept.any()))
        check_delivered(delivered, int(documents.lengths[0]) if kept[0] else 0)
        delivered = check = 0
        if kept.any():
            documents = documents if kept.all() else documents.keep(kept)
            ends = tokens + np.cumsum(documents.lengths)
            tokens = int(ends[-1])
            yield StreamRun(documents, ends, cursors[kept])
    compare_check(check, np.empty(0, np.int64), spec.number, context)
    if delivered:
        raise CheckpointMismatchError(
            "The state is inside a document that does not exist any more. Restore the data, or start the epoch over "
            "without the state."
        )


def _join(runs: Sequence[StreamRun]) -> StreamRun:
    """Consecutive runs as one."""
    if len(runs) == 1:
        return runs[0]
    documents = join_documents([run.documents for run in runs])
    return StreamRun(
        documents, np.concatenate([run.ends for run in runs]), np.concatenate([run.cursors for run in runs])
    )


class StreamJob(NamedTuple):
    """Some packs of the stream, and the documents that hold their tokens."""

    documents: I64
    """The numbers of the documents."""
    lengths: I64
    layout: StreamLayout


class PlannedStream(Groups):
    """The packs of one stream of tokens, counted.

    What ``Groups`` counts are tokens: those of ``CHUNK`` documents at a time, when they are needed.
    """

    def __init__(self, inputs: CountedItems, spec: PackSpec, own_numbers: Cursor, context: Context) -> None:
        super().__init__(inputs, CHUNK, own_numbers)
        self._spec, self._context = spec, context
        self.batched, self.members = False, 1
        self._last: tuple[int, I64] = (-1, np.empty(0, np.int64))

    def _lengths(self, chunk: int) -> I64:
        """The tokens that each document of a chunk adds to the stream."""
        if self._last[0] != chunk:
            numbers = self._members(chunk)
            lengths = self._inputs.lengths(numbers) if len(numbers) else numbers
            lengths = lengths + (self._spec.eos is not None)
            if self._spec.overlong == "drop":
                lengths = np.where(lengths > self._spec.length, 0, lengths)
            self._last = chunk, lengths
        return self._last[1]

    def _outputs(self, group: int) -> int:
        return int(self._lengths(group).sum())

    def has(self, number: int) -> bool:
        return super().has(number * self._spec.length)

    def total(self) -> int:
        return -(-super().total() // self._spec.length)

    def cursor(self, items: int) -> Cursor:
        if items == 0:
            return (*self._inputs.cursor(0), *self._own_numbers)
        self.has(items)
        end = min(self._delivered + items * self._spec.length, self._ends[-1])
        chunk = bisect_left(self._ends, end)
        ends = np.cumsum(self._lengths(chunk)) + self._before(chunk)
        inside = int(np.searchsorted(ends, end, "left"))
        document, tokens = chunk * CHUNK + inside, end - int(ends[inside] - self._lengths(chunk)[inside])
        if ends[inside] == end:
            document, tokens = document + 1, 0
        return (*self._inputs.cursor(document), tokens, *[0] * (len(self._own_numbers) - 1))

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        for check in self._own_numbers[1:]:
            compare_check(check, self._inputs.keys(np.array([0])), self._spec.number, self._context)
        jobs = ([self._job(numbers)] if len(numbers) else [] for numbers in wanted)
        flow, read = read_planned(self._inputs, opened, jobs, self._spec, self._context)
        packs = (
            packs
            for job, documents in read
            for packs in cut_packs(documents, job.layout, [()] * len(job.layout.starts), None, self._spec)
        )
        return Flow(stacked_runs=packs, form=pack_form(flow), ragged=is_ragged)

    def _job(self, numbers: I64) -> StreamJob:
        """The documents that hold the tokens of these packs."""
        self.has(int(numbers[-1]) + 1)
        starts = self._delivered + numbers * self._spec.length
        stops = np.minimum(starts + self._spec.length, self._ends[-1])
        documents, all_begins, all_ends = [], [], []
        for chunk in range(bisect_right(self._ends, starts[0]), bisect_left(self._ends, stops[-1]) + 1):
            lengths = self._lengths(chunk)
            ends = np.cumsum(lengths) + self._before(chunk)
            begins = ends - lengths
            # A document with tokens is needed if the first pack that stops after its begin starts before its end.
            pack = np.searchsorted(stops, begins, "right")
            inside = np.flatnonzero((lengths > 0) & (np.append(starts, self._ends[-1])[pack] < ends))
            documents.append(chunk * CHUNK + inside)
            all_begins.append(begins[inside])
            all_ends.append(ends[inside])
        layout = StreamLayout(np.concatenate(all_begins), np.concatenate(all_ends), starts, stops)
        return StreamJob(np.concatenate(documents), layout.ends - layout.begins, layout)

    def inputs_of(self, numbers: I64) -> Pieces:
        job = self._job(numbers)
        pieces = job.layout.pieces()
        return pieces._replace(inputs=job.documents[pieces.inputs])

    def outputs_of(self, inputs: I64) -> I64:
        found = [inputs[:0]]
        for number in inputs.tolist():
            chunk, inside = divmod(number, CHUNK)
            self._counted_until(chunk)
            lengths = self._lengths(chunk)
            end = self._before(chunk) + int(lengths[: inside + 1].sum()) - self._delivered
            first = max(0, end - int(lengths[inside]))
            found.append(np.arange(first // self._spec.length, -(-end // self._spec.length) if end > first else 0))
        return np.unique(np.concatenate(found))

    def keys(self, numbers: I64) -> I64:
        keys = [np.empty(0, np.int64)]
        for begin in range(0, len(numbers), PACKS_AT_ONCE):
            documents, _, layout = self._job(numbers[begin : begin + PACKS_AT_ONCE])
            firsts, of_packs = np.unique(documents[layout.firsts], return_inverse=True)  # a long one begins several
            keys.append(layout.keys(self._inputs.keys(firsts)[of_packs]))
        return np.concatenate(keys)


def is_ragged(name: str) -> bool:
    """True of the column that differs in length: packs have different numbers of documents, and as many tokens."""
    return name == "cu_seqlens"
