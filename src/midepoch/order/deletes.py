"""An order without the rows that a table says were deleted after their files were written."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from midepoch._common.hashing import digest
from midepoch._common.lazy import cached_property
from midepoch._common.types import I64
from midepoch.order.orders import Order, PieceLevel
from midepoch.order.windows import distinct


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
class Deletes:
    """Leave out these rows, given by their rising numbers in the whole dataset."""

    rows: I64

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def apply(self, inner: Order, *_key: int | str) -> Order:
        """The inner order, which may lack whole blocks already, without the rows."""
        starts = distinct(inner.piece_starts("block"))
        if inner.size == 0:
            return inner
        first_rows = inner.rows(starts[:-1])
        piece = np.maximum(np.searchsorted(first_rows, self.rows, "right") - 1, 0)
        offset = self.rows - first_rows[piece]
        is_present = (offset >= 0) & (offset < np.diff(starts)[piece])
        return WithoutPositions(inner, (starts[piece] + offset)[is_present])

    def size(self, inner: int) -> int:
        return inner - len(self.rows)

    def describe(self) -> dict[str, Any]:
        return {"op": "deletes", "rows": len(self.rows), "digest": self._digest}

    @cached_property
    def _digest(self) -> str:
        return digest(self.rows.astype("<i8").tobytes()).hex()
