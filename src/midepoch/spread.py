"""Arrays whose rows lie in several places, as those of a shuffle's window do: picked without being put together."""

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from midepoch.permute import I64

WIDE_BYTES = 512
MOST_PARTS = 64
"""Of so many parts, rows may be picked where they lie; more are put together at first use."""


class Spread:
    """The rows of several arrays, numbered through; the arrays differ in their number of rows alone."""

    def __init__(self, parts: Sequence[npt.NDArray[Any]]) -> None:
        self._parts = parts
        self._row = parts[0].shape[1:]
        is_wide = parts[0].dtype.itemsize * prod(self._row) >= WIDE_BYTES
        self._stay_apart = is_wide and 1 < len(parts) <= MOST_PARTS

    def pick(self, places: I64) -> npt.NDArray[Any]:
        """The rows at some places, in memory of their own."""
        if not self._stay_apart or not len(places):
            return self._together[places]
        # Wide rows are worth a Python object each, if they need not be copied to lie together first.
        owners = self._starts.searchsorted(places, "right") - 1
        rows = (places - self._starts[owners]).tolist()
        views = [self._parts[owner][row] for owner, row in zip(owners.tolist(), rows, strict=True)]
        return np.concatenate(views).reshape(len(places), *self._row)

    @cached_property
    def _starts(self) -> I64:
        """The first row of each part."""
        return np.cumsum([0, *map(len, self._parts[:-1])])

    @cached_property
    def _together(self) -> npt.NDArray[Any]:
        return self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)


def spread(parts: Sequence[npt.NDArray[Any] | None]) -> Spread | None:
    """These arrays as one, if all are there and of one kind."""
    there = [part for part in parts if part is not None]
    kinds = {(part.dtype, part.shape[1:]) for part in there}
    return Spread(there) if len(there) == len(parts) and len(kinds) == 1 else None
