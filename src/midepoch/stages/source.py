"""The source: the rows of a lane, read in whole blocks and handed on column-wise."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from midepoch.order import Order
from midepoch.permute import I64
from midepoch.stages.blocks import Data, Files, HeldBlocks
from midepoch.stages.flow import Run
from midepoch.values import Rows

STEP_ROWS, STEP_BYTES = 8192, 32 << 20
RUN_ROWS, RUN_BYTES = 1024, 8 << 20
SLICE_ROWS = 64


@dataclass(frozen=True, slots=True)
class Pace:
    """How many rows are read, and handed on, at a time. It changes memory and speed, never what is delivered."""

    step: int
    run: int

    @classmethod
    def of(cls, row_bytes: int, lanes: int) -> "Pace":
        """What is reasonable when ``lanes`` lanes are read side by side."""
        run = max(1, min(max(16, RUN_ROWS // lanes), RUN_BYTES // row_bytes))
        return cls(max(run, min(STEP_ROWS // lanes, STEP_BYTES // row_bytes)), run)


class Lane:
    """One lane of an epoch: the rows of an order, from any position on."""

    def __init__(self, files: Files, order: Order, pace: Pace) -> None:
        self._order, self._pace = order, pace
        self._starts = files.index.block_starts
        self._blocks = HeldBlocks(files)
        self._pieces = order.pieces("block")
        self._next_piece = -1

    def runs(self, start: int, stop: int, *, rows: int = 1, phase: int = 0, stride: int = 1) -> Iterator[Run]:
        """The rows at the positions from ``start`` to ``stop``.

        With a stride, only those of every ``stride``-th group of ``rows`` rows, beginning with group ``phase``.
        """
        for positions in self._steps(start + phase * rows, stop, rows, stride):
            numbers = self._order.rows(positions)
            blocks = np.searchsorted(self._starts, numbers, "right") - 1
            self._blocks.load(np.unique(blocks).tolist())
            self._look_ahead(int(positions[-1]), stop)
            for begin, batch in self._read(numbers, blocks):
                end = begin + batch.num_rows
                yield Run(Rows(batch), positions[begin:end, None] + 1, numbers[begin:end])

    def _steps(self, first: int, stop: int, rows: int, stride: int) -> Iterator[I64]:
        """The positions to read, some at a time."""
        groups = max(1, self._pace.step // rows)
        while first < stop:
            if stride == 1:
                end = self._step_end(first, stop)
                yield np.arange(first, end)
                first = end
            else:
                begins = np.arange(first, min(stop, first + groups * rows * stride), rows * stride)
                positions = (begins[:, None] + np.arange(rows)).ravel()
                yield positions[positions < stop]
                first += groups * rows * stride

    def _step_end(self, first: int, stop: int) -> int:
        """Where a step from ``first`` ends: with a piece of the order if that is neither too near nor too far."""
        following = int(np.searchsorted(self._pieces, first + self._pace.run))
        near = int(self._pieces[min(following, len(self._pieces) - 1)])
        return min(stop, near if near <= first + 2 * self._pace.step else first + self._pace.step)

    def _look_ahead(self, position: int, stop: int) -> None:
        """Have the blocks of the piece after this position read, once a piece and no more than a few steps' worth."""
        piece = int(np.searchsorted(self._pieces, position, "right"))
        if piece == self._next_piece or piece >= len(self._pieces) - 1 or self._pieces[piece] >= stop:
            return
        self._next_piece = piece
        begin, end = int(self._pieces[piece]), int(self._pieces[piece + 1])
        sample = self._order.rows(np.arange(begin, min(end, stop, begin + STEP_ROWS)))
        blocks = np.unique(np.searchsorted(self._starts, sample, "right") - 1)
        ahead = np.cumsum(np.diff(self._starts)[blocks]) <= 4 * STEP_ROWS
        self._blocks.ahead(blocks[: max(1, int(ahead.sum()))].tolist())

    def _read(self, numbers: I64, blocks: I64) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows with these numbers as batches in this order, each with the place where it begins."""
        breaks = np.flatnonzero((np.diff(numbers) != 1) | (np.diff(blocks) != 0)) + 1
        if len(breaks) * SLICE_ROWS <= len(numbers):
            return self._slices(numbers, blocks, [0, *breaks.tolist(), len(numbers)])
        return self._gather(numbers, blocks)

    def _slices(self, numbers: I64, blocks: I64, bounds: list[int]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Rows in stretches that lie together in a block: views, no copies."""
        for begin, end in pairwise(bounds):
            block = int(blocks[begin])
            first = int(self._starts[block])
            for at in range(begin, end, self._pace.run):
                count = min(end - at, self._pace.run)
                self._blocks.check(block)
                yield at, _batch(self._blocks[block].slice(int(numbers[at]) - first, count))

    def _gather(self, numbers: I64, blocks: I64) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Rows from all over: fetched block by block in rising order, then put in the order asked for."""
        rising = np.argsort(numbers)
        ordered, owners = numbers[rising], blocks[rising]
        parts = []
        for begin, end in pairwise([0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(numbers)]):
            block = int(owners[begin])
            local = ordered[begin:end] - self._starts[block]
            data = self._blocks[block]
            if local[-1] - local[0] == len(local) - 1:
                parts.append(_batch(data.slice(int(local[0]), len(local))))
            else:
                parts.append(_batch(data.take(pa.array(local))))
        together = pa.concat_batches(parts) if len(parts) > 1 else parts[0]
        places = np.empty_like(rising)
        places[rising] = np.arange(len(rising))
        for at in range(0, len(numbers), self._pace.run):
            yield at, together.take(pa.array(places[at : at + self._pace.run]))


def _batch(data: Data) -> pa.RecordBatch:
    """The rows as one record batch."""
    if isinstance(data, pa.RecordBatch):
        return data
    batches = data.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
