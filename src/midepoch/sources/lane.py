"""The rows of one lane: read in whole blocks, and handed on as columns."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from midepoch._common.types import I64
from midepoch.order.orders import Order
from midepoch.order.windows import distinct
from midepoch.sources.blocks import HeldBlocks
from midepoch.sources.fetcher import BlockFetcher
from midepoch.sources.read_block import Data
from midepoch.stages.flow import RowRun
from midepoch.values.file_checks import in_memory
from midepoch.values.origin import RowOrigin
from midepoch.values.pool import PickedRows, RowPool, ScatteredRows
from midepoch.values.rows import Rows
from midepoch.values.slices import BlockSlice
from midepoch.values.take import take

STEP_ROWS, STEP_BYTES = 8192, 32 << 20
WINDOW_STEP_ROWS, WINDOW_STEP_BYTES = 32768, 8 << 20
ROW_STEP_BYTES = 64 << 20
"""The bytes of a step of all lanes together if any row may follow any other: the more rows are picked from a block at a
time, the faster."""
RUN_ROWS, RUN_BYTES = 1024, 8 << 20
NARROW_BYTES = 512 << 10
SLICE_ROWS = 64
"""Adjacent rows are sliced if this many or more lie together on average; fewer are picked one by one."""
PICK_ROWS = 32
"""The same for the rows of one block, if the step as a whole has scattered rows."""
SPARSE = 4
"""If decoded blocks hold more than this many times the rows wanted, they are decoded and dropped one by one, unless
they are those of a window."""
FIRST_ROWS = 256
"""How many rows of mapped files are read together at first."""
VIEWS = 4096
FIRST_BLOCKS_AHEAD = 256
MAX_ARRAYS = 64
"""How many arrays of wanted positions are read together, at most: who makes them must not get too far ahead."""


@dataclass(frozen=True, slots=True)
class ReadSizes:
    """How much a lane reads and hands on at a time. This changes memory and speed, never which rows are delivered."""

    step: int
    """How many rows are read together."""
    run: int
    """How many rows are handed on together, at most."""
    views: int
    """How many blocks that are views of their files are kept."""

    @classmethod
    def of(
        cls,
        row_bytes: int,
        lanes: int,
        *,
        has_dictionaries: bool = False,
        scattered_bytes: int = 0,
        is_decoded: bool = False,
    ) -> "ReadSizes":
        """Sizes for a reader of ``lanes`` lanes at once.

        Rows of a dictionary column may be larger than ``row_bytes``, which counts only their codes. If rows are
        scattered, a step picks them from many blocks. That has a cost for each block, so more rows are picked together:
        about ``scattered_bytes``. Blocks that are decoded are in memory as a whole, so longer runs of their rows cost
        little more.
        """
        narrow = not has_dictionaries and row_bytes * RUN_ROWS < NARROW_BYTES  # longer runs cost little memory then
        rows = 2 * RUN_ROWS if is_decoded and not has_dictionaries else RUN_ROWS
        rows = max(rows, min(STEP_ROWS, NARROW_BYTES // row_bytes)) if narrow else rows
        run = max(1, min(max(16, rows // lanes), RUN_BYTES // row_bytes))
        step = max(run, min(STEP_ROWS // lanes, STEP_BYTES // row_bytes))
        if not has_dictionaries:
            step = max(step, min(WINDOW_STEP_ROWS // lanes, scattered_bytes // row_bytes))
        return cls(step, run, max(16, VIEWS // lanes))


class BlockRows(NamedTuple):
    """Which rows of a sorted array lie in a block: those from ``begin`` to ``end``."""

    block: int
    begin: int
    end: int


class LaneRows:
    """The rows of a lane in its order, from any position on.

    Rows are read in steps. Within a step, rows that are adjacent in their file are sliced without a copy, and scattered
    rows are picked from a pool of the step's blocks.
    """

    def __init__(self, fetcher: BlockFetcher, order: Order, sizes: ReadSizes, window_bytes: int = 0) -> None:
        """Read the rows of an order. Its pieces are windows of at most ``window_bytes``, unless that is 0.

        The decoded blocks of a window are held until the lane leaves the window.
        """
        self._order, self._sizes, self._window_bytes = order, sizes, window_bytes
        self._block_starts = fetcher.blocks.block_starts
        self._held = HeldBlocks(fetcher, sizes.views)
        self._fetcher, self._all_mapped = fetcher, fetcher.all_mapped
        # The blocks of a window take most of the memory, and the next window is read ahead as far as both fit it.
        self._bytes_ahead = fetcher.bytes_ahead if fetcher.is_remote or not window_bytes else 0
        self._pieces = order.piece_starts("block")
        self._next_piece = -1
        """From which piece on more blocks are requested."""
        self._blocks_ahead: dict[int, tuple[list[int], int]] = {}
        """The blocks of pieces that were requested, and their bytes."""

    def runs(self, start: int, stop: int) -> Iterator[RowRun]:
        """The rows at the positions from ``start`` to ``stop``."""
        begin = start
        while begin < stop:
            end = self._step_end(begin, stop) if begin > start else self._first_step_end(begin, stop)
            yield from self._step(np.arange(begin, end), stop)
            begin = end

    def runs_at(self, positions: Iterator[I64], stop: int) -> Iterator[RowRun]:
        """The rows at rising positions below ``stop``. They come in arrays of any size, and are read in steps.

        An empty array ends a step: the rows before it are needed before the next positions are known. After a resume,
        the first row waits for one array only.
        """
        waiting, rows, end, is_first = list[I64](), 0, 0, True
        for array in positions:
            ends_now = is_first or not len(array) or len(waiting) == MAX_ARRAYS
            if len(array):
                end = end if waiting else self._first_step_end(int(array[0]), stop)
                waiting.append(array)
                rows += len(array)
            if not waiting or not (ends_now or self._is_step(waiting[-1], rows, end)):
                continue
            left, waiting, rows = np.concatenate(waiting), [], 0
            while len(left):
                taken = self._taken(left, end)
                if taken == len(left) and not ends_now:
                    waiting, rows = [left], len(left)
                    break
                yield from self._steps_at(left[:taken], stop, is_first=is_first)
                left, is_first = left[taken:], False
                end = self._step_end(int(left[0]), stop) if len(left) else 0
        if waiting:
            yield from self._steps_at(np.concatenate(waiting), stop)

    def _is_step(self, last: I64, rows: int, end: int) -> bool:
        """True if positions fill a step. Rows of others between them are decoded too, so they count."""
        return rows >= self._sizes.step if self._all_mapped else bool(last[-1] >= end - 1)

    def _taken(self, positions: I64, end: int) -> int:
        """How many positions are read in a step that ends at ``end``."""
        before_end = int(np.searchsorted(positions, end))
        if not self._all_mapped or before_end == end - positions[0]:
            return before_end
        return min(len(positions), self._sizes.step)

    def _steps_at(self, positions: I64, stop: int, *, is_first: bool = False) -> Iterator[RowRun]:
        for part in self._cut_at_windows(positions):
            yield from self._step(part, stop, is_first=is_first)

    def _step(self, positions: I64, stop: int, *, is_first: bool = False) -> Iterator[RowRun]:
        """The rows of one step. After the first, which may have few rows, most of its window is still to be read."""
        numbers, cursors = self._order.rows(positions), positions[:, None] + 1
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        scattered = len(breaks) * SLICE_ROWS > len(numbers)
        window = int(np.searchsorted(self._pieces, positions[-1], "right")) if self._window_bytes else None
        is_part = is_first and window is not None and bool(positions[-1] + 1 < self._pieces[window])
        read_ahead = _nothing if is_part else partial(self._read_ahead, int(positions[-1]), stop)
        if scattered:
            read = self._pick(numbers, read_ahead, window)
        else:
            read = self._slice(numbers, breaks, read_ahead, window)
        for begin, part in read:
            end = begin + len(part)
            yield RowRun(part, cursors[begin:end], numbers[begin:end])

    def _cut_at_windows(self, positions: I64) -> Iterator[I64]:
        """The positions, cut where the first window ends and where the last begins: steps share the blocks of those."""
        if not self._window_bytes or self._all_mapped:
            yield positions
            return
        ends = np.searchsorted(self._pieces, positions[[0, -1]], "right")
        cuts = np.searchsorted(positions, [self._pieces[ends[0]], self._pieces[ends[1] - 1]])
        yield from (part for part in np.split(positions, distinct(np.sort(cuts))) if len(part))

    def _step_end(self, begin: int, stop: int) -> int:
        """Where a step from ``begin`` ends: at the end of a piece, if one ends neither too early nor too late."""
        end = int(self._pieces[int(np.searchsorted(self._pieces, begin + self._sizes.step, "right")) - 1])
        if end < begin + self._sizes.run and (self._all_mapped or end <= begin):
            following = int(np.searchsorted(self._pieces, begin + self._sizes.step))
            next_end = int(self._pieces[min(following, len(self._pieces) - 1)])
            end = next_end if 2 * (next_end - begin) <= 5 * self._sizes.step else begin + self._sizes.step
        return min(stop, end)

    def _first_step_end(self, begin: int, stop: int) -> int:
        """After a resume, the first row waits for one piece only, of mapped files even for a few rows only."""
        most = FIRST_ROWS if self._all_mapped else stop - begin
        end = int(self._pieces[np.searchsorted(self._pieces, begin, "right")])
        return min(self._step_end(begin, stop), end, begin + most)

    def _read_ahead(self, position: int, stop: int) -> None:
        """Start to read the blocks after ``position``: those of the next step, and at least ``bytes_ahead`` of them.

        Does so once for each piece of the order, as soon as it is known how much blocks grow. Local blocks are
        requested when a quarter of the bytes ahead is used up, because each request walks through all pieces ahead.
        """
        if self._all_mapped or (self._fetcher.is_remote and not self._bytes_ahead):
            return
        piece = int(np.searchsorted(self._pieces, position, "right"))
        if piece < self._next_piece or not self._begins_before(piece, stop):
            return
        is_known, growth = self._fetcher.growth.is_known, self._fetcher.growth.factor
        self._next_piece = piece + is_known
        known, self._blocks_ahead = self._blocks_ahead, {}
        blocks, nbytes, step_end = list[int](), 0, self._step_end(position + 1, stop)
        # The first call comes before the first rows, so it requests few blocks. Each later one may double them.
        most = min(self._fetcher.blocks_ahead, max(FIRST_BLOCKS_AHEAD, 2 * sum(len(one) for one, _ in known.values())))
        if not is_known:  # few blocks now, and more as soon as it is
            most = min(most, self._fetcher.threads)
        while self._begins_before(piece, stop) and len(blocks) < most:
            if piece not in known:
                of_piece = self._blocks_of(piece, stop)
                known[piece] = of_piece, self._bytes_of(of_piece)
            self._blocks_ahead[piece] = known[piece]
            blocks += known[piece][0]
            nbytes += int(known[piece][1] * growth)
            piece += 1
            if nbytes >= self._bytes_ahead and self._pieces[piece] >= step_end:
                break
        used_up = 0 if self._fetcher.is_remote or not is_known else min(nbytes, self._bytes_ahead) // 4
        for number, (_, length) in self._blocks_ahead.items():
            used_up -= int(length * growth)
            if used_up < 0:
                break
            self._next_piece = number + 2
        requested = blocks if is_known else blocks[:most]
        more_follow = len(requested) < len(blocks) or self._begins_before(piece, stop)
        self._held.read_ahead(dict.fromkeys(requested), more_follow=more_follow)

    def _begins_before(self, piece: int, stop: int) -> bool:
        return bool(piece < len(self._pieces) - 1 and self._pieces[piece] < stop)

    def _blocks_of(self, piece: int, stop: int) -> list[int]:
        """The blocks of a piece, at most those of a few steps."""
        begin, end = int(self._pieces[piece]), int(self._pieces[piece + 1])
        if begin == end:  # a block without rows
            return []
        last = min(end, stop, begin + STEP_ROWS) - 1
        low, high = self._order.rows(np.array([begin, last])).tolist()
        if high - low != last - begin:  # else they are adjacent, and if that is a wrong guess, a block is read later
            numbers = self._order.rows(np.arange(begin, last + 1))
            low, high = int(numbers.min()), int(numbers.max())
        first = int(self._block_starts.searchsorted(low, "right")) - 1
        if high < self._block_starts[first + 1]:
            return [first]
        # The rows of most pieces are all rows of a range: no need to sort them.
        rising = np.arange(low, high + 1) if high - low <= last - begin else np.sort(numbers)
        blocks = np.array([part.block for part in self._by_block(rising, 0, len(rising))])
        near = np.cumsum(self._block_starts[blocks + 1] - self._block_starts[blocks]) <= 4 * STEP_ROWS
        growth = self._fetcher.growth.factor
        in_memory = np.cumsum(self._fetcher.blocks.block_lengths[blocks]) * growth
        near &= in_memory <= max(self._window_bytes, self._bytes_ahead, 4 * STEP_BYTES)
        # Blocks of the next window are decoded while this one is read, as far as both fit the bytes of one.
        room = max(self._window_bytes - int(self._bytes_of(self._held.decoded) * growth), self._bytes_ahead)
        fits = in_memory <= room
        return list(blocks[: max(1, int(near.sum()), int(fits.sum()))].tolist())

    def _bytes_of(self, blocks: Collection[int] | I64) -> int:
        """The bytes of blocks as the index says: in memory they may be more."""
        return int(self._fetcher.blocks.block_lengths[list(blocks)].sum()) if len(blocks) else 0

    def _slice(
        self, numbers: I64, breaks: I64, read_ahead: Callable[[], None], window: int | None
    ) -> Iterator[tuple[int, Rows]]:
        """Slices of blocks without a copy, each with its index in ``numbers``. Rows are adjacent between ``breaks``."""
        bounds = pairwise([0, *breaks.tolist(), len(numbers)])
        parts = [part for begin, end in bounds for part in self._by_block(numbers, begin, end)]
        self._held.load(sorted({part.block for part in parts}), read_ahead, window)
        for block, begin, end in parts:
            first = int(self._block_starts[block])
            check = self._fetcher.file_check([block]) if self._held.is_view(block) else None
            for index in range(begin, end, self._sizes.run):
                count = min(end - index, self._sizes.run)
                if check is not None:  # the file may have changed since the step began
                    check()
                rows, start = self._held[block], int(numbers[index]) - first
                origin = RowOrigin(numbers[index : index + count], self._fetcher.view.locate)
                if isinstance(rows, pa.RecordBatch):
                    yield index, Rows.of_block(BlockSlice.of(rows, start, count), check, origin)
                else:
                    yield index, Rows(_as_batch(rows.slice(start, count)), check=check, origin=origin)

    def _pick(self, numbers: I64, read_ahead: Callable[[], None], window: int | None) -> Iterator[tuple[int, Rows]]:
        """Scattered rows: read block by block in rising order, then picked in the order of ``numbers``."""
        indices, rising = _sorted(numbers)
        blocks, bounds = self._divided(rising, 0, len(rising))
        numbers_of_blocks = blocks.tolist()
        sparse = not self._all_mapped and self._is_sparse(blocks, len(numbers))
        if not sparse:
            self._held.load(numbers_of_blocks, read_ahead, window)
        breaks = np.flatnonzero(np.diff(rising) != 1) + 1
        first_breaks = np.searchsorted(breaks, bounds[:-1], "right").tolist()
        last_breaks = np.searchsorted(breaks, bounds[1:], "left").tolist()
        rows = rising - np.repeat(self._block_starts[blocks], np.diff(bounds))  # each numbered in its block
        batches, views = list[pa.RecordBatch | ScatteredRows](), list[int]()
        ranges = zip(numbers_of_blocks, pairwise(bounds.tolist()), first_breaks, last_breaks, strict=True)
        for block, (begin, end), first_break, last_break in ranges:
            if sparse:
                self._held.load([block])
            data, is_view, own_breaks = self._held[block], self._held.is_view(block), last_break - first_break
            if not own_breaks or (own_breaks + 1) * PICK_ROWS <= end - begin:
                cuts = pairwise([begin, *breaks[first_break:last_break].tolist(), end])
                batches += [_as_batch(data.slice(int(rows[first]), last - first)) for first, last in cuts]
            elif is_view and isinstance(data, pa.RecordBatch):
                batches.append(ScatteredRows(data, rows[begin:end]))
            else:
                batches.append(_as_batch(take(data, rows[begin:end])))
            if is_view:
                views.append(block)
        in_pool = np.empty_like(indices)
        in_pool[indices] = np.arange(len(indices))
        check = self._fetcher.file_check(views) if views else in_memory
        pool = RowPool(batches, check, RowOrigin(rising, self._fetcher.view.locate))
        for index in range(0, len(numbers), self._sizes.run):
            yield index, Rows(PickedRows(pool, in_pool[index : index + self._sizes.run]))

    def _is_sparse(self, blocks: I64, count: int) -> bool:
        """True if so few rows of blocks are wanted that the blocks are not held together."""
        rows = int((self._block_starts[blocks + 1] - self._block_starts[blocks]).sum())
        return len(blocks) > 1 and rows > SPARSE * count and self._bytes_of(blocks) > self._window_bytes

    def _by_block(self, rising: I64, begin: int, end: int) -> Iterator[BlockRows]:
        """The rising row numbers from index ``begin`` to ``end``, divided by block."""
        blocks, bounds = self._divided(rising, begin, end)
        for block, (first, last) in zip(blocks.tolist(), pairwise(bounds.tolist()), strict=True):
            yield BlockRows(block, first, last)

    def _divided(self, rising: I64, begin: int, end: int) -> tuple[I64, I64]:
        """The blocks of rising row numbers from index ``begin`` to ``end``, and the bounds of the rows of each."""
        first, last = np.searchsorted(self._block_starts, rising[[begin, end - 1]], "right") - 1
        if last - first < end - begin:
            ends = np.searchsorted(rising[begin:end], self._block_starts[first + 1 : last + 2]) + begin
            has_rows = np.diff(ends, prepend=begin) > 0
            blocks, ends = np.arange(first, last + 1)[has_rows], ends[has_rows]
        else:  # there are more blocks than rows: search for each row, not for each block
            owners = np.searchsorted(self._block_starts, rising[begin:end], "right") - 1
            changes = np.flatnonzero(np.diff(owners)) + 1
            blocks, ends = owners[np.append(0, changes)], np.append(changes, end - begin) + begin
        return blocks, np.append(begin, ends)


def _nothing() -> None:
    """Read nothing ahead."""


def _sorted(numbers: I64) -> tuple[I64, I64]:
    """``argsort`` and the sorted numbers. One sort of words that hold both is faster than an argsort.

    Row numbers leave enough bits for the indices: there is room for 2**43 rows in steps of a million.
    """
    bits = len(numbers).bit_length()
    words = np.sort(numbers << bits | np.arange(len(numbers)))
    return words & ((1 << bits) - 1), words >> bits


def _as_batch(data: Data) -> pa.RecordBatch:
    """Rows of a block as one record batch, copied if they come in several chunks."""
    if isinstance(data, pa.RecordBatch):
        return data
    batches = data.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
