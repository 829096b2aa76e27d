"""The source: the rows of a lane, read in whole blocks and handed on column-wise."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from midepoch._common.types import I64
from midepoch.order.orders import Order
from midepoch.sources.blocks import Data, Files, HeldBlocks
from midepoch.stages.flow import Run
from midepoch.values.pool import PickedRows, RowPool
from midepoch.values.rows import Rows
from midepoch.values.take import take

STEP_ROWS, STEP_BYTES = 8192, 32 << 20
RUN_ROWS, RUN_BYTES = 1024, 8 << 20
NARROW_BYTES = 512 << 10
SLICE_ROWS = 64
SPARSE = 4
VIEWS = 4096
MOST_AHEAD = 256


@dataclass(frozen=True, slots=True)
class ReadSizes:
    """How many rows are read, and handed on, at a time. It changes memory and speed, never what is delivered."""

    step: int
    run: int
    views: int
    """How many blocks that are views of their files are kept at hand."""

    @classmethod
    def of(cls, row_bytes: int, lanes: int, *, coded: bool = False) -> "ReadSizes":
        """What is reasonable when ``lanes`` lanes are read side by side. Rows that are ``coded`` may be larger."""
        small = not coded and row_bytes * RUN_ROWS < NARROW_BYTES  # then a run of few rows is not worth it
        rows = min(STEP_ROWS, NARROW_BYTES // row_bytes) if small else RUN_ROWS
        run = max(1, min(max(16, rows // lanes), RUN_BYTES // row_bytes))
        return cls(max(run, min(STEP_ROWS // lanes, STEP_BYTES // row_bytes)), run, max(16, VIEWS // lanes))


class Lane:
    """One lane of an epoch: the rows of an order, from any position on."""

    def __init__(self, files: Files, order: Order, sizes: ReadSizes) -> None:
        self._order, self._sizes = order, sizes
        self._starts = files.index.block_starts
        self._blocks = HeldBlocks(files, sizes.views)
        self._files, self._all_mapped = files, files.all_mapped
        self._pieces = order.pieces("block")
        self._next_piece = -1
        self._ahead: dict[int, I64] = {}

    def runs(self, start: int, stop: int, *, rows: int = 1, phase: int = 0, stride: int = 1) -> Iterator[Run]:
        """The rows at the positions from ``start`` to ``stop``.

        With a stride, only those of every ``stride``-th group of ``rows`` rows, beginning with group ``phase``.
        """
        for positions in self._steps(start + phase * rows, stop, rows, stride):
            numbers = self._order.rows(positions)
            breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
            scattered = len(breaks) * SLICE_ROWS > len(numbers)
            read = self._gather if scattered else self._slices
            for begin, some in read(numbers, breaks, lambda: self._look_ahead(int(positions[-1]), stop)):  # noqa: B023
                end = begin + len(some)
                yield Run(some, positions[begin:end, None] + 1, numbers[begin:end])

    def _steps(self, first: int, stop: int, rows: int, stride: int) -> Iterator[I64]:
        """The positions to read, some at a time."""
        # Of files that are not mapped, the rows of others between ours are decoded too: they count.
        groups = max(1, self._sizes.step // (rows if self._all_mapped else rows * stride))
        begun = first
        while first < stop:
            if stride == 1:
                end = self._step_end(first, stop)
                if first == begun:  # whoever has just resumed waits for one piece, not for a whole step
                    end = min(end, int(self._pieces[np.searchsorted(self._pieces, first, "right")]))
                yield np.arange(first, end)
                first = end
            else:
                begins = np.arange(first, min(stop, first + groups * rows * stride), rows * stride)
                positions = (begins[:, None] + np.arange(rows)).ravel()
                yield positions[positions < stop]
                first += groups * rows * stride

    def _step_end(self, first: int, stop: int) -> int:
        """Where a step from ``first`` ends: with a piece of the order if one ends neither too near nor too far."""
        last = int(self._pieces[int(np.searchsorted(self._pieces, first + self._sizes.step, "right")) - 1])
        if last < first + self._sizes.run:
            following = int(np.searchsorted(self._pieces, first + self._sizes.step))
            near = int(self._pieces[min(following, len(self._pieces) - 1)])
            last = near if near <= first + 2 * self._sizes.step else first + self._sizes.step
        return min(stop, last)

    def _look_ahead(self, position: int, stop: int) -> None:
        """Have the blocks behind this position read, once a piece: those of the next one, or as many as are due.

        Due are those of the next step, and so many bytes of them.
        """
        if self._all_mapped or (self._files.is_remote and not self._files.bytes_ahead):
            return
        piece = int(np.searchsorted(self._pieces, position, "right"))
        if piece == self._next_piece or piece >= len(self._pieces) - 1 or self._pieces[piece] >= stop:
            return
        self._next_piece = piece
        known, self._ahead = self._ahead, {}
        blocks, nbytes, step_end = list[int](), 0, self._step_end(position + 1, stop)
        while piece < len(self._pieces) - 1 and self._pieces[piece] < stop and len(blocks) < MOST_AHEAD:
            some = known[piece] if piece in known else self._blocks_of(piece, stop)
            self._ahead[piece] = some
            blocks += some.tolist()
            nbytes += int(self._files.index.places[1][some].sum())
            piece += 1
            if nbytes >= self._files.bytes_ahead and self._pieces[piece] >= step_end:
                break
        more = piece < len(self._pieces) - 1 and self._pieces[piece] < stop
        self._blocks.ahead(dict.fromkeys(blocks), more=bool(more))

    def _blocks_of(self, piece: int, stop: int) -> I64:
        """The blocks of a piece, no more than a few steps' worth."""
        begin, end = int(self._pieces[piece]), int(self._pieces[piece + 1])
        if begin == end:  # a block without rows
            return np.empty(0, np.int64)
        sample = self._order.rows(np.arange(begin, min(end, stop, begin + STEP_ROWS)))
        low, high = int(sample.min()), int(sample.max())
        # Those of most pieces lie together, and then need not be sorted.
        rising = np.arange(low, high + 1) if high - low < len(sample) else np.sort(sample)
        blocks = np.array([block for block, _, _ in self._spans(rising, 0, len(rising))])
        ahead = np.cumsum(self._starts[blocks + 1] - self._starts[blocks]) <= 4 * STEP_ROWS
        return blocks[: max(1, int(ahead.sum()))]

    def _slices(self, numbers: I64, breaks: I64, loaded: Callable[[], None]) -> Iterator[tuple[int, Rows]]:
        """Rows in stretches that lie together, each with its place in the step: views, no copies."""
        stretches = pairwise([0, *breaks.tolist(), len(numbers)])
        spans = [span for begin, end in stretches for span in self._spans(numbers, begin, end)]
        self._blocks.load(sorted({block for block, _, _ in spans}), loaded)
        for block, begin, end in spans:
            first = int(self._starts[block])
            for at in range(begin, end, self._sizes.run):
                count = min(end - at, self._sizes.run)
                if self._blocks.is_view(block):  # it shows whatever the file now holds
                    self._files.check([block])
                yield at, Rows(_batch(self._blocks[block].slice(int(numbers[at]) - first, count)))

    def _gather(self, numbers: I64, _: I64, loaded: Callable[[], None]) -> Iterator[tuple[int, Rows]]:
        """Rows from all over: fetched block by block in rising order, then picked in the order asked for."""
        rising, ordered = _rising(numbers)
        distinct = bool((ordered[1:] > ordered[:-1]).all())  # a selection may name a row more than once
        spans = list(self._spans(ordered, 0, len(ordered)))
        held = sum(int(self._starts[block + 1] - self._starts[block]) for block, _, _ in spans)
        sparse = not self._all_mapped and held > SPARSE * len(numbers)
        if not sparse:
            self._blocks.load([block for block, _, _ in spans], loaded)
        parts, views = [], []
        for block, begin, end in spans:
            if sparse:  # a few rows each of many blocks: never hold all of them
                self._blocks.load([block])
            data, count = self._blocks[block], end - begin
            local = ordered[begin:end] - self._starts[block]
            if distinct and local[-1] - local[0] == count - 1:
                data = data if count == data.num_rows else data.slice(int(local[0]), count)
                views += [block] if self._blocks.is_view(block) else []
            else:
                data = take(data, local)
            parts.append(_batch(data))
        places = np.empty_like(rising)
        places[rising] = np.arange(len(rising))
        pool = RowPool(parts, lambda: self._files.check(views))
        for at in range(0, len(numbers), self._sizes.run):
            yield at, Rows(PickedRows(pool, places[at : at + self._sizes.run]))

    def _spans(self, rising: I64, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The blocks of rising rows: ``(block, begin, end)`` says which of the rows lie in it."""
        first, last = np.searchsorted(self._starts, rising[[begin, end - 1]], "right") - 1
        if last - first < end - begin:
            blocks = np.arange(first, last + 1)
            ends = np.searchsorted(rising[begin:end], self._starts[first + 1 : last + 2]) + begin
        else:
            owners = np.searchsorted(self._starts, rising[begin:end], "right") - 1
            changes = np.flatnonzero(np.diff(owners)) + 1
            blocks, ends = owners[np.append(0, changes)], np.append(changes, end - begin) + begin
        at = begin
        for block, until in zip(blocks.tolist(), ends.tolist(), strict=True):
            if until > at:
                yield block, at, until
            at = until


def _rising(numbers: I64) -> tuple[I64, I64]:
    """The places of rising numbers, and those numbers: one sort of both in one word is quicker than an argsort.

    The numbers of the rows of a step leave room for their places: 2**43 rows a million at a time still do.
    """
    bits = len(numbers).bit_length()
    words = np.sort(numbers << bits | np.arange(len(numbers)))
    return words & ((1 << bits) - 1), words >> bits


def _batch(data: Data) -> pa.RecordBatch:
    """The rows as one record batch."""
    if isinstance(data, pa.RecordBatch):
        return data
    batches = data.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
