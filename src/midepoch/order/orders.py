"""From a position of the epoch to a row of the dataset: pure functions that compose.

Rows are numbered over the whole dataset, file after file. An order maps the positions ``[0, size)`` to rows. It is
divided into *pieces*, runs of positions whose rows lie close together. A further shuffle moves a piece as one, and a
reader that reads ahead fetches it as one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from midepoch._common.checks import cached_property
from midepoch._common.hashing import I64, key_of
from midepoch.order.permutation import permute, unpermute
from midepoch.order.windows import (
    VIRTUAL_PER_BLOCK,
    WINDOW_BYTES,
    Blocks,
    PieceCosts,
    bounds_of,
    by_part,
    distinct,
    windows_of_blocks,
)

Level = Literal["file", "block", "row"]
PieceLevel = Literal["file", "block"]
PIECE_ROWS = 8192
"""The length of a piece where no rows lie together."""


class Order(Protocol):
    """A fixed sequence of rows."""

    @property
    def size(self) -> int:
        """The number of positions."""

    @property
    def blocks(self) -> Blocks:
        """The blocks of the dataset, which say what the pieces cost to hold in memory."""

    def rows(self, positions: I64) -> I64:
        """The rows at these positions."""

    def positions(self, rows: I64) -> I64:
        """The positions of these rows. A row that is not in the order has none; one that is there twice has two."""

    def piece_starts(self, level: PieceLevel) -> I64:
        """The first position of each piece, rising, and ``size`` at the end."""


class Ranges:
    """Ranges of rows, in file order, as the rows of a smaller dataset."""

    def __init__(self, firsts: I64, starts: I64, piece_starts: Mapping[PieceLevel, I64], blocks: Blocks) -> None:
        """Take the first row of each range, and the position of that row, with the number of all rows at the end.

        ``blocks`` are those of the whole dataset.
        """
        self._firsts, self._starts, self._piece_starts, self.blocks = firsts, starts, piece_starts, blocks
        self.size = int(starts[-1])

    @classmethod
    def of_blocks(
        cls, file_starts: I64, block_starts: I64, kept: npt.NDArray[np.bool_], blocks: Blocks | None = None
    ) -> "Ranges":
        """Some blocks of a dataset, whole. The arguments are those of :class:`Sequential`, and which blocks these are.

        Files of which no block is kept are no pieces.
        """
        bounds = bounds_of(np.diff(block_starts) * kept)
        starts = np.append(bounds[:-1][kept], bounds[-1])
        files = distinct(bounds[np.searchsorted(block_starts, file_starts)])
        own_blocks = blocks or Blocks.of_rows(block_starts)
        return cls(block_starts[:-1][kept], starts, {"file": files, "block": starts}, own_blocks)

    def rows(self, positions: I64) -> I64:
        if not len(positions):
            return positions
        number = np.searchsorted(self._starts, positions, "right") - 1
        rows: I64 = self._firsts[number] + positions - self._starts[number]
        return rows

    def positions(self, rows: I64) -> I64:
        number = np.searchsorted(self._firsts, rows, "right") - 1
        rows, number = rows[number >= 0], number[number >= 0]
        inside = rows - self._firsts[number]
        positions: I64 = (self._starts[number] + inside)[inside < np.diff(self._starts)[number]]
        return positions

    def piece_starts(self, level: PieceLevel) -> I64:
        return self._piece_starts[level]


class Sequential(Ranges):
    """File order, row order."""

    def __init__(self, file_starts: I64, block_starts: I64, blocks: Blocks | None = None) -> None:
        """Take the first row of each file and of each block, both with the number of all rows at the end.

        If ``block_starts`` are those of virtual blocks, ``blocks`` are the blocks that hold them.
        """
        pieces: dict[PieceLevel, I64] = {"file": file_starts, "block": block_starts}
        super().__init__(file_starts[:1], file_starts[[0, -1]], pieces, blocks or Blocks.of_rows(block_starts))


class Interval:
    """The positions from ``start`` to ``stop`` of another order."""

    def __init__(self, inner: Order, start: int, stop: int) -> None:
        self._inner, self.blocks = inner, inner.blocks
        self._start = min(start, inner.size)
        self.size = max(0, min(stop, inner.size) - self._start)

    def rows(self, positions: I64) -> I64:
        return self._inner.rows(positions + self._start)

    def positions(self, rows: I64) -> I64:
        positions = self._inner.positions(rows) - self._start
        return positions[(positions >= 0) & (positions < self.size)]

    def piece_starts(self, level: PieceLevel) -> I64:
        """The pieces of the inner order; the first and the last one may be cut."""
        starts = self._inner.piece_starts(level)
        first = np.searchsorted(starts, self._start, "right")
        last = np.searchsorted(starts, self._start + self.size, "left")
        return np.concatenate([[0], starts[first:last] - self._start, [self.size]]).astype(np.int64)


class Chained:
    """Several orders of rows of one dataset, one after the other."""

    def __init__(self, orders: Sequence[Order]) -> None:
        self._orders, self.blocks = orders, orders[0].blocks
        self._starts = bounds_of(np.array([order.size for order in orders], np.int64))
        self.size = int(self._starts[-1])

    def rows(self, positions: I64) -> I64:
        return by_part(self._starts, positions, lambda part, places: self._orders[part].rows(places))

    def positions(self, rows: I64) -> I64:
        found = [order.positions(rows) + start for order, start in zip(self._orders, self._starts, strict=False)]
        return np.concatenate(found)

    def piece_starts(self, level: PieceLevel) -> I64:
        starts = [order.piece_starts(level) + start for order, start in zip(self._orders, self._starts, strict=False)]
        return distinct(np.concatenate(starts))


class ShuffledPieces:
    """Another order with its pieces permuted; the order within a piece stays."""

    def __init__(self, inner: Order, level: PieceLevel, key: int) -> None:
        self._inner, self._level, self.blocks = inner, level, inner.blocks
        self._inner_starts = inner.piece_starts(level)
        count = len(self._inner_starts) - 1
        self.permutation = permute(np.arange(count), count, key)
        """For each piece, its number in the inner order."""
        self._starts = bounds_of(np.diff(self._inner_starts)[self.permutation])
        self.size = inner.size

    def rows(self, positions: I64) -> I64:
        if not len(positions):
            return self._inner.rows(positions)
        # Neighbouring positions are in a few pieces: searching only those stays in the processor's cache.
        first, last = self._starts.searchsorted([positions.min(), positions.max()], "right").tolist()
        starts, inner_starts = self._starts[first - 1 : last], self._inner_starts[self.permutation[first - 1 : last]]
        piece = starts[1:].searchsorted(positions, "right")
        return self._inner.rows(positions + (inner_starts - starts)[piece])

    def positions(self, rows: I64) -> I64:
        return self._moved(self._inner.positions(rows))

    def _moved(self, inner: I64) -> I64:
        """Where positions of the inner order are here."""
        piece = np.searchsorted(self._inner_starts, inner, "right") - 1
        moved: I64 = inner - self._inner_starts[piece] + self._starts[self._new_numbers[piece]]
        return moved

    def piece_starts(self, level: PieceLevel) -> I64:
        """The permuted pieces, or the blocks inside permuted files."""
        if level == self._level or self.size == 0:
            return self._starts
        if level == "file":
            raise scattered_files_error("shuffle(level='block')")
        return self._moved_blocks

    @cached_property
    def _moved_blocks(self) -> I64:
        """The first positions of the permuted pieces and of the blocks inside them, each once."""
        blocks = self._inner.piece_starts("block")
        return distinct(np.sort(np.append(self._starts, self._moved(blocks[blocks < self.size]))))

    @cached_property
    def _new_numbers(self) -> I64:
        """For each piece of the inner order, its number here."""
        numbers = np.empty_like(self.permutation)
        numbers[self.permutation] = np.arange(len(numbers))
        return numbers


class ShuffledWindows:
    """Another order with the rows permuted inside windows, which begin at ``starts`` (and end with the last one)."""

    def __init__(self, inner: Order, starts: I64, key: int) -> None:
        self._inner, self._starts, self._key = inner, starts, key
        self.blocks, self.size = inner.blocks, inner.size

    def rows(self, positions: I64) -> I64:
        return self._inner.rows(self._in_windows(permute, positions))

    def positions(self, rows: I64) -> I64:
        return self._in_windows(unpermute, self._inner.positions(rows))

    def _in_windows(self, move: Callable[[I64, int, int], I64], positions: I64) -> I64:
        """Where ``move`` puts these positions, each inside its window."""

        def in_window(window: int, places: I64) -> I64:
            start, stop = self._starts[[window, window + 1]].tolist()
            moved: I64 = start + move(places, stop - start, key_of(self._key, window))
            return moved

        return by_part(self._starts, positions, in_window)

    def piece_starts(self, level: PieceLevel) -> I64:
        """The windows."""
        if level == "file":
            raise scattered_files_error("shuffle(level='block')")
        return self._starts


class ShuffledRows:
    """Another order with all its rows permuted, in constant memory."""

    def __init__(self, inner: Order, key: int) -> None:
        self._inner, self._key = inner, key
        self.blocks, self.size = inner.blocks, inner.size

    def rows(self, positions: I64) -> I64:
        return self._inner.rows(permute(positions, self.size, self._key))

    def positions(self, rows: I64) -> I64:
        return unpermute(self._inner.positions(rows), self.size, self._key)

    def piece_starts(self, level: PieceLevel) -> I64:
        if level == "file":
            raise scattered_files_error("shuffle(level='row')")
        return equal_pieces(self.size)


def equal_pieces(size: int, rows: int = PIECE_ROWS) -> I64:
    """Piece starts of an order in which no rows lie together."""
    return np.append(np.arange(0, size, rows), size)


def scattered_files_error(cause: str) -> ValueError:
    """The error for work on whole files, when ``cause`` has scattered their rows."""
    return ValueError(
        f"The rows of a file do not stay together after {cause}, so whole files cannot be shuffled or assigned to "
        "lanes any more. Put shuffle(level='file') first, or use level='block' and shard(mode='example')."
    )


def piece_costs(order: Order) -> PieceCosts | None:
    """What each block piece of an order costs in a window; None if a piece has rows of several blocks.

    A piece of a block that is decoded as a whole takes all its bytes.
    """
    starts, blocks = order.piece_starts("block"), order.blocks
    lengths = np.diff(starts)
    has_rows = lengths > 0
    nbytes, shares = np.zeros((2, len(lengths)), np.int64)
    owners = blocks.owner(order.rows(starts[:-1][has_rows]))
    if (owners != blocks.owner(order.rows(starts[1:][has_rows] - 1))).any():
        return None
    block_rows = np.diff(blocks.starts)[owners]
    own_bytes = blocks.nbytes[owners] * lengths[has_rows] // block_rows
    nbytes[has_rows] = np.where(blocks.divisible[owners], own_bytes, blocks.nbytes[owners])
    shares[has_rows] = np.where(blocks.divisible[owners], 1, VIRTUAL_PER_BLOCK)
    return PieceCosts(nbytes, shares)


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
    window_blocks: int = 1
    """How many blocks a window has at least."""
    window_bytes: int = WINDOW_BYTES
    """The bytes of a window at most."""

    def apply(self, inner: Order, *key: int | str) -> Order:
        if self.level == "file":
            return ShuffledPieces(inner, "file", key_of(self.seed, "file", *key))
        if self.level == "block":
            blocks = ShuffledPieces(inner, "block", key_of(self.seed, "block", *key))
            return ShuffledWindows(blocks, self._windows(inner, blocks), key_of(self.seed, "window", *key))
        return ShuffledRows(inner, key_of(self.seed, "row", *key))

    @property
    def cuts_by_blocks(self) -> bool:
        """True if the windows of this shuffle are cut by blocks."""
        return self.level == "block" and self.window_bytes > 0

    def _windows(self, inner: Order, permuted: ShuffledPieces) -> I64:
        """The first position of each window, and the end."""
        starts = permuted.piece_starts("block")
        costs, blocks = piece_costs(inner), self.window_blocks
        if costs is None:  # an earlier shuffle or selection has mixed rows of many blocks: rows are enough
            nothing = np.zeros(len(starts) - 1, np.int64)
            costs, blocks = PieceCosts(nothing, nothing), 0
        in_order = PieceCosts(*(values[permuted.permutation] for values in costs))
        return windows_of_blocks(starts, in_order, rows=self.window, blocks=blocks, most_bytes=self.window_bytes)

    def size(self, inner: int) -> int:
        return inner

    def describe(self) -> dict[str, Any]:
        window: dict[str, int] = {}
        if self.level == "block":
            window = {name: getattr(self, name) for name in ("window", "window_blocks", "window_bytes")}
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
