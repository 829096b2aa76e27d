"""Arrays of wide rows that lie in several places, as those of a shuffle's window do: picked from where they lie."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from midepoch._common.types import I64

WIDE_BYTES = 512
MOST_PARTS = 16
"""More are better put together: before each batch, the files of all of them are looked at."""


class Spread:
    """The rows of several arrays, numbered through; the arrays differ in their number of rows alone."""

    def __init__(self, parts: Sequence[npt.NDArray[Any]]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])

    def pick(self, places: I64) -> npt.NDArray[Any]:
        """The rows at some places, in memory of their own."""
        parts = self._parts
        if len(parts) == 1 or not len(places):
            return parts[0][places]
        if len(places) == self._ends[-1] and (places == np.arange(len(places))).all():
            return np.concatenate(parts)
        # Wide rows are worth a Python object each, if they need not be copied to lie together first.
        owners = self._ends.searchsorted(places, "right")
        rows = places - self._ends[owners]  # counted from the end of the part
        views = [parts[owner][row] for owner, row in zip(owners.tolist(), rows.tolist(), strict=True)]
        return np.concatenate(views).reshape(len(places), *parts[0].shape[1:])


def spread(parts: Sequence[npt.NDArray[Any] | None]) -> Spread | None:
    """These arrays as one, if all are there, of one kind and wide."""
    there = [part for part in parts if part is not None]
    kinds = {(part.dtype, part.shape[1:]) for part in there}
    if len(there) < len(parts) or len(kinds) != 1:
        return None
    ((dtype, row),) = kinds
    return Spread(there) if dtype.itemsize * prod(row) >= WIDE_BYTES else None
