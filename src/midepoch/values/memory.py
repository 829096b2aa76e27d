"""Memory of large arrays, which is used again when they are gone.

A system gives new memory page by page and clears it, which takes longer than to copy a batch into it. The batches of a
loop have the same size, and are gone soon. So the memory of some of them is kept.
"""

import ctypes
from contextlib import suppress
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

LARGE = 64 << 10
"""Arrays of fewer bytes are left to the system."""
MOST_KEPT = 64 << 20
"""The most bytes that are kept while nobody uses them, or two arrays that are larger."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Settings of glibc."""
MOST_ON_HEAP = 32 << 20
"""Larger arrays always come from the system: glibc allows no more."""
MOST_FREE = 128 << 20
"""A worker gives memory back if there is so much at the end of its heap."""


class Recycler:
    """Gives arrays of bytes, in memory that earlier ones left."""

    def __init__(self, most_kept: int = MOST_KEPT) -> None:
        self._most_kept = most_kept
        self._kept: dict[int, list[_Memory]] = {}  # by size

    def array(self, size: int) -> npt.NDArray[np.uint8]:
        """An array of bytes with any values."""
        if size < LARGE:
            return np.empty(size, np.uint8)
        try:
            memory = self._kept[size].pop()
        except (KeyError, IndexError):
            new = np.empty(size, np.uint8)
            memory = _Memory(new, new.__array_interface__)
        return np.asarray(_Loan(self, memory))

    def kept(self, size: int) -> int:
        """How many pieces of memory of a size wait for an array."""
        return len(self._kept.get(size, ()))

    def take_back(self, memory: "_Memory") -> None:
        """Keep memory for another array, unless much is kept already. Memory of other sizes is dropped first.

        Any thread may be the last that uses an array, so each step is one that no other thread can interrupt.
        """
        size = memory.array.nbytes
        kept = self._kept.setdefault(size, [])
        is_much = size + sum(other * len(more) for other, more in list(self._kept.items())) > self._most_kept
        if is_much and len(kept) < 2:
            for other in list(self._kept):
                if other != size:
                    self._kept.pop(other, None)
        if not is_much or len(kept) < 2:
            kept.append(memory)


class _Memory(NamedTuple):
    """Memory, and how NumPy describes it. To ask for that every time would take longer than everything else."""

    array: npt.NDArray[Any]
    description: dict[str, Any]


class _Loan:
    """What an array belongs to. NumPy and torch keep it as long as something shows the memory."""

    def __init__(self, recycler: Recycler, memory: _Memory) -> None:
        self._recycler, self._memory = recycler, memory
        self.__array_interface__ = memory.description

    def __del__(self) -> None:
        self._recycler.take_back(self._memory)


RECYCLER = Recycler()


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array with any values, in memory that earlier ones left if it is large."""
    size = prod(shape) * dtype.itemsize
    return np.empty(shape, dtype) if size < LARGE else RECYCLER.array(size).view(dtype).reshape(shape)


def keep_memory() -> None:
    """Let this process keep memory that it frees. For workers, which make the same things again and again.

    Without that the C library gives arrays of more than 128 kB back to the system each time.
    """
    with suppress(OSError, AttributeError):  # other systems than Linux with glibc have no such setting
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, MOST_ON_HEAP)
        mallopt(M_TRIM_THRESHOLD, MOST_FREE)
