"""Some positions of another order: slices, a list, or a choice: half of a split, kept rows, all but some.

A split into training and test rows is the same in every epoch, in constant memory. Positions are divided into groups of
``GROUP``. The test rows before the position ``b`` that begins a group are ``(b * test + offset) // size``, so every
group has its share and the total is exact. Which rows of a group these are follows from one hash per row: those with
the smallest hashes. The training rows before ``b`` follow the same formula, with ``size - test`` for ``test`` and
``size - 1 - offset`` for ``offset``.
"""

import re
from collections.abc import Callable
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
    Chained,
    Interval,
    Order,
    OrderStep,
    PieceLevel,
    Slice,
    equal_pieces,
    scattered_files_error,
)
from midepoch.order.windows import bounds_of, by_part, distinct, rows_of_virtual

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


class ChunkedNumbers:
    """A column of row numbers in chunks, which are not copied into one array."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._chunks = [np.asarray(chunk) for chunk in column.chunks if len(chunk)]
        self._starts = np.cumsum([0, *map(len, self._chunks)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, indices: I64) -> I64:
        """The numbers at these indices."""
        return by_part(self._starts, indices, lambda chunk, places: self._chunks[chunk][places])

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
    """Take intervals ``(start, stop)``: one, or several as a split expression names them."""

    intervals: tuple[tuple[int, int], ...]

    def apply(self, inner: Order, *_key: int | str) -> Order:
        return Chained([Interval(inner, start, stop) for start, stop in self.intervals or ((0, 0),)])

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


class Choice(Protocol):
    """Some positions of an order, each once and in rising order."""

    @property
    def size(self) -> int:
        """How many they are."""

    def at(self, numbers: I64) -> I64:
        """The chosen positions with these numbers."""

    def has(self, positions: I64) -> npt.NDArray[np.bool_]:
        """For each of these positions, whether it is chosen."""

    def before(self, positions: I64) -> I64:
        """How many chosen positions come before each of these. The end of the order may be one."""


class Chosen:
    """The chosen positions of another order."""

    def __init__(self, inner: Order, choice: Choice) -> None:
        self.inner, self.choice = inner, choice
        self.blocks, self.size = inner.blocks, choice.size
        self._piece_starts = dict[PieceLevel, I64]()

    def rows(self, positions: I64) -> I64:
        return self.inner.rows(self.choice.at(positions))

    def positions(self, rows: I64) -> I64:
        inner = self.inner.positions(rows)
        return self.choice.before(inner[self.choice.has(inner)]) if len(inner) else inner

    def piece_starts(self, level: PieceLevel) -> I64:
        """The pieces of the inner order of which positions are chosen."""
        if level not in self._piece_starts:
            self._piece_starts[level] = distinct(self.choice.before(distinct(self.inner.piece_starts(level))))
        return self._piece_starts[level]


class HalfOfSplit:
    """The training rows or the test rows of ``rows`` rows."""

    def __init__(self, rows: int, half: Half, test_rows: int, seed: int) -> None:
        if rows > MOST_ROWS:
            raise ValueError(f"train_test_split takes at most {MOST_ROWS:,} rows; there are {rows:,}.")
        self._rows, self._half = rows, half
        self._key = key_of(seed, "train_test_split", rows)
        self.size, self._offset = test_rows, key_of(self._key, "offset") % max(1, rows)
        if half == "train":
            self.size, self._offset = rows - test_rows, max(0, rows - 1 - self._offset)

    def at(self, numbers: I64) -> I64:
        return _in_parts(self._at, numbers)

    def has(self, positions: I64) -> npt.NDArray[np.bool_]:
        mask: npt.NDArray[np.bool_] = self._members(positions // GROUP)[np.arange(len(positions)), positions % GROUP]
        return mask

    def before(self, positions: I64) -> I64:
        before, cut = self._before(positions // GROUP), np.flatnonzero(positions % GROUP)
        before[cut] += _in_parts(self._before_in_group, positions[cut])
        return before

    def _at(self, numbers: I64) -> I64:
        groups = multiply_divide(numbers, self._rows, self._rows - 1 - self._offset, self.size) // GROUP
        distinct, line = np.unique(groups, return_inverse=True)
        is_member = self._members(distinct)
        members = np.flatnonzero(is_member)  # of all lines, one after the other
        counts = is_member.sum(axis=1)
        number = (np.cumsum(counts) - counts - self._before(distinct))[line] + numbers
        positions: I64 = groups * GROUP + members[number] % GROUP
        return positions

    def _before_in_group(self, positions: I64) -> I64:
        is_before = np.arange(GROUP) < (positions % GROUP)[:, None]
        before: I64 = (self._members(positions // GROUP) & is_before).sum(axis=1)
        return before

    def _before(self, groups: I64) -> I64:
        """The number of members before each of these groups."""
        return multiply_divide(np.minimum(groups * GROUP, self._rows), self.size, self._offset, max(1, self._rows))

    def _members(self, groups: I64) -> npt.NDArray[np.bool_]:
        """One line a group: which of its positions belong to this half."""
        slots = np.arange(GROUP, dtype=np.uint64)
        positions = groups.astype(np.uint64)[:, None] * np.uint64(GROUP) + slots
        hashes = mix64(positions * np.uint64(0x9E3779B97F4A7C15) + np.uint64(self._key))
        # The low bits are the slot, so that no two ranks are equal. Positions past the end rank last.
        ranks = (hashes >> np.uint64(7) << np.uint64(6)) | slots
        past_end = positions >= np.uint64(self._rows)
        ranks[past_end] = LAST_RANK
        members = self._before(groups + 1) - self._before(groups)
        lengths = np.minimum(self._rows - groups * GROUP, GROUP)
        test = members if self._half == "test" else lengths - members
        following = np.sort(ranks, axis=1)[np.arange(len(groups)), np.minimum(test, GROUP - 1)]
        in_test = ranks < np.where(test < GROUP, following, LAST_RANK)[:, None]
        return in_test if self._half == "test" else ~(in_test | past_end)


def _in_parts(function: Callable[[I64], I64], values: I64) -> I64:
    """What a function of an array says, of which few values are worked on at a time."""
    starts = range(0, len(values), GROUPS_AT_ONCE)
    return np.concatenate([values[:0], *(function(values[start : start + GROUPS_AT_ONCE]) for start in starts)])


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTestSplit:
    """Take one half of a split. Which rows it has depends on the seed and the number of rows, never on the epoch."""

    half: Half
    test_size: int | float
    """A number of rows, or a fraction of them between 0 and 1."""
    seed: int

    def apply(self, inner: Order, *_key: int | str) -> Order:
        return Chosen(inner, HalfOfSplit(inner.size, self.half, self._test_rows(inner.size), self.seed))

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


class AllBut:
    """All positions of an order but some, which rise."""

    def __init__(self, rows: int, left_out: I64) -> None:
        self.left_out, self.size = left_out, rows - len(left_out)
        self._kept_before = left_out - np.arange(len(left_out))

    def at(self, numbers: I64) -> I64:
        return numbers + np.searchsorted(self._kept_before, numbers, "right")

    def has(self, positions: I64) -> npt.NDArray[np.bool_]:
        return ~np.isin(positions, self.left_out)

    def before(self, positions: I64) -> I64:
        return positions - np.searchsorted(self.left_out, positions)


@dataclass(frozen=True, kw_only=True, eq=False)
class LeaveOut:
    """Leave out these rows, given by their rising numbers in the whole dataset. Every epoch has all of them."""

    rows: I64
    op: ClassVar[str]

    def apply(self, inner: Order, *_key: int | str) -> Order:
        return Chosen(inner, AllBut(inner.size, self.positions(inner)))

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
    """The positions of an order whose rows are kept. The rows of its block pieces must be adjacent in their file."""

    def __init__(self, inner: Order, bits: KeptBits) -> None:
        self._bits, self._inner_starts = bits, distinct(inner.piece_starts("block"))
        first, last = inner.rows(self._inner_starts[:-1]), inner.rows(self._inner_starts[1:] - 1)
        assert (last - first == np.diff(self._inner_starts) - 1).all(), "the rows of a piece are adjacent"
        self._firsts = np.append(first, 0)  # the end is a piece without rows
        kept_before = bits.kept_before(self._firsts)
        self._starts = bounds_of(bits.kept_before(last + 1) - kept_before[:-1])
        self._shifts = kept_before - self._starts
        """For each piece, what is added to a number here for the number of the row among all kept rows."""
        self.size = int(self._starts[-1])

    def at(self, numbers: I64) -> I64:
        piece = np.searchsorted(self._starts, numbers, "right") - 1
        shifts: I64 = self._inner_starts[piece] - self._firsts[piece]
        return self._bits.kept_at(numbers + self._shifts[piece]) + shifts

    def has(self, positions: I64) -> npt.NDArray[np.bool_]:
        return self._bits.kept(self._rows(positions)[0])

    def before(self, positions: I64) -> I64:
        rows, piece = self._rows(positions)
        return self._bits.kept_before(rows) - self._shifts[piece]

    def _rows(self, positions: I64) -> tuple[I64, I64]:
        """The rows at positions, and the pieces that these are in."""
        piece = np.searchsorted(self._inner_starts, positions, "right") - 1
        return positions - self._inner_starts[piece] + self._firsts[piece], piece


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
    if not isinstance(inner, Chosen) or not isinstance(inner.choice, AllBut):
        return Chosen(inner, KeptRows(inner, bits))
    kept, deleted = KeptRows(inner.inner, bits), inner.choice.left_out
    return Chosen(Chosen(inner.inner, kept), AllBut(kept.size, kept.before(deleted[kept.has(deleted)])))


def first_scattering(steps: tuple[OrderStep, ...]) -> str | None:
    """What users call the first step after which rows that follow each other are not adjacent in their file.

    None if the steps leave rows adjacent, so that kept rows can be found among them. Deleted rows may come last.
    """
    for number, step in enumerate(steps):
        if not isinstance(step, Slice | Slices) and not (isinstance(step, Deletes) and number == len(steps) - 1):
            return str(step.describe()["op"])
    return None
