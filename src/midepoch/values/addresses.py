"""Rows of many arrays as rows of one tensor, by where they lie in memory: one call copies any of them.

NumPy copies rows of one array in one call, but needs an object for each row if they are rows of several. For rows of
8 KB that takes as long as the copy itself. A tensor may have rows that overlap: one that begins at every place where a
row could be has all rows of all arrays.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from midepoch._common.types import I64


class _Memory:
    """Bytes at an address, for NumPy."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (address, False),
            "shape": shape,
            "strides": strides,
        }


class RowAddresses:
    """Rows of several arrays, which stay where they are. The arrays must live as long as this."""

    def __init__(self, arrays: Sequence[npt.NDArray[Any]], owners: I64, rows: I64) -> None:
        """``owners`` has the number of each row's array, ``rows`` its number there. All arrays are contiguous."""
        first = arrays[0]
        row_bytes = first.itemsize * int(np.prod(first.shape[1:]))
        starts = np.array([array.__array_interface__["data"][0] for array in arrays], np.int64)
        stop = max(int(start) + array.nbytes for start, array in zip(starts, arrays, strict=True))
        low = int(starts.min())
        step = int(np.gcd.reduce([row_bytes, *(starts - low).tolist()]))
        count = (stop - low - row_bytes) // step + 1
        places = np.asarray(_Memory(low, (count, row_bytes), (step, 1)))  # it is read only where there are rows
        self._torch = sys.modules["torch"]
        self._places = self._torch.from_numpy(places)
        self._numbers = (starts[owners] - low + rows * row_bytes) // step

    def pick_into(self, picked: npt.NDArray[Any], indices: I64) -> None:
        """Copy the rows at ``indices`` into an array of their shape, which is contiguous."""
        torch = self._torch
        out = torch.from_numpy(picked.reshape(-1).view(np.uint8)).view(len(picked), self._places.shape[1])
        torch.index_select(self._places, 0, torch.from_numpy(self._numbers[indices]), out=out)


def can_address(arrays: Sequence[npt.NDArray[Any]]) -> bool:
    """True if rows of these arrays can be copied so: torch is there, and uses one thread.

    Its other threads do not exist in a forked process, which would wait for them forever.
    """
    torch = sys.modules.get("torch")
    if torch is None or torch.get_num_threads() != 1:
        return False
    return all(array.nbytes and array.flags.c_contiguous for array in arrays)
