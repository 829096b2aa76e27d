"""Items as bytes for another process: a pickle, and beside it the memory of arrays and tensors, which is copied once.

What arrives equals what was sent, as with pickle alone: types, order of memory, and whether an array may be written to.
"""

import pickle
import sys
from collections.abc import Callable, Sequence
from functools import cache
from io import BytesIO
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from midepoch.values.forms import is_plain_tensor, torch_module
from midepoch.values.gather import PickedArray
from midepoch.values.memory import LARGE, RECYCLER, new_array
from midepoch.values.tensor_lists import TensorList, cut_up, with_tensor_lists

WITHOUT_TENSORS = (np.ndarray, np.generic, np.dtype, type, FunctionType, BuiltinFunctionType)
"""What is pickled of arrays besides their memory. None of it is moved to a device."""
BYTES = np.dtype(np.uint8)
SMALL = 512
"""Arrays of fewer bytes are part of the pickle, which is faster. For tensors it is slower, also for small ones."""
RUN_PART = 256 << 10
"""Tensors of fewer bytes are copied together with others that lie beside them."""
RUN_BYTES = 1 << 20
"""So many bytes are copied together at most. Who keeps a tensor keeps all of them."""


class Pickled(NamedTuple):
    """An item: its pickle, and the memory that is sent beside it."""

    head: bytes
    memory: list[memoryview | PickedArray | TensorList]
    """That of arrays and tensors, by their numbers in the pickle; then that of other objects, in pickle's order."""
    arrays: int
    """How many of them are arrays and tensors."""
    is_plain: bool = False
    """True if there is nothing else that could have tensors: only Python's own values, in lists, tuples and dicts."""


def dump(item: Any) -> Pickled:
    """An item as bytes. Its memory is not copied."""
    file, others = BytesIO(), list[pickle.PickleBuffer]()
    pickler = _Pickler(file, others)
    pickler.dump(item if pickler.torch is None else with_tensor_lists(item))
    memory = [*pickler.arrays, *(other.raw() for other in others)]
    return Pickled(file.getvalue(), memory, len(pickler.arrays), pickler.is_plain)


def load(head: Any, memory: Sequence[memoryview], arrays: int, tensors: Callable[[int], Any] | None = None) -> Any:
    """The item of a pickle, in memory of its own.

    ``tensors`` gives the bytes of a tensor where they are to stay, by its number in ``memory``. Else they are copied.
    """
    others = (bytearray(other) for other in memory[arrays:])
    return _Unpickler(BytesIO(head), memory[:arrays], others, tensors).load()


class TensorRuns:
    """The bytes of tensors that lie next to each other in memory, copied together if they are small.

    A copy to pinned memory or to a device takes long to begin, however small it is.
    """

    def __init__(self, view: memoryview, spans: Sequence[tuple[int, int]], copy: Callable[[Any], Any]) -> None:
        """``spans`` says where in ``view`` the tensors begin and end; ``copy`` copies a tensor of bytes."""
        self._view, self._spans, self._copy = view, spans, copy
        self._start = self._stop = 0
        self._run: Any = None

    def __call__(self, number: int) -> Any:
        """The bytes of a tensor."""
        start, stop = self._spans[number]
        if not self._start <= start < self._stop:
            self._copy_run(number)
        return self._run[start - self._start : stop - self._start]

    def _copy_run(self, number: int) -> None:
        import torch

        start, stop = self._spans[number]
        for begin, end in self._spans[number + 1 :] if stop - start < RUN_PART else ():
            if end - begin >= RUN_PART or end - start > RUN_BYTES:
                break
            stop = end
        self._start, self._stop = start, stop
        self._run = self._copy(torch.frombuffer(self._view[start:stop], dtype=torch.uint8))


def copied(tensor: Any, *, pin: bool = False) -> Any:
    """A copy of a tensor, by one thread; with ``pin``, in pinned memory."""
    torch = sys.modules["torch"]
    if pin:
        new = tensor.new_empty(tensor.shape, pin_memory=True)
        np.copyto(new.reshape(-1).view(torch.uint8).numpy(), tensor.reshape(-1).view(torch.uint8).numpy())
        return new
    if tensor.nbytes < LARGE:
        return tensor.clone()
    memory = RECYCLER.array(tensor.nbytes)
    np.copyto(memory, tensor.reshape(-1).view(torch.uint8).numpy())
    return torch.from_numpy(memory).view(tensor.dtype).view(tensor.shape)


class _Pickler(pickle.Pickler):
    """Takes the memory of arrays and tensors out of the pickle."""

    def __init__(self, file: BytesIO, others: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, protocol=5, buffer_callback=others.append)
        self.arrays: list[memoryview | PickedArray | TensorList] = []
        self.torch: Any = sys.modules.get("torch")
        self.is_plain = True

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray and value.nbytes >= SMALL and not value.dtype.hasobject:
            return _array_here, self._array(value)
        if type(value) is PickedArray:
            return self._picked(value)
        if type(value) is TensorList:
            self.arrays.append(value)
            return _tensors_here, (len(self.arrays) - 1, value.dtype, value.lengths)
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
            return _tensor_here, (number, _torch_name(picked.dtype), picked.shape, None)
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
            str(tensor.dtype).partition(".")[2],
            tuple(tensor.shape),
            order,
        )


class _Unpickler(pickle.Unpickler):
    """Puts arrays and tensors in new memory."""

    def __init__(
        self, file: BytesIO, arrays: Sequence[memoryview], others: Any, tensors: Callable[[int], Any] | None
    ) -> None:
        super().__init__(file, buffers=others)
        self._arrays, self._tensors = arrays, tensors

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__:
            return {"_array_here": self._array, "_tensor_here": self._tensor, "_tensors_here": self._list}[name]
        return super().find_class(module, name)

    def _array(self, number: int, dtype: Any, shape: tuple[int, ...], order: Any, writeable: bool) -> Any:
        sent: Any = np.ndarray(shape, dtype, self._arrays[number], order=order)
        array: Any = np.ndarray(shape, dtype, new_array((sent.nbytes,), BYTES), order=order)
        np.copyto(array, sent)
        if not writeable:
            array.flags.writeable = False
        return array

    def _tensor(self, number: int, dtype: str, shape: tuple[int, ...], order: tuple[int, ...] | None) -> Any:
        import torch

        if self._tensors is None:
            tensor = copied(torch.frombuffer(self._arrays[number], dtype=getattr(torch, dtype))).view(shape)
        else:
            tensor = self._tensors(number).view(getattr(torch, dtype))
            tensor = tensor if len(shape) == 1 else tensor.view(shape)
        return tensor if order is None else tensor.permute(tuple(np.argsort(order).tolist()))

    def _list(self, number: int, dtype: str, lengths: list[int]) -> list[Any]:
        import torch

        own = self._tensors is None
        memory = torch.frombuffer(self._arrays[number], dtype=torch.uint8) if own else self._tensors(number)  # type: ignore[misc]
        return cut_up(memory.view(getattr(torch, dtype)), lengths, own=own)


@cache
def _torch_name(dtype: np.dtype[Any]) -> str:
    """The name that torch has for a type of numbers."""
    return str(torch_module().from_numpy(np.empty(0, dtype)).dtype).partition(".")[2]


def _array_here(*what: Any) -> Any:
    raise TypeError("An array that is sent beside its pickle is loaded by midepoch.values.wire.load.")


def _tensors_here(*what: Any) -> Any:
    raise TypeError("Tensors that are sent beside their pickle are loaded by midepoch.values.wire.load.")


def _tensor_here(*what: Any) -> Any:
    raise TypeError("A tensor that is sent beside its pickle is loaded by midepoch.values.wire.load.")
