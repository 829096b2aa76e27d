"""Some rows of another order: slices of it, whole blocks, listed or kept rows, half of a split, all but some rows.

A split into training and test rows is the same in every epoch, in constant memory. Positions are divided into groups of
``GROUP``. The test rows before the position ``b`` that begins a group are ``(b * test + offset) // size``, so every
group has its share and the total is exact. Which rows of a group these are follows from one hash per row: those with
the smallest hashes. The training rows before ``b`` follow the same formula, with ``size - test`` for ``test`` and
``size - 1 - offset`` for ``offset``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch._common.checks import cached_property, check_integer
from midepoch._common.hashing import I64, digest, key_of, mix64
from midepoch.order.orders import (
    PIECE_ROWS,
    Order,
    OrderStep,
    PieceLevel,
    Slice,
    equal_pieces,
    scattered_files_error,
)
from midepoch.order.windows import Blocks, bounds_of, distinct, rows_of_virtual

SAMPLED_NUMBERS = 1 << 14
Bound = int | float | str
"""A number of rows, a share of them such as 0.1, or percents such as "10%"."""

PERCENT = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*%\s*")


Half = Literal["train", "test"]
GROUP = 64
GROUPS_AT_ONCE = 4096
"""How many groups are hashed together, which bounds the memory."""
MOST_ROWS = 1 << 41
LOW_BITS = 20
LAST_RANK = np.iinfo(np.uint64).max


def slice_bounds(start: Bound | None, stop: Bound | None, rows: int) -> tuple[int, int]:
    """The first row of a slice and its end. They are those of Python, and a slice that would be inverted is empty."""
    first = 0 if start is None else _row("start", start, rows)
    end = rows if stop is None else _row("stop", stop, rows)
    return first, max(first, end)


def percent_of(percent: float, rows: int) -> int:
    """The number of rows nearest to this many percent of them, as `datasets` rounds it."""
    return round(percent * rows / 100)


def clipped(row: int, rows: int) -> int:
    """A bound between 0 and the number of rows. A negative one counts from the end."""
    return min(rows, max(0, row + rows if row < 0 else row))


def _row(name: str, bound: Any, rows: int) -> int:
    if isinstance(bound, float):
        if not -1 <= bound <= 1:
            raise ValueError(f"{name} is {bound}; as a float it is a share of the rows, between -1.0 and 1.0.")
        return clipped(percent_of(bound * 100, rows), rows)
    if not isinstance(bound, str):
        return clipped(check_integer(name, bound, least=None), rows)
    match = PERCENT.fullmatch(bound)
    if match is None or abs(float(match[1])) > 100:
        raise ValueError(f'{name} is {bound!r}; pass a number of rows, or percents between "-100%" and "100%".')
    return clipped(percent_of(float(match[1]), rows), rows)


class Intervals:
    """Several intervals ``(start, stop)`` of another order, one after the other."""

    def __init__(self, inner: Order, intervals: Sequence[tuple[int, int]]) -> None:
        bounds = np.array(intervals, np.int64).reshape(-1, 2).clip(0, inner.size)
        bounds = bounds[bounds[:, 0] < bounds[:, 1]]
        self._inner, self._inner_starts, self._inner_stops = inner, bounds[:, 0], bounds[:, 1]
        self.blocks = inner.blocks
        self._starts = np.concatenate([[0], np.cumsum(self._inner_stops - self._inner_starts)]).astype(np.int64)
        self.size = int(self._starts[-1])

    def rows(self, positions: I64) -> I64:
        if not len(positions):
            return positions
        interval = np.searchsorted(self._starts, positions, "right") - 1
        return self._inner.rows(self._inner_starts[interval] + positions - self._starts[interval])

    def positions(self, rows: I64) -> I64:
        inner = self._inner.positions(rows)
        bounds = zip(self._inner_starts, self._inner_stops, self._starts[:-1], strict=True)
        inside = [inner[(inner >= begin) & (inner < end)] - begin + start for begin, end, start in bounds]
        return np.concatenate([np.empty(0, np.int64), *inside])

    def piece_starts(self, level: PieceLevel) -> I64:
        """The pieces of the inner order inside each interval; the first and the last of them may be cut."""
        pieces = self._inner.piece_starts(level)
        inside = [
            pieces[np.searchsorted(pieces, begin, "right") : np.searchsorted(pieces, end)] - begin + start
            for begin, end, start in zip(self._inner_starts, self._inner_stops, self._starts[:-1], strict=True)
        ]
        return np.unique(np.concatenate([self._starts, *inside])).astype(np.int64)


class KeptBlocks:
    """Some blocks of a dataset, whole, in file order."""

    def __init__(
        self, file_starts: I64, block_starts: I64, kept: npt.NDArray[np.bool_], blocks: Blocks | None = None
    ) -> None:
        """Take the first rows of files and blocks, both with the number of all rows at the end, and the kept blocks.

        If ``block_starts`` are those of virtual blocks, ``blocks`` are the blocks that hold them.
        """
        self.blocks = blocks or Blocks.of_rows(block_starts)
        new_starts = np.concatenate([[0], np.cumsum(np.diff(block_starts) * kept)]).astype(np.int64)
        self._first_rows = block_starts[:-1][kept]
        self._starts = np.append(new_starts[:-1][kept], new_starts[-1])
        self._file_starts = np.unique(new_starts[np.searchsorted(block_starts, file_starts)])
        self.size = int(new_starts[-1])

    def rows(self, positions: I64) -> I64:
        if not len(positions):
            return positions
        block = np.searchsorted(self._starts, positions, "right") - 1
        rows: I64 = self._first_rows[block] + positions - self._starts[block]
        return rows

    def positions(self, rows: I64) -> I64:
        block = np.searchsorted(self._first_rows, rows, "right") - 1
        rows, block = rows[block >= 0], block[block >= 0]
        inside = rows - self._first_rows[block]
        positions: I64 = (self._starts[block] + inside)[inside < np.diff(self._starts)[block]]
        return positions

    def piece_starts(self, level: PieceLevel) -> I64:
        """The kept blocks, or the files that have any."""
        return self._file_starts if level == "file" else self._starts


class ChunkedNumbers:
    """A column of row numbers in chunks, which are not copied into one array."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._chunks = [np.asarray(chunk) for chunk in column.chunks if len(chunk)]
        self._starts = np.cumsum([0, *map(len, self._chunks)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, indices: I64) -> I64:
        """The numbers at these indices."""
        chunks = np.searchsorted(self._starts, indices, "right") - 1
        by_chunk = np.argsort(chunks, kind="stable")
        changes = np.flatnonzero(np.diff(chunks[by_chunk])) + 1
        numbers = np.empty(len(indices), np.int64)
        for of_chunk in np.split(by_chunk, changes) if len(indices) else ():
            chunk = int(chunks[of_chunk[0]])
            numbers[of_chunk] = self._chunks[chunk][indices[of_chunk] - self._starts[chunk]]
        return numbers

    def find(self, numbers: I64) -> I64:
        """The indices of these numbers. All chunks are searched."""
        chunks = zip(self._chunks, self._starts[:-1].tolist(), strict=True)
        found = [np.flatnonzero(np.isin(chunk, numbers)) + start for chunk, start in chunks]
        return np.concatenate([np.empty(0, np.int64), *found])


class Listed:
    """The positions of another order that a list names, in the order of the list."""

    def __init__(self, inner: Order, numbers: ChunkedNumbers) -> None:
        self._inner, self._numbers = inner, numbers
        self.blocks, self.size = inner.blocks, len(numbers)

    def rows(self, positions: I64) -> I64:
        return self._inner.rows(self._numbers.take(positions))

    def positions(self, rows: I64) -> I64:
        return self._numbers.find(self._inner.positions(rows))

    def piece_starts(self, level: PieceLevel) -> I64:
        if level == "file":
            raise scattered_files_error("a selection of rows")
        return equal_pieces(self.size, rows_of_virtual(self.size) if self.blocks.divisible.all() else PIECE_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Take several intervals ``(start, stop)``, as a split expression names them."""

    intervals: tuple[tuple[int, int], ...]

    def apply(self, inner: Order, *_key: int | str) -> Order:
        return Intervals(inner, self.intervals)

    def size(self, inner: int) -> int:
        return sum(max(0, min(stop, inner) - start) for start, stop in self.intervals)

    def describe(self) -> dict[str, Any]:
        return {"op": "split", "rows": [list(interval) for interval in self.intervals]}


class IndicesTable(Protocol):
    """A table with a column "indices" of row numbers, which can be pickled."""

    def column(self, name: str) -> pa.ChunkedArray: ...


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Take the rows whose numbers a table lists."""

    table: IndicesTable

    def __getstate__(self) -> dict[str, Any]:
        return {"table": self.table}

    def apply(self, inner: Order, *_key: int | str) -> Order:
        return Listed(inner, self._numbers)

    def size(self, inner: int) -> int:
        return len(self._numbers)

    def describe(self) -> dict[str, Any]:
        """The number of rows, and a digest of a sample of them, which differs for another shuffle or filter."""
        return {"op": "select", "rows": len(self._numbers), "digest": self._digest}

    @cached_property
    def _numbers(self) -> ChunkedNumbers:
        return ChunkedNumbers(self.table.column("indices"))

    @cached_property
    def _digest(self) -> str:
        indices = np.unique(np.linspace(0, max(0, len(self._numbers) - 1), SAMPLED_NUMBERS).astype(np.int64))
        sample = self._numbers.take(indices if len(self._numbers) else indices[:0])
        return digest(sample.astype("<i8").tobytes()).hex()


def multiply_divide(values: I64, factor: int, offset: int, divisor: int) -> I64:
    """``(values * factor + offset) // divisor``, exact although the product may need more than 64 bits.

    All numbers are at most ``MOST_ROWS``.
    """
    wide, low_bits = values.astype(np.uint64), np.uint64(LOW_BITS)
    by, low = np.uint64(divisor), (wide & np.uint64((1 << LOW_BITS) - 1)) * np.uint64(factor)
    high = (wide >> low_bits) * np.uint64(factor)
    rest = ((high % by) << low_bits) + low + np.uint64(offset)
    return (((high // by) << low_bits) + rest // by).astype(np.int64)


class SplitRows:
    """The training rows or the test rows of another order, in its order."""

    def __init__(self, inner: Order, half: Half, test_rows: int, seed: int) -> None:
        if inner.size > MOST_ROWS:
            raise ValueError(f"train_test_split takes at most {MOST_ROWS:,} rows; there are {inner.size:,}.")
        self._inner, self._half, self.blocks = inner, half, inner.blocks
        self._key = key_of(seed, "train_test_split", inner.size)
        offset = key_of(self._key, "offset") % max(1, inner.size)
        self.size, self._offset = test_rows, offset
        if half == "train":
            self.size, self._offset = inner.size - test_rows, max(0, inner.size - 1 - offset)

    def rows(self, positions: I64) -> I64:
        chunks = [
            self._inner_positions(positions[start : start + GROUPS_AT_ONCE])
            for start in range(0, len(positions), GROUPS_AT_ONCE)
        ]
        return self._inner.rows(np.concatenate([np.empty(0, np.int64), *chunks]))

    def positions(self, rows: I64) -> I64:
        inner = self._inner.positions(rows)
        groups, slots = inner // GROUP, inner % GROUP
        is_member = self._is_member(groups)
        before = (is_member & (np.arange(GROUP) < slots[:, None])).sum(axis=1)
        positions: I64 = (self._before(groups) + before)[is_member[np.arange(len(inner)), slots]]
        return positions

    def _inner_positions(self, positions: I64) -> I64:
        size = self._inner.size
        groups = multiply_divide(positions, size, size - 1 - self._offset, self.size) // GROUP
        distinct, line = np.unique(groups, return_inverse=True)
        is_member = self._is_member(distinct)
        members = np.flatnonzero(is_member)  # of all lines, one after the other
        counts = is_member.sum(axis=1)
        number = (np.cumsum(counts) - counts - self._before(distinct))[line] + positions
        inner: I64 = groups * GROUP + members[number] % GROUP
        return inner

    def piece_starts(self, level: PieceLevel) -> I64:
        """The pieces of the inner order that have rows here."""
        return self._block_starts if level == "block" else self._starts_of("file")

    @cached_property
    def _block_starts(self) -> I64:
        return self._starts_of("block")

    def _starts_of(self, level: PieceLevel) -> I64:
        """The number of members before each boundary of the inner order, each once."""
        bounds = distinct(self._inner.piece_starts(level))
        groups, inside = bounds // GROUP, bounds % GROUP
        starts = self._before(groups)
        for start in range(0, len(bounds), GROUPS_AT_ONCE):
            these = np.flatnonzero(inside[start : start + GROUPS_AT_ONCE]) + start
            is_before = np.arange(GROUP) < inside[these, None]
            starts[these] += (self._is_member(groups[these]) & is_before).sum(axis=1)
        return distinct(starts)

    def _before(self, groups: I64) -> I64:
        """The number of members before each of these groups."""
        size = self._inner.size
        return multiply_divide(np.minimum(groups * GROUP, size), self.size, self._offset, max(1, size))

    def _is_member(self, groups: I64) -> npt.NDArray[np.bool_]:
        """One line a group: which of its positions belong to this half."""
        slots = np.arange(GROUP, dtype=np.uint64)
        positions = groups.astype(np.uint64)[:, None] * np.uint64(GROUP) + slots
        hashes = mix64(positions * np.uint64(0x9E3779B97F4A7C15) + np.uint64(self._key))
        # The low bits are the slot, so that no two ranks are equal. Positions past the end rank last.
        ranks = (hashes >> np.uint64(7) << np.uint64(6)) | slots
        past_end = positions >= np.uint64(self._inner.size)
        ranks[past_end] = LAST_RANK
        members = self._before(groups + 1) - self._before(groups)
        lengths = np.minimum(self._inner.size - groups * GROUP, GROUP)
        test = members if self._half == "test" else lengths - members
        following = np.sort(ranks, axis=1)[np.arange(len(groups)), np.minimum(test, GROUP - 1)]
        in_test = ranks < np.where(test < GROUP, following, LAST_RANK)[:, None]
        return in_test if self._half == "test" else ~(in_test | past_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTestSplit:
    """Take one half of a split. Which rows it has depends on the seed and the number of rows, never on the epoch."""

    half: Half
    test_size: int | float
    """A number of rows, or a fraction of them between 0 and 1."""
    seed: int

    def apply(self, inner: Order, *_key: int | str) -> Order:
        return SplitRows(inner, self.half, self._test_rows(inner.size), self.seed)

    def size(self, inner: int) -> int:
        test = self._test_rows(inner)
        return test if self.half == "test" else inner - test

    def _test_rows(self, inner: int) -> int:
        """The number of test rows. A fraction is taken as the decimal that it is written as, and rounded up."""
        if isinstance(self.test_size, int):
            return min(self.test_size, inner)
        return -(-inner * Fraction(repr(self.test_size)) // 1)

    def describe(self) -> dict[str, Any]:
        return {"op": "train_test_split", "half": self.half, "test_size": self.test_size, "seed": self.seed}


class WithoutPositions:
    """Another order, in which rows rise, without the ``deleted`` positions, which rise too."""

    def __init__(self, inner: Order, deleted: I64) -> None:
        self.inner, self.deleted, self.blocks = inner, deleted, inner.blocks
        self._kept_before = deleted - np.arange(len(deleted))
        self.size = inner.size - len(deleted)

    def rows(self, positions: I64) -> I64:
        return self.inner.rows(positions + np.searchsorted(self._kept_before, positions, "right"))

    def positions(self, rows: I64) -> I64:
        inner = self.inner.positions(rows)
        inner = inner[~np.isin(inner, self.deleted)]
        positions: I64 = inner - np.searchsorted(self.deleted, inner)
        return positions

    def piece_starts(self, level: PieceLevel) -> I64:
        """The pieces of the inner order that have rows left."""
        starts = self.inner.piece_starts(level)
        return distinct(starts - np.searchsorted(self.deleted, starts))


@dataclass(frozen=True, kw_only=True, eq=False)
class LeaveOut:
    """Leave out these rows, given by their rising numbers in the whole dataset. Every epoch has all of them."""

    rows: I64
    op: ClassVar[str]

    def apply(self, inner: Order, *_key: int | str) -> Order:
        return WithoutPositions(inner, self.positions(inner))

    def positions(self, inner: Order) -> I64:
        """The rising positions of those of the rows that an order has."""
        return np.sort(inner.positions(self.rows))

    def size(self, inner: int) -> int:
        return inner - len(self.rows)

    def describe(self) -> dict[str, Any]:
        return {"op": self.op, "rows": len(self.rows), "digest": self._digest}

    @cached_property
    def _digest(self) -> str:
        return digest(self.rows.astype("<i8").tobytes()).hex()


class Deletes(LeaveOut):
    """Leave out rows that a table says were deleted after their files were written."""

    op = "deletes"


class Without(LeaveOut):
    """Leave out rows that the user has taken out of a run: an edit, which a run that is under way accepts."""

    op = "without"


class KeptBits(Protocol):
    """Which rows of a dataset are kept."""

    @property
    def kept_digest(self) -> str:
        """A digest of which rows are kept."""

    def kept(self, rows: I64) -> npt.NDArray[np.bool_]:
        """For each of these rows, whether it is kept."""

    def kept_before(self, rows: I64) -> I64:
        """How many rows before each of these are kept."""

    def kept_at(self, numbers: I64) -> I64:
        """The rows with these numbers among all kept rows."""


class KeptRows:
    """The kept rows of another order. The rows of each of its block pieces must be adjacent in their file."""

    def __init__(self, inner: Order, bits: KeptBits) -> None:
        starts = inner.piece_starts("block")
        self._inner, self._bits, self.blocks = inner, bits, inner.blocks
        self._inner_starts = distinct(starts)
        first, last = inner.rows(self._inner_starts[:-1]), inner.rows(self._inner_starts[1:] - 1)
        assert (last - first == np.diff(self._inner_starts) - 1).all(), "the rows of a piece are adjacent"
        kept_before = bits.kept_before(first)
        self._starts = bounds_of(bits.kept_before(last + 1) - kept_before)
        self._shifts = kept_before - self._starts[:-1]
        """For each piece, what is added to a position for the number of the row among all kept rows."""
        self._is_shifted = bool(self._shifts.any())
        self.size = int(self._starts[-1])

    def rows(self, positions: I64) -> I64:
        if not self._is_shifted:  # the inner order has all kept rows of the dataset, in its order
            return self._bits.kept_at(positions)
        piece = np.searchsorted(self._starts, positions, "right") - 1
        return self._bits.kept_at(positions + self._shifts[piece])

    def positions(self, rows: I64) -> I64:
        inner = self._inner.positions(rows[self._bits.kept(rows)] if len(rows) else rows)
        return self.positions_of(inner) if len(inner) else inner

    def positions_of(self, inner_positions: I64) -> I64:
        """The positions here of kept rows that are at these positions of the inner order."""
        piece = np.searchsorted(self._inner_starts, inner_positions, "right") - 1
        kept_before: I64 = self._bits.kept_before(self._inner.rows(inner_positions))
        return kept_before - self._shifts[piece]

    def piece_starts(self, level: PieceLevel) -> I64:
        """The pieces of the inner order that have kept rows."""
        if level == "block":
            return distinct(self._starts)
        inner_starts = self._inner.piece_starts(level)
        return distinct(self._starts[np.searchsorted(self._inner_starts, inner_starts)])


@dataclass(frozen=True, kw_only=True)
class Surveyed:
    """Take the rows that filters keep, as a survey says."""

    bits: KeptBits = field(compare=False)
    digest: str
    filters: int
    """How many stages of the pipeline are these filters. The filters of ``read`` are none."""
    rows: int
    """The number of rows that are kept."""

    @classmethod
    def of(cls, bits: KeptBits, inner: Order, filters: int) -> Self:
        """The step that takes the kept rows of an order, which must be the same in every epoch."""
        return cls(bits=bits, digest=bits.kept_digest, filters=filters, rows=_kept(inner, bits).size)

    def apply(self, inner: Order, *_key: int | str) -> Order:
        return _kept(inner, self.bits)

    def size(self, inner: int) -> int:
        return self.rows

    def describe(self) -> dict[str, Any]:
        return {"op": "survey", "filters": self.filters, "rows": self.rows, "digest": self.digest}


def _kept(inner: Order, bits: KeptBits) -> Order:
    """The kept rows of an order. Deleted rows are left out last, because those that stay may not be adjacent."""
    if not isinstance(inner, WithoutPositions):
        return KeptRows(inner, bits)
    kept = KeptRows(inner.inner, bits)
    is_kept = bits.kept(inner.inner.rows(inner.deleted))
    return WithoutPositions(kept, kept.positions_of(inner.deleted[is_kept]))


def first_scattering(steps: tuple[OrderStep, ...]) -> str | None:
    """What users call the first step after which rows that follow each other are not adjacent in their file.

    None if the steps leave rows adjacent, so that kept rows can be found among them. Deleted rows may come last.
    """
    for number, step in enumerate(steps):
        if not isinstance(step, Slice | Slices) and not (isinstance(step, Deletes) and number == len(steps) - 1):
            return str(step.describe()["op"])
    return None
