"""Items as bytes for another process: a pickle, and beside it the memory of arrays and tensors, which is copied once.

Dicts of arrays and tensors have a short description in place of the pickle: :mod:`midepoch.values.tensor_dicts`.

What arrives equals what was sent, as with pickle alone: types, order of memory, and whether an array may be written to.
"""

import pickle
import sys
from collections.abc import Sequence
from io import BytesIO
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from midepoch.values.forms import is_plain_tensor, torch_module
from midepoch.values.gather import PickedArray
from midepoch.values.received import Received, TensorRuns
from midepoch.values.tensor_dicts import MARK, Memory, described, load_described, torch_type
from midepoch.values.tensor_lists import JoinedList, with_tensor_lists

WITHOUT_TENSORS = (np.ndarray, np.generic, np.dtype, type, FunctionType, BuiltinFunctionType)
"""What is pickled of arrays besides their memory. None of it is moved to a device."""
SMALL = 512
"""Arrays of fewer bytes are part of the pickle, which is faster. For tensors it is slower, also for small ones."""


class Pickled(NamedTuple):
    """An item: its pickle or description, and the memory that is sent beside it."""

    head: bytes
    memory: list[Memory]
    """That of arrays and tensors, by their numbers in the head; then that of other objects, in pickle's order."""
    arrays: int
    """How many of them are arrays and tensors."""
    is_plain: bool = False
    """True if there is nothing else that could have tensors: only Python's own values, in lists, tuples and dicts."""


def dump(item: Any) -> Pickled:
    """An item as bytes. Its memory is not copied."""
    if (found := described(item)) is not None:
        return Pickled(*found, arrays=len(found[1]), is_plain=True)
    file, others = BytesIO(), list[pickle.PickleBuffer]()
    pickler = _Pickler(file, others)
    pickler.dump(item if pickler.torch is None else with_tensor_lists(item))
    memory = [*pickler.arrays, *(other.raw() for other in others)]
    return Pickled(file.getvalue(), memory, len(pickler.arrays), pickler.is_plain)


def load(head: Any, memory: Sequence[memoryview], arrays: int, runs: TensorRuns | None = None) -> Any:
    """The item that was sent as ``head`` and ``memory``, of which the first ``arrays`` are arrays and tensors.

    ``runs`` copies tensors to where they are to stay. Without it they get memory of their own, as all else does.
    """
    if head[: len(MARK)] == MARK:
        return load_described(bytes(head), Received(memory, runs))
    others = (bytearray(other) for other in memory[arrays:])
    return _Unpickler(BytesIO(head), Received(memory[:arrays], runs), others).load()


class _Pickler(pickle.Pickler):
    """Takes the memory of arrays and tensors out of the pickle."""

    def __init__(self, file: BytesIO, others: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, protocol=5, buffer_callback=others.append)
        self.arrays: list[Memory] = []
        self.torch: Any = sys.modules.get("torch")
        self.is_plain = True

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray and value.nbytes >= SMALL and not value.dtype.hasobject:
            return _array_here, self._array(value)
        if type(value) is PickedArray:
            return self._picked(value)
        if type(value) is pa.FixedSizeListType:  # its own way forgets the name of its values
            return pa.list_, (value.value_field, value.list_size)
        if type(value) is JoinedList:
            self.arrays.append(value)
            return _tensors_here, (len(self.arrays) - 1, _name(value.values[0].dtype), value.lengths)
        if self.torch is not None and is_plain_tensor(value) and value.numel():
            return _tensor_here, self._tensor(value)
        self.is_plain = self.is_plain and isinstance(value, WITHOUT_TENSORS)
        return NotImplemented

    def _add(self, values: Any) -> int:
        """The number of some memory: that of an array of bytes."""
        self.arrays.append(memoryview(values).cast("B"))
        return len(self.arrays) - 1

    def _picked(self, picked: PickedArray) -> tuple[Any, ...]:
        """An array that is copied later, straight to where it is sent."""
        self.arrays.append(picked)
        number = len(self.arrays) - 1
        if picked.form == "torch":
            return _tensor_here, (number, _name(torch_type(picked.dtype)), picked.shape, None)
        return _array_here, (number, picked.dtype, picked.shape, "C", True)

    def _array(self, array: Any) -> tuple[Any, ...]:
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        number = self._add(array.ravel(order).view(np.uint8))  # no copy if the array is contiguous
        return number, array.dtype, array.shape, order, array.flags.writeable

    def _tensor(self, tensor: Any) -> tuple[Any, ...]:
        order = None
        if not tensor.is_contiguous():  # such as images whose channels come last
            order = tuple(sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis)))
            tensor = tensor.permute(order).contiguous()
        flat = tensor.reshape(-1)
        if flat.stride(0) != 1:  # one value, which has any stride
            flat = flat.clone(memory_format=self.torch.contiguous_format)
        return (
            self._add(flat.view(self.torch.uint8).numpy()),
            _name(tensor.dtype),
            tuple(tensor.shape),
            order,
        )


class _Unpickler(pickle.Unpickler):
    """Puts arrays and tensors in new memory."""

    def __init__(self, file: BytesIO, received: Received, others: Any) -> None:
        super().__init__(file, buffers=others)
        self._received = received

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__:
            return {"_array_here": self._array, "_tensor_here": self._tensor, "_tensors_here": self._list}[name]
        return super().find_class(module, name)

    def _array(self, number: int, dtype: Any, shape: tuple[int, ...], order: Any, writeable: bool) -> Any:
        array = self._received.array(number, dtype, shape, order)
        if not writeable:
            array.flags.writeable = False
        return array

    def _tensor(self, number: int, dtype: str, shape: tuple[int, ...], order: tuple[int, ...] | None) -> Any:
        tensor = self._received.tensor(number, getattr(torch_module(), dtype), shape)
        return tensor if order is None else tensor.permute(tuple(np.argsort(order).tolist()))

    def _list(self, number: int, dtype: str, lengths: list[int]) -> list[Any]:
        return self._received.tensors(number, getattr(torch_module(), dtype), lengths)


def _name(dtype: Any) -> str:
    """The name of a type of torch."""
    return str(dtype).partition(".")[2]


def _array_here(*what: Any) -> Any:
    raise TypeError("An array that is sent beside its pickle is loaded by midepoch.values.wire.load.")


def _tensors_here(*what: Any) -> Any:
    raise TypeError("Tensors that are sent beside their pickle are loaded by midepoch.values.wire.load.")


def _tensor_here(*what: Any) -> Any:
    raise TypeError("A tensor that is sent beside its pickle is loaded by midepoch.values.wire.load.")
