"""Packs that are cut from one stream of all documents' tokens, read in order, or planned from the lengths of a survey.

Tokens are numbered from the start of the document that holds the first token to deliver. With lengths known, each
reader finds the documents of the packs that it delivers, and reads no others. Both ways of reading make the same packs.
The cursor has the shape of that of a group: the start of the next pack's first document, and how many of its tokens
are delivered.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, ClassVar

import numpy as np

from midepoch._common.hashing import I64
from midepoch.checkpoint.lanes import Cursor
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
from midepoch.stages.pack.packs import Packs, PackStage, Planned, PlannedPacks, pack_form

DOCUMENTS_AT_ONCE = 16
"""How many documents are read together, of those that come one by one: few, as each may cost a call."""
PACKS_AT_ONCE = 1 << 10
"""The documents of this many packs are looked up together for their keys."""


def cut(lengths: I64, ends: I64, starts: I64, stops: I64) -> Packs:
    """Cut packs from a stream of documents that have tokens: the tokens from ``starts`` to ``stops``.

    ``ends`` says where in the stream each document ends. Documents may be missing where no pack is cut.
    """
    firsts = np.searchsorted(ends, starts, "right")
    counts = np.searchsorted(ends, stops, "left") - firsts + 1
    bounds = np.concatenate([[0], np.cumsum(counts)])
    documents = np.repeat(firsts - bounds[:-1], counts) + np.arange(bounds[-1])
    of_documents = lengths[documents]
    begins = ends[documents] - of_documents
    first_tokens = np.maximum(np.repeat(starts, counts) - begins, 0)
    return Packs(documents, first_tokens, np.minimum(np.repeat(stops, counts) - begins, of_documents), bounds)


class PlannedStream(PlannedPacks[tuple[I64, I64]]):
    """The packs of one stream of tokens, counted.

    What ``Groups`` counts are tokens: those of many documents at a time, when they are needed.
    """

    _checked_inputs = 1

    def _look_up(self, group: int) -> tuple[I64, I64]:
        """The tokens that each document of a chunk adds to the stream, and the number of the token after its last."""
        sizes = self._stage.sizes(self._lengths_of(self._members(group)))
        return sizes, np.cumsum(sizes) + self._before(group)

    def _outputs(self, group: int) -> int:
        return int(self._known_of(group)[0].sum())

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
        sizes, ends = self._known_of(chunk)
        inside = int(np.searchsorted(ends, end, "left"))
        is_whole = ends[inside] == end
        tokens = 0 if is_whole else end - int(ends[inside] - sizes[inside])
        document = chunk * self._size + inside + int(is_whole)
        return (*self._inputs.cursor(document), tokens, *[0] * (len(self._own_numbers) - 1))

    def _begun(self, documents: int, delivered: int) -> tuple[I64, I64]:
        return np.array([documents]), np.array([delivered])

    def _packs_before(self, documents: int, delivered: int, tokens: int) -> int:
        return -(-tokens // self._spec.length)

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
        documents, all_sizes, all_ends = [], [], []
        for chunk in range(bisect_right(self._ends, starts[0]), bisect_left(self._ends, stops[-1]) + 1):
            sizes, ends = self._known_of(chunk)
            begins = ends - sizes
            # A document with tokens is needed if the first pack that stops after its begin starts before its end.
            pack = np.searchsorted(stops, begins, "right")
            inside = np.flatnonzero((sizes > 0) & (np.append(starts, self._ends[-1])[pack] < ends))
            documents.append(chunk * self._size + inside)
            all_sizes.append(sizes[inside])
            all_ends.append(ends[inside])
        layout = cut(np.concatenate(all_sizes), np.concatenate(all_ends), starts, stops)
        return replace(layout, documents=np.concatenate(documents)[layout.documents])

    def _outputs_with(self, group: int, inside: int) -> I64:
        sizes, ends = self._known_of(group)
        end = int(ends[inside]) - self._delivered
        first = max(0, end - int(sizes[inside]))
        return np.arange(first // self._spec.length, -(-end // self._spec.length) if end > first else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackStream(PackStage):
    """Cut one stream of all documents' tokens every ``length``. All packs are full but the last of a lane."""

    planned: ClassVar[type[PlannedPacks[Any]]] = PlannedStream

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
        start, delivered, check = split_cursor(cursor, inputs.skips)
        before, reader, length = np.array([start], np.int64), DocumentReader(self.spec, context), self.spec.length
        waiting: list[Documents] = []
        first, tokens = delivered, 0  # of the documents that wait: the next token to deliver, and how many there are
        for run in reader.runs(inputs, repeat(DOCUMENTS_AT_ONCE)):
            compare_check(check, run.keys[:1], self.spec.number, context)
            documents = reader.read(run)
            sizes = self.sizes(documents.lengths)
            check_delivered(delivered, int(sizes[0]))
            delivered = check = 0
            cursors = np.stack([np.concatenate([before, run.cursors[:-1]]), run.cursors], axis=1)
            before = run.cursors[-1:]
            if sizes.any():
                waiting.append(replace(documents, cursors=cursors).keep(sizes > 0))
                tokens += int(sizes.sum())
            if tokens >= first + length:
                joined = join_documents(waiting)
                stops = np.arange(first + length, tokens + 1, length)
                yield from self._packs(joined, stops - length, stops, inputs, context)
                left = joined.keep(np.cumsum(joined.lengths) > stops[-1])
                left_tokens = int(left.lengths.sum())
                waiting = [left] if left_tokens else []
                first, tokens = int(stops[-1]) - (tokens - left_tokens), left_tokens
        compare_check(check, np.empty(0, np.int64), self.spec.number, context)
        check_delivered(delivered, 0)
        if waiting:
            yield from self._packs(join_documents(waiting), np.array([first]), np.array([tokens]), inputs, context)

    def _packs(
        self, documents: Documents, starts: I64, stops: I64, inputs: Flow, context: Context
    ) -> Iterator[SingleItem]:
        """The packs with these tokens of documents that have some."""
        layout = cut(documents.lengths, np.cumsum(documents.lengths), starts, stops)
        firsts = layout.bounds[:-1]
        keys = keys_inside(documents.keys[layout.documents[firsts]], layout.starts[firsts])
        cursors = cursors_after(documents, layout, inputs.skips)
        yield from self.make_items(documents, layout, cursors, keys, pack_form(inputs), context)

    def describe(self) -> dict[str, Any] | None:
        return self.spec.describe() | {"strategy": "concat"}


def cursors_after(documents: Documents, layout: Packs, skips: bool) -> I64:
    """The cursor after each pack: after a document that ends there, else inside the one that does not.

    If earlier stages may skip inputs, it has a check of that document.
    """
    lasts = layout.bounds[1:] - 1
    inside, tokens = layout.documents[lasts], layout.stops[lasts]
    is_whole = tokens == documents.lengths[inside]
    own_numbers = [tokens]
    if skips:
        own_numbers.append(np.array([check_of(documents.keys[[document]]) for document in inside]))
    of_inputs = documents.cursors[inside, is_whole.astype(np.int64)]
    return np.column_stack([of_inputs, np.where(is_whole, 0, own_numbers).T])
