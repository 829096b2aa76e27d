"""An order without rows that the user has taken out of a run: an edit, which a run that is under way accepts."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from midepoch._common.hashing import digest
from midepoch._common.lazy import cached_property
from midepoch._common.types import I64
from midepoch.order.deletes import WithoutPositions
from midepoch.order.orders import Order


@dataclass(frozen=True, kw_only=True, eq=False)
class Without:
    """Leave out these rows, given by their rising numbers in the whole dataset. Every epoch has all of them."""

    rows: I64

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def apply(self, inner: Order, *_key: int | str) -> Order:
        return WithoutPositions(inner, self.positions(inner))

    def positions(self, inner: Order) -> I64:
        """The rising positions of those of the rows that an order has."""
        return np.sort(inner.positions(self.rows))

    def size(self, inner: int) -> int:
        return inner - len(self.rows)

    def describe(self) -> dict[str, Any]:
        return {"op": "without", "rows": len(self.rows), "digest": self._digest}

    @cached_property
    def _digest(self) -> str:
        return digest(self.rows.astype("<i8").tobytes()).hex()
