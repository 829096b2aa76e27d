"""Wide rows of numbers, copied straight from the arrays that hold them into a batch.

The rows of a shuffle window lie in several blocks. Putting those blocks together first would copy every row twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from midepoch._common.types import I64
from midepoch.values.memory import new_array

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
        picked = new_array(self.shape(len(indices)), self.dtype)
        self.pick_into(picked, indices)
        return picked

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of all parts."""
        return self._parts[0].dtype

    def shape(self, count: int) -> tuple[int, ...]:
        """The shape of so many rows."""
        return (count, *self._parts[0].shape[1:])

    def pick_into(self, picked: npt.NDArray[Any], indices: I64) -> None:
        """Copy the rows at ``indices`` into an array of their shape, which is contiguous."""
        parts = self._parts
        if len(parts) == 1 or not len(indices):
            np.take(parts[0], indices, axis=0, out=picked, mode="clip")  # any other mode makes a copy first
        elif len(indices) == self._ends[-1] and (indices == np.arange(len(indices))).all():
            np.concatenate(parts, out=picked)
        else:  # for wide rows, one Python object per row costs less than a second copy of the row
            owners = self._ends.searchsorted(indices, "right")
            rows = indices - self._ends[owners]  # negative: counted from the end of the part
            views = [parts[owner][row] for owner, row in zip(owners.tolist(), rows.tolist(), strict=True)]
            np.concatenate(views, out=picked.reshape(-1, *picked.shape[2:]))


@dataclass(frozen=True, slots=True)
class PickedArray:
    """An array of rows, or a tensor of them, that is not copied before it is known where to."""

    column: PartedArray
    indices: I64
    form: Literal["numpy", "torch"]
    check: Callable[[], None] | None
    """Raises if a file has changed of which the rows are a view: called before they are copied, and after that."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers."""
        return self.column.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.column.shape(len(self.indices))

    def __len__(self) -> int:
        """The number of bytes."""
        return prod(self.shape) * self.dtype.itemsize

    def write_to(self, memory: memoryview) -> None:
        """Copy the rows into memory of their size."""
        self.column.pick_into(np.frombuffer(memory, self.dtype).reshape(self.shape), self.indices)


def parted_array(parts: Sequence[npt.NDArray[Any] | None]) -> PartedArray | None:
    """These arrays as one, if none is None, all have the same dtype and row shape, and the rows are wide."""
    arrays = [part for part in parts if part is not None]
    kinds = {(part.dtype, part.shape[1:]) for part in arrays}
    if len(arrays) < len(parts) or len(kinds) != 1:
        return None
    ((dtype, row_shape),) = kinds
    return PartedArray(arrays) if dtype.itemsize * prod(row_shape) >= WIDE_BYTES else None
