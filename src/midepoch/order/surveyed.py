"""An order of only the rows that filters keep, as a survey knows them.

The number of a kept row among all kept rows, and the row with such a number, are looked up in the survey's bits. So an
order needs memory for each piece, and none for each row.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from midepoch._common.types import I64
from midepoch.order.deletes import Deletes, WithoutPositions
from midepoch.order.orders import Order, OrderStep, PieceLevel, Slice
from midepoch.order.selection import Slices
from midepoch.order.windows import bounds_of, distinct


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
