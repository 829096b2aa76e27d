"""From a position of the epoch to a row of the dataset: pure functions that compose.

Rows are numbered over the whole dataset, file after file. An order maps the positions ``[0, size)`` to rows. It is
divided into *pieces*, runs of positions whose rows lie close together. A further shuffle moves a piece as one, and a
reader that reads ahead fetches it as one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np

from midepoch._common.hashing import key_of
from midepoch._common.lazy import cached_property
from midepoch._common.types import I64
from midepoch.order.permutation import permute

Level = Literal["file", "block", "row"]
PieceLevel = Literal["file", "block"]
PIECE_ROWS = 8192
"""The length of a piece where no rows lie together."""


class Order(Protocol):
    """A fixed sequence of rows."""

    @property
    def size(self) -> int:
        """The number of positions."""

    def rows(self, positions: I64) -> I64:
        """The rows at these positions."""

    def piece_starts(self, level: PieceLevel) -> I64:
        """The first position of each piece, rising, and ``size`` at the end."""


class Sequential:
    """File order, row order."""

    def __init__(self, file_starts: I64, block_starts: I64) -> None:
        """Take the first row of each file and of each block, both with the number of all rows at the end."""
        self._starts = {"file": file_starts, "block": block_starts}
        self.size = int(file_starts[-1])

    def rows(self, positions: I64) -> I64:
        return positions

    def piece_starts(self, level: PieceLevel) -> I64:
        return self._starts[level]


class Interval:
    """The positions from ``start`` to ``stop`` of another order."""

    def __init__(self, inner: Order, start: int, stop: int) -> None:
        self._inner = inner
        self._start = min(start, inner.size)
        self.size = max(0, min(stop, inner.size) - self._start)

    def rows(self, positions: I64) -> I64:
        return self._inner.rows(positions + self._start)

    def piece_starts(self, level: PieceLevel) -> I64:
        """The pieces of the inner order; the first and the last one may be cut."""
        starts = self._inner.piece_starts(level)
        first = np.searchsorted(starts, self._start, "right")
        last = np.searchsorted(starts, self._start + self.size, "left")
        return np.concatenate([[0], starts[first:last] - self._start, [self.size]]).astype(np.int64)


class ShuffledPieces:
    """Another order with its pieces permuted; the order within a piece stays."""

    def __init__(self, inner: Order, level: PieceLevel, key: int) -> None:
        self._inner, self._level = inner, level
        self._inner_starts = inner.piece_starts(level)
        count = len(self._inner_starts) - 1
        order = permute(np.arange(count), count, key)
        self._starts = np.concatenate([[0], np.cumsum(np.diff(self._inner_starts)[order])]).astype(np.int64)
        self._shifts = self._inner_starts[:-1][order] - self._starts[:-1]
        self._new_number = np.empty(count, np.int64)
        self._new_number[order] = np.arange(count)
        self.size = inner.size

    def rows(self, positions: I64) -> I64:
        if not len(positions):
            return self._inner.rows(positions)
        # Neighbouring positions are in a few pieces: searching only those stays in the processor's cache.
        first, last = self._starts.searchsorted([positions.min(), positions.max()], "right").tolist()
        piece = self._starts[first:last].searchsorted(positions, "right") + (first - 1)
        return self._inner.rows(positions + self._shifts[piece])

    def piece_starts(self, level: PieceLevel) -> I64:
        """The permuted pieces, or the blocks inside permuted files."""
        if level == self._level or self.size == 0:
            return self._starts
        if level == "file":
            raise scattered_files_error("shuffle(level='block')")
        return self._moved_blocks

    @cached_property
    def _moved_blocks(self) -> I64:
        blocks = self._inner.piece_starts("block")[:-1]
        piece = np.searchsorted(self._inner_starts[:-1], blocks, "right") - 1
        moved = self._starts[self._new_number[piece]] + blocks - self._inner_starts[piece]
        return np.unique(np.concatenate([moved, self._starts]))


def window_starts(piece_starts: I64, window: int) -> I64:
    """The first position of each window, and the end.

    A window is a run of whole pieces, of about ``window`` rows together, or one longer piece.
    """
    opens = np.flatnonzero(np.diff(piece_starts[:-1] // window, prepend=-1))
    return np.append(piece_starts[:-1][opens], piece_starts[-1]).astype(np.int64)


class ShuffledWindows:
    """Another order with the rows permuted inside windows, which begin at ``starts`` (and end with the last one)."""

    def __init__(self, inner: Order, starts: I64, key: int) -> None:
        self._inner, self._starts, self._key = inner, starts, key
        self.size = inner.size

    def rows(self, positions: I64) -> I64:
        if not len(positions):
            return self._inner.rows(positions)
        first, last = (self._window_of(int(position)) for position in (positions.min(), positions.max()))
        if first == last:
            return self._rows_of_one(positions, first)
        windows = np.searchsorted(self._starts, positions, "right") - 1
        permuted = np.empty_like(positions)
        for window in np.unique(windows).tolist():
            inside = windows == window
            permuted[inside] = self._permuted(positions[inside], window)
        return self._inner.rows(permuted)

    def _rows_of_one(self, positions: I64, window: int) -> I64:
        """The rows at positions of one window. For most of a window, the inner order is faster in its own order."""
        start, stop = int(self._starts[window]), int(self._starts[window + 1])
        permuted = self._permuted(positions, window)
        if 2 * len(positions) < stop - start:
            return self._inner.rows(permuted)
        rows: I64 = self._inner.rows(np.arange(start, stop))[permuted - start]
        return rows

    def _window_of(self, position: int) -> int:
        return int(np.searchsorted(self._starts, position, "right")) - 1

    def _permuted(self, positions: I64, window: int) -> I64:
        """The positions of the inner order that the permutation of a window puts at these positions."""
        start, stop = int(self._starts[window]), int(self._starts[window + 1])
        return start + permute(positions - start, stop - start, key_of(self._key, window))

    def piece_starts(self, level: PieceLevel) -> I64:
        """The windows."""
        if level == "file":
            raise scattered_files_error("shuffle(level='block')")
        return self._starts


class ShuffledRows:
    """Another order with all its rows permuted, in constant memory."""

    def __init__(self, inner: Order, key: int) -> None:
        self._inner, self._key = inner, key
        self.size = inner.size

    def rows(self, positions: I64) -> I64:
        return self._inner.rows(permute(positions, self.size, self._key))

    def piece_starts(self, level: PieceLevel) -> I64:
        if level == "file":
            raise scattered_files_error("shuffle(level='row')")
        return equal_pieces(self.size)


def equal_pieces(size: int) -> I64:
    """Piece starts of an order in which no rows lie together."""
    return np.append(np.arange(0, size, PIECE_ROWS), size)


def scattered_files_error(cause: str) -> ValueError:
    """The error for work on whole files, when ``cause`` has scattered their rows."""
    return ValueError(
        f"The rows of a file do not stay together after {cause}, so whole files cannot be shuffled or assigned to "
        "lanes any more. Put shuffle(level='file') first, or use level='block' and shard(mode='example')."
    )


class OrderStep(Protocol):
    """What a user asks of an order: to shuffle it, or to take some of it."""

    def apply(self, inner: Order, *key: int | str) -> Order:
        """Apply this step; ``key`` is mixed into the seed."""

    def size(self, inner: int) -> int:
        """The number of positions afterwards, from the number before."""

    def describe(self) -> dict[str, Any]:
        """What a state remembers of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """A shuffle of files, of blocks and of rows in windows, or of all rows."""

    seed: int
    level: Level
    window: int

    def apply(self, inner: Order, *key: int | str) -> Order:
        if self.level == "file":
            return ShuffledPieces(inner, "file", key_of(self.seed, "file", *key))
        if self.level == "block":
            blocks = ShuffledPieces(inner, "block", key_of(self.seed, "block", *key))
            starts = window_starts(blocks.piece_starts("block"), self.window)
            return ShuffledWindows(blocks, starts, key_of(self.seed, "window", *key))
        return ShuffledRows(inner, key_of(self.seed, "row", *key))

    def size(self, inner: int) -> int:
        return inner

    def describe(self) -> dict[str, Any]:
        window = {"window": self.window} if self.level == "block" else {}
        return {"op": "shuffle", "level": self.level, "seed": self.seed, **window}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A take or skip: the positions from ``start`` to ``stop``, or to the end."""

    start: int
    stop: int | None

    def apply(self, inner: Order, *_key: int | str) -> Order:
        return Interval(inner, self.start, inner.size if self.stop is None else self.stop)

    def size(self, inner: int) -> int:
        return max(0, (inner if self.stop is None else min(self.stop, inner)) - self.start)

    def describe(self) -> dict[str, Any]:
        return {"op": "skip", "n": self.start} if self.stop is None else {"op": "take", "n": self.stop}


def build_order(base: Order, steps: Sequence[OrderStep], epoch: int) -> Order:
    """The order of an epoch. Two shuffles in one pipeline never share a key."""
    for number, step in enumerate(steps):
        base = step.apply(base, epoch, number)
    return base


def lanes_by_file(base: Order, steps: Sequence[OrderStep], epoch: int, lanes: int) -> list[Order]:
    """One order for each lane, such that no file is in two lanes.

    Files are assigned to lanes first. A last shuffle of blocks or rows acts inside each lane.
    """
    last = steps[-1] if steps else None
    if not isinstance(last, Shuffle) or last.level == "file":
        return _divide_files(build_order(base, steps, epoch), lanes)
    before = build_order(base, steps[:-1], epoch)
    files = ShuffledPieces(before, "file", key_of(last.seed, "file", epoch))
    return [last.apply(lane, epoch, len(steps), number) for number, lane in enumerate(_divide_files(files, lanes))]


def _divide_files(order: Order, lanes: int) -> list[Order]:
    starts = order.piece_starts("file")
    lane_starts = [int(starts[lane * (len(starts) - 1) // lanes]) for lane in range(lanes + 1)]
    return [Interval(order, start, stop) for start, stop in pairwise(lane_starts)]
