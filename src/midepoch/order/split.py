"""A split into training and test rows that is the same in every epoch, in constant memory.

Positions are divided into groups of ``GROUP``. The test rows before the position ``b`` that begins a group are
``(b * test + offset) // size``, so every group has its share and the total is exact. Which rows of a group these are
follows from one hash per row: those with the smallest hashes. The training rows before ``b`` follow the same formula,
with ``size - test`` for ``test`` and ``size - 1 - offset`` for ``offset``.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from midepoch._common.hashing import key_of, mix64
from midepoch._common.lazy import cached_property
from midepoch._common.types import I64
from midepoch.order.orders import Order, PieceLevel
from midepoch.order.windows import distinct

Half = Literal["train", "test"]
GROUP = 64
GROUPS_AT_ONCE = 4096
"""How many groups are hashed together, which bounds the memory."""
MOST_ROWS = 1 << 41
LOW_BITS = 20
LAST_RANK = np.iinfo(np.uint64).max


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
