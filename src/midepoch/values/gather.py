"""Wide rows of numbers, copied straight from the arrays that hold them into a batch.

The rows of a shuffle window lie in several blocks. Putting those blocks together first would copy every row twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from midepoch._common.lazy import cached_property
from midepoch._common.types import I64
from midepoch.values.addresses import RowAddresses, can_address
from midepoch.values.memory import new_array

WIDE_BYTES = 512
MAX_PARTS = 128
"""With more parts it is faster to put them together: the files of all parts are checked before each batch."""


@dataclass(frozen=True)
class PartedArray:
    """Rows of several arrays as one array, none of them copied. The arrays differ only in their number of rows."""

    arrays: tuple[npt.NDArray[Any], ...]
    owners: I64
    """For each row, the number of its array."""
    rows: I64
    """For each row, its number in that array."""
    is_whole: bool
    """True if these are all rows of all arrays, in their order."""

    @classmethod
    def of(cls, array: npt.NDArray[Any], rows: I64 | None = None) -> "PartedArray":
        """All rows of an array, or those at ``rows``."""
        is_whole, rows = rows is None, np.arange(len(array)) if rows is None else rows
        return cls((array,), np.zeros_like(rows), rows, is_whole)

    def at(self, indices: I64) -> "PartedArray":
        """The rows at ``indices``."""
        return PartedArray(self.arrays, self.owners[indices], self.rows[indices], is_whole=False)

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of all arrays."""
        return self.arrays[0].dtype

    def shape(self, count: int) -> tuple[int, ...]:
        """The shape of so many rows."""
        return (count, *self.arrays[0].shape[1:])

    @cached_property
    def _addresses(self) -> RowAddresses | None:
        """All rows, if one call can copy any of them."""
        return RowAddresses(self.arrays, self.owners, self.rows) if can_address(self.arrays) else None

    def pick(self, indices: I64) -> npt.NDArray[Any]:
        """A new array of the rows at ``indices``."""
        picked = new_array(self.shape(len(indices)), self.dtype)
        self.pick_into(picked, indices)
        return picked

    def pick_into(self, picked: npt.NDArray[Any], indices: I64) -> None:
        """Copy the rows at ``indices`` into an array of their shape, which is contiguous."""
        if len(self.arrays) == 1 or not len(indices):
            rows = self.rows[indices]
            if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
                picked[...] = self.arrays[0][rows[0] : rows[-1] + 1]
            else:  # any other mode makes a copy first
                np.take(self.arrays[0], rows, axis=0, out=picked, mode="clip")
        elif self.is_whole and len(indices) == len(self.rows) and (indices == np.arange(len(indices))).all():
            np.concatenate(self.arrays, out=picked)
        elif self._addresses is not None:
            self._addresses.pick_into(picked, indices)
        else:  # for wide rows, one Python object per row costs less than a second copy of the row
            places = zip(self.owners[indices].tolist(), self.rows[indices].tolist(), strict=True)
            views = [self.arrays[owner][row] for owner, row in places]
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


@dataclass(frozen=True, slots=True)
class WideBatches:
    """Batches of ``size`` rows, all of whose columns are wide rows of numbers. None is copied before it is sent."""

    columns: dict[str, PartedArray]
    indices: I64
    size: int
    form: Literal["numpy", "torch"]
    check: Callable[[], None] | None
    """As for a ``PickedArray``."""

    def __len__(self) -> int:
        return len(self.indices) // self.size

    @property
    def byte_counts(self) -> list[int]:
        """For each column, the number of bytes of a batch."""
        return [prod(column.shape(self.size)) * column.dtype.itemsize for column in self.columns.values()]

    def write_to(self, memory: memoryview, number: int, column: PartedArray) -> None:
        """Copy a column of batch ``number`` into memory of its size."""
        picked = np.ndarray(column.shape(self.size), column.dtype, memory)
        column.pick_into(picked, self.indices[number * self.size : (number + 1) * self.size])


def joined_array(parts: Sequence[PartedArray | None]) -> PartedArray | None:
    """The rows of all parts, if none is None, all have the same dtype and row shape, and the rows are wide."""
    present = [part for part in parts if part is not None]
    kinds = {(array.dtype, array.shape[1:]) for part in present for array in part.arrays}
    if len(present) < len(parts) or len(kinds) != 1:
        return None
    ((dtype, row_shape),) = kinds
    if dtype.itemsize * prod(row_shape) < WIDE_BYTES:
        return None
    firsts = np.cumsum([0, *(len(part.arrays) for part in present)]).tolist()
    return PartedArray(
        tuple(array for part in present for array in part.arrays),
        np.concatenate([part.owners + first for part, first in zip(present, firsts, strict=False)]),
        np.concatenate([part.rows for part in present]),
        is_whole=all(part.is_whole for part in present),
    )
