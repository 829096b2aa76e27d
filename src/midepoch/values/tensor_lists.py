"""Lists of tensors or arrays, such as the packs of a batch: each list is sent, copied and cut up as one piece.

To send and receive a small tensor takes longer than to copy it, and a batch of packs has dozens of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from midepoch.values.forms import is_plain_tensor, torch_module

VALUES = (int, float, bool, str, bytes, type(None), np.ndarray, np.generic)
"""What an item may have beside tensors and lists of them: nothing in which one of these tensors could be again."""


@dataclass(frozen=True, slots=True)
class JoinedList:
    """Arrays, or tensors of numbers, of one type and one dimension, which are in no other place of their item."""

    values: list[Any]

    @property
    def lengths(self) -> list[int]:
        """The number of values of each."""
        return [len(value) for value in self.values]

    def __len__(self) -> int:
        """The number of bytes."""
        return sum(value.nbytes for value in self.values)

    def write_to(self, memory: memoryview) -> None:
        """Copy them into memory of their size, one after the other."""
        arrays = self.values if type(self.values[0]) is np.ndarray else self._bytes_of_tensors()
        np.concatenate(arrays, out=np.frombuffer(memory, arrays[0].dtype))

    def _bytes_of_tensors(self) -> list[npt.NDArray[np.uint8]]:
        uint8 = torch_module().uint8
        return [tensor.view(uint8).numpy() for tensor in self.values if len(tensor)]


def are_joined_arrays(values: list[Any]) -> bool:
    """True if a list is worth to be one piece: several arrays of one type and one dimension, that may be written to."""
    first = values[0]
    return (
        len(values) > 1
        and all(
            type(value) is np.ndarray and value.ndim == 1 and value.dtype == first.dtype and value.flags.writeable
            for value in values
        )
        and not first.dtype.hasobject
        and any(value.nbytes for value in values)
    )


def with_tensor_lists(item: Any) -> Any:
    """An item whose lists of tensors are each a ``JoinedList``; the item itself if it has none, or other values too."""
    if type(item) is not dict:
        return item
    lists = {name: JoinedList(value) for name, value in item.items() if type(value) is list and is_joined(value)}
    if not lists:
        return item
    tensors = [tensor for one in lists.values() for tensor in one.values]
    for name, value in item.items():
        if name not in lists and type(value) is torch_module().Tensor:
            tensors.append(value)
        elif name not in lists and not _has_no_tensors(value):
            return item
    is_once = len({id(tensor) for tensor in tensors}) == len(tensors)  # pickle sends one object once
    return {**item, **lists} if is_once else item


def cut_up(memory: Any, lengths: Sequence[int], *, own: bool) -> list[Any]:
    """The tensors of a list, from one that holds them all: views of it, or with ``own`` each in memory of its own."""
    parts = torch_module().split_with_sizes(memory, lengths)  # its method split does more, in Python
    return [part.clone() for part in parts] if own else list(parts)


def is_joined(values: list[Any]) -> bool:
    """True if a list is worth to be one piece: several tensors of numbers, of one type and one dimension."""
    return (
        len(values) > 1
        and all(
            is_plain_tensor(value)
            and value.dtype == values[0].dtype
            and value.dim() == 1
            and (value.stride(0) == 1 or not len(value))
            for value in values
        )
        and any(map(len, values))
    )


def _has_no_tensors(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(one, VALUES) for one in value)
    return isinstance(value, VALUES) and not (isinstance(value, np.ndarray) and value.dtype.hasobject)
