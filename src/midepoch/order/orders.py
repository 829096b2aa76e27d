"""Order: position in the epoch → row of the data set, as pure functions that compose.

Rows are numbered through the whole data set, file after file. An order maps positions ``[0, size)`` to them,
and knows where it can be cut into *pieces* whose rows lie together, so that a further shuffle, or a reader
that looks ahead, can treat a piece as one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np

from midepoch._common.hashing import key_of
from midepoch._common.types import I64
from midepoch.order.permutation import permute

Level = Literal["file", "block", "row"]
ROW_PIECE = 8192


class Order(Protocol):
    """A fixed sequence of rows."""

    @property
    def size(self) -> int:
        """How many positions there are."""

    def rows(self, positions: I64) -> I64:
        """The rows at these positions."""

    def pieces(self, level: Literal["file", "block"]) -> I64:
        """Where the pieces begin, in rising positions, and at last ``size``."""


class Sequential:
    """File order, row order."""

    def __init__(self, file_starts: I64, block_starts: I64) -> None:
        """Take the first row of each file and of each block, both with the number of all rows at the end."""
        self._starts = {"file": file_starts, "block": block_starts}
        self.size = int(file_starts[-1])

    def rows(self, positions: I64) -> I64:
        """The positions themselves."""
        return positions

    def pieces(self, level: Literal["file", "block"]) -> I64:
        """The files, or the blocks."""
        return self._starts[level]


class Interval:
    """The positions from ``start`` to ``stop`` of another order."""

    def __init__(self, inner: Order, start: int, stop: int) -> None:
        self._inner = inner
        self._start = min(start, inner.size)
        self.size = max(0, min(stop, inner.size) - self._start)

    def rows(self, positions: I64) -> I64:
        """Those of the inner order, moved by the start."""
        return self._inner.rows(positions + self._start)

    def pieces(self, level: Literal["file", "block"]) -> I64:
        """Those of the inner order, with the first and the last cut."""
        bounds = self._inner.pieces(level)
        first = np.searchsorted(bounds, self._start, "right")
        last = np.searchsorted(bounds, self._start + self.size, "left")
        inside = bounds[first:last]
        return np.concatenate([[0], inside - self._start, [self.size]]).astype(np.int64)


class ShuffledPieces:
    """Another order with its pieces permuted; inside a piece nothing moves."""

    def __init__(self, inner: Order, level: Literal["file", "block"], key: int) -> None:
        self._inner, self._level = inner, level
        bounds = inner.pieces(level)
        count = len(bounds) - 1
        order = permute(np.arange(count), count, key)
        self._bounds = bounds
        self._starts = np.concatenate([[0], np.cumsum(np.diff(bounds)[order])]).astype(np.int64)
        self._moved_by = bounds[:-1][order] - self._starts[:-1]
        self._place = np.empty(count, np.int64)
        self._place[order] = np.arange(count)
        self.size = inner.size

    def rows(self, positions: I64) -> I64:
        """Those of the piece in which each position falls."""
        if not len(positions):
            return self._inner.rows(positions)
        # Of near positions only a few pieces are searched, which stay in the processor's cache.
        near, far = self._starts.searchsorted([positions.min(), positions.max()], "right").tolist()
        piece = self._starts[near:far].searchsorted(positions, "right") + (near - 1)
        return self._inner.rows(positions + self._moved_by[piece])

    def pieces(self, level: Literal["file", "block"]) -> I64:
        """The permuted pieces, or the finer ones inside them, where they have moved to."""
        if level == self._level or self.size == 0:
            return self._starts
        if level == "file":
            raise files_torn("shuffle(level='block')")
        return self._finer

    @cached_property
    def _finer(self) -> I64:
        """The blocks of the inner order at their new places."""
        finer = self._inner.pieces("block")[:-1]
        piece = np.searchsorted(self._bounds[:-1], finer, "right") - 1
        moved = self._starts[self._place[piece]] + finer - self._bounds[piece]
        return np.unique(np.concatenate([moved, self._starts]))


def window_starts(bounds: I64, window: int) -> I64:
    """Where runs of whole pieces begin, each of about ``window`` rows or of a single longer piece; at last the end."""
    opens = np.flatnonzero(np.diff(bounds[:-1] // window, prepend=-1))
    return np.append(bounds[:-1][opens], bounds[-1]).astype(np.int64)


class ShuffledWindows:
    """Another order with the rows permuted inside windows, which begin at ``starts``, the last of which is the end."""

    def __init__(self, inner: Order, starts: I64, key: int) -> None:
        self._inner, self._starts, self._key = inner, starts, key
        self.size = inner.size

    def rows(self, positions: I64) -> I64:
        """Those of the permuted positions, window by window."""
        if not len(positions):
            return self._inner.rows(positions)
        first, last = (self._window_of(int(position)) for position in (positions.min(), positions.max()))
        if first == last:
            return self._rows_of_one(positions, first)
        windows = np.searchsorted(self._starts, positions, "right") - 1
        moved = np.empty_like(positions)
        for window in np.unique(windows).tolist():
            inside = windows == window
            moved[inside] = self._moved(positions[inside], window)
        return self._inner.rows(moved)

    def _rows_of_one(self, positions: I64, window: int) -> I64:
        """Those of positions that lie in one window; of a whole one, the inner order is quicker in its own order."""
        start, stop = int(self._starts[window]), int(self._starts[window + 1])
        moved = self._moved(positions, window)
        if 2 * len(positions) < stop - start:
            return self._inner.rows(moved)
        whole: I64 = self._inner.rows(np.arange(start, stop))[moved - start]
        return whole

    def _window_of(self, position: int) -> int:
        return int(np.searchsorted(self._starts, position, "right")) - 1

    def _moved(self, positions: I64, window: int) -> I64:
        """Where positions of a window go."""
        start, stop = int(self._starts[window]), int(self._starts[window + 1])
        return start + permute(positions - start, stop - start, key_of(self._key, window))

    def pieces(self, level: Literal["file", "block"]) -> I64:
        """The windows."""
        if level == "file":
            raise files_torn("shuffle(level='block')")
        return self._starts


class ShuffledRows:
    """Another order with all its rows permuted, in constant memory."""

    def __init__(self, inner: Order, key: int) -> None:
        self._inner, self._key = inner, key
        self.size = inner.size

    def rows(self, positions: I64) -> I64:
        """Those of the permuted positions."""
        return self._inner.rows(permute(positions, self.size, self._key))

    def pieces(self, level: Literal["file", "block"]) -> I64:
        """Runs of some length: no rows lie together any more."""
        if level == "file":
            raise files_torn("shuffle(level='row')")
        return np.append(np.arange(0, self.size, ROW_PIECE), self.size)


def files_torn(cause: str) -> ValueError:
    """The error for what works on whole files, where their rows do not stay together."""
    return ValueError(
        f"The rows of a file do not stay together after {cause}, so nothing can be done file by "
        "file any more. Put shuffle(level='file') first, or use level='block' and shard(mode='example')."
    )


class OrderStep(Protocol):
    """What is done to an order, as it was asked for."""

    def apply(self, inner: Order, *key: int | str) -> Order:
        """The inner order, changed; a key makes what is random about it more special."""

    def size(self, inner: int) -> int:
        """How many positions there are afterwards."""

    def describe(self) -> dict[str, Any]:
        """What a state remembers of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """A shuffle as it was asked for."""

    seed: int
    level: Level
    window: int

    def apply(self, inner: Order, *key: int | str) -> Order:
        """The inner order, shuffled under a key that the caller may make more special."""
        if self.level == "file":
            return ShuffledPieces(inner, "file", key_of(self.seed, "file", *key))
        if self.level == "block":
            blocks = ShuffledPieces(inner, "block", key_of(self.seed, "block", *key))
            starts = window_starts(blocks.pieces("block"), self.window)
            return ShuffledWindows(blocks, starts, key_of(self.seed, "window", *key))
        return ShuffledRows(inner, key_of(self.seed, "row", *key))

    def size(self, inner: int) -> int:
        """As many."""
        return inner

    def describe(self) -> dict[str, Any]:
        """What a state remembers of it."""
        window = {"window": self.window} if self.level == "block" else {}
        return {"op": "shuffle", "level": self.level, "seed": self.seed, **window}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A take or skip: the positions from ``start`` to ``stop``, or to the end."""

    start: int
    stop: int | None

    def apply(self, inner: Order, *_key: int | str) -> Order:
        """The inner order between the two."""
        return Interval(inner, self.start, inner.size if self.stop is None else self.stop)

    def size(self, inner: int) -> int:
        """Those between the two."""
        return max(0, (inner if self.stop is None else min(self.stop, inner)) - self.start)

    def describe(self) -> dict[str, Any]:
        """What a state remembers of it."""
        return {"op": "skip", "n": self.start} if self.stop is None else {"op": "take", "n": self.stop}


def build_order(base: Order, steps: Sequence[OrderStep], epoch: int) -> Order:
    """The order of an epoch. Two shuffles in one pipeline never share a key."""
    for number, step in enumerate(steps):
        base = step.apply(base, epoch, number)
    return base


def lanes_by_file(base: Order, steps: Sequence[OrderStep], epoch: int, lanes: int) -> list[Order]:
    """One order a lane such that no file is in two: files are dealt first, and shuffled further inside a lane."""
    last = steps[-1] if steps else None
    if not isinstance(last, Shuffle) or last.level == "file":
        return _cut_at_files(build_order(base, steps, epoch), lanes)
    whole = build_order(base, steps[:-1], epoch)
    files = ShuffledPieces(whole, "file", key_of(last.seed, "file", epoch))
    return [last.apply(lane, epoch, len(steps), number) for number, lane in enumerate(_cut_at_files(files, lanes))]


def _cut_at_files(order: Order, lanes: int) -> list[Order]:
    bounds = order.pieces("file")
    cuts = [int(bounds[lane * (len(bounds) - 1) // lanes]) for lane in range(lanes + 1)]
    return [Interval(order, start, stop) for start, stop in pairwise(cuts)]
