"""Packs that are cut from one stream of all documents' tokens, read in order, or planned from the lengths of a survey.

Tokens are numbered from the start of the document that holds the first token to deliver. With lengths known, each
reader finds the documents of the packs that it delivers, and reads no others. Both ways of reading make the same packs.
The cursor has the shape of that of a group: the start of the next pack's first document, and how many of its tokens
are delivered.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np

from midepoch._common.hashing import I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import CheckpointMismatchError
from midepoch.stages.counted import CHUNK, CountedItems
from midepoch.stages.flow import (
    Context,
    Flow,
    SingleItem,
    check_delivered,
    check_of,
    compare_check,
    keys_inside,
    split_cursor,
)
from midepoch.stages.pack.documents import DocumentReader, Documents, join_documents
from midepoch.stages.pack.packs import (
    Packs,
    PackStage,
    Planned,
    PlannedPacks,
    cut,
    pack_form,
)
from midepoch.values.columns import Form

DOCUMENTS_AT_ONCE = 16
"""How many documents are read together, of those that come one by one: few, as each may cost a call."""
PACKS_AT_ONCE = 1 << 10
"""The documents of this many packs are looked up together for their keys."""


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

    def packs(
        self, starts: I64, stops: I64, skips: bool, stage: PackStage, form: Form, context: Context
    ) -> Iterator[SingleItem]:
        """The packs with these tokens. If earlier stages may skip, their cursors have a check."""
        layout = cut(self.documents.lengths, self.ends, starts, stops)
        firsts = layout.bounds[:-1]
        keys = keys_inside(self.documents.keys[layout.documents[firsts]], layout.starts[firsts])
        yield from stage.make_items(self.documents, layout, self._cursors(layout, skips), keys, form, context)

    def _cursors(self, layout: Packs, skips: bool) -> I64:
        """The cursor after each pack: after a document that ends there, else inside the one that does not."""
        lasts = layout.bounds[1:] - 1
        documents, tokens = layout.documents[lasts], layout.stops[lasts]
        whole = tokens == self.documents.lengths[documents]
        of_inputs = self.cursors[documents, whole.astype(np.int64)]
        own_numbers = [tokens]
        if skips:
            own_numbers.append(np.array([check_of(self.documents.keys[[document]]) for document in documents]))
        return np.column_stack([of_inputs, np.where(whole, 0, own_numbers).T])


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

    def is_ragged(self, name: str) -> bool:
        return name == "cu_seqlens"  # packs have different numbers of documents, and as many tokens

    def read(self, inputs: Flow, cursor: Cursor, context: Context) -> Iterator[SingleItem]:
        waiting: list[StreamRun] = []
        form = pack_form(inputs)
        _, start, _ = split_cursor(cursor, inputs.skips)
        for last in self._runs(inputs, cursor, context):
            waiting.append(last)
            if packs := (int(last.ends[-1]) - start) // self.spec.length:
                run = _join(waiting)
                starts = start + self.spec.length * np.arange(packs)
                yield from run.packs(starts, starts + self.spec.length, inputs.skips, self, form, context)
                start += packs * self.spec.length
                waiting = [run.after(start)] if run.ends[-1] > start else []
        if waiting:
            run = _join(waiting)
            yield from run.packs(np.array([start]), run.ends[-1:], inputs.skips, self, form, context)

    def _runs(self, inputs: Flow, cursor: Cursor, context: Context) -> Iterator[StreamRun]:
        """The documents that have tokens to pack, from the cursor on."""
        start, delivered, check = split_cursor(cursor, inputs.skips)
        before, tokens = np.array([start], np.int64), 0
        reader = DocumentReader(self.spec, context)
        for run in reader.runs(inputs, repeat(DOCUMENTS_AT_ONCE)):
            compare_check(check, run.keys[:1], self.spec.number, context)
            documents = reader.read(run)
            cursors = np.stack([np.concatenate([before, run.cursors[:-1]]), run.cursors], axis=1)
            before = run.cursors[-1:]
            kept = documents.lengths > 0
            if self.spec.overlong == "drop":
                kept &= documents.lengths <= self.spec.length
            check_delivered(delivered, int(documents.lengths[0]) if kept[0] else 0)
            delivered = check = 0
            if kept.any():
                documents = documents if kept.all() else documents.keep(kept)
                ends = tokens + np.cumsum(documents.lengths)
                tokens = int(ends[-1])
                yield StreamRun(documents, ends, cursors[kept])
        compare_check(check, np.empty(0, np.int64), self.spec.number, context)
        if delivered:
            raise CheckpointMismatchError(
                "The state is inside a document that does not exist any more. Restore the data, or start the epoch "
                "over without the state."
            )

    def counted(self, inputs: CountedItems, cursor: Cursor, context: Context) -> CountedItems:
        return PlannedStream(inputs, self, CHUNK, cursor[len(inputs.cursor(0)) :], context)

    def describe(self) -> dict[str, Any] | None:
        return self.spec.describe() | {"strategy": "concat"}


def _join(runs: Sequence[StreamRun]) -> StreamRun:
    """Consecutive runs as one."""
    if len(runs) == 1:
        return runs[0]
    documents = join_documents([run.documents for run in runs])
    return StreamRun(
        documents, np.concatenate([run.ends for run in runs]), np.concatenate([run.cursors for run in runs])
    )


class PlannedStream(PlannedPacks):
    """The packs of one stream of tokens, counted.

    What ``Groups`` counts are tokens: those of ``CHUNK`` documents at a time, when they are needed.
    """

    _last: tuple[int, I64] = (-1, np.empty(0, np.int64))

    def _lengths(self, chunk: int) -> I64:
        """The tokens that each document of a chunk adds to the stream."""
        if self._last[0] != chunk:
            lengths = self._lengths_of(self._members(chunk))
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

    def _checked_inputs(self) -> I64:
        return np.array([0])

    def _plans(self, numbers: I64) -> Iterator[Planned]:
        for begin in range(0, len(numbers), PACKS_AT_ONCE):
            layout = self._layout(numbers[begin : begin + PACKS_AT_ONCE])
            firsts = layout.bounds[:-1]
            yield Planned(layout, layout.documents[firsts], layout.starts[firsts])

    def _layout(self, numbers: I64) -> Packs:
        """The pieces of the documents that hold the tokens of these packs."""
        self.has(int(numbers[-1]) + 1)
        starts = self._delivered + numbers * self._spec.length
        stops = np.minimum(starts + self._spec.length, self._ends[-1])
        documents, all_lengths, all_ends = [], [], []
        for chunk in range(bisect_right(self._ends, starts[0]), bisect_left(self._ends, stops[-1]) + 1):
            lengths = self._lengths(chunk)
            ends = np.cumsum(lengths) + self._before(chunk)
            begins = ends - lengths
            # A document with tokens is needed if the first pack that stops after its begin starts before its end.
            pack = np.searchsorted(stops, begins, "right")
            inside = np.flatnonzero((lengths > 0) & (np.append(starts, self._ends[-1])[pack] < ends))
            documents.append(chunk * CHUNK + inside)
            all_lengths.append(lengths[inside])
            all_ends.append(ends[inside])
        layout = cut(np.concatenate(all_lengths), np.concatenate(all_ends), starts, stops)
        return replace(layout, documents=np.concatenate(documents)[layout.documents])

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
