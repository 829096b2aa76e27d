"""An order without some rows: those that a table says were deleted after their files were written."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from midepoch._common.hashing import digest
from midepoch._common.types import I64
from midepoch.order.orders import Order


class Without:
    """Another order, in which rows rise, without the positions that ``gone`` lists in rising order."""

    def __init__(self, inner: Order, gone: I64) -> None:
        self._inner, self._gone = inner, gone
        self._kept_before = gone - np.arange(len(gone))
        self.size = inner.size - len(gone)

    def rows(self, positions: I64) -> I64:
        """Those of the inner order, past what is left out before them."""
        return self._inner.rows(positions + np.searchsorted(self._kept_before, positions, "right"))

    def pieces(self, level: Literal["file", "block"]) -> I64:
        """Those of the inner order, as far as anything of them is left."""
        bounds = self._inner.pieces(level)
        return np.unique(bounds - np.searchsorted(self._gone, bounds))


@dataclass(frozen=True, kw_only=True, eq=False)
class Deletes:
    """The rows, by their rising numbers in the whole data set, that are left out."""

    rows: I64

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def apply(self, inner: Order, *_key: int | str) -> Order:
        """The inner order, which may have left out whole blocks already, without them."""
        bounds = np.unique(inner.pieces("block"))
        if inner.size == 0:
            return inner
        firsts = inner.rows(bounds[:-1])
        piece = np.maximum(np.searchsorted(firsts, self.rows, "right") - 1, 0)
        inside = self.rows - firsts[piece]
        present = (inside >= 0) & (inside < np.diff(bounds)[piece])
        return Without(inner, (bounds[piece] + inside)[present])

    def size(self, inner: int) -> int:
        """As many as are left of all rows."""
        return inner - len(self.rows)

    def describe(self) -> dict[str, Any]:
        """How many there are, and a digest of them."""
        return {"op": "deletes", "rows": len(self.rows), "digest": self._digest}

    @cached_property
    def _digest(self) -> str:
        return digest(self.rows.astype("<i8").tobytes()).hex()
