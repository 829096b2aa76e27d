"""Wide rows of numbers, copied straight from the arrays that hold them into a batch.

The rows of a shuffle window lie in several blocks. Putting those blocks together first would copy every row twice.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from midepoch._common.types import I64

WIDE_BYTES = 512
MAX_PARTS = 128
"""With more parts it is faster to put them together: the files of all parts are checked before each batch."""


class PartedArray:
    """Several arrays as one, without joining them. They differ only in their number of rows."""

    def __init__(self, parts: Sequence[npt.NDArray[Any]]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])

    def pick(self, indices: I64) -> npt.NDArray[Any]:
        """A new array of the rows at ``indices``."""
        parts = self._parts
        if len(parts) == 1 or not len(indices):
            return parts[0][indices]
        if len(indices) == self._ends[-1] and (indices == np.arange(len(indices))).all():
            return np.concatenate(parts)
        # For wide rows, one Python object per row costs less than a second copy of the row.
        owners = self._ends.searchsorted(indices, "right")
        rows = indices - self._ends[owners]  # negative: counted from the end of the part
        views = [parts[owner][row] for owner, row in zip(owners.tolist(), rows.tolist(), strict=True)]
        return np.concatenate(views).reshape(len(indices), *parts[0].shape[1:])


def parted_array(parts: Sequence[npt.NDArray[Any] | None]) -> PartedArray | None:
    """These arrays as one, if none is None, all have the same dtype and row shape, and the rows are wide."""
    arrays = [part for part in parts if part is not None]
    kinds = {(part.dtype, part.shape[1:]) for part in arrays}
    if len(arrays) < len(parts) or len(kinds) != 1:
        return None
    ((dtype, row_shape),) = kinds
    return PartedArray(arrays) if dtype.itemsize * prod(row_shape) >= WIDE_BYTES else None
