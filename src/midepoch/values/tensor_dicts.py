"""Dicts of arrays and tensors, which most batches are: sent as a description and their memory, without a pickle.

To pickle such a batch and to load it takes longer than all else that is done for it, besides the copies.
"""

import pickle
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from midepoch.values.forms import is_plain_tensor, torch_module
from midepoch.values.gather import PickedArray, WideBatches
from midepoch.values.received import Received
from midepoch.values.tensor_lists import JoinedList, are_joined_arrays, is_joined

Memory = memoryview | PickedArray | JoinedList
ARRAY, TENSOR, TENSORS, ARRAYS = range(4)
"""What a value is: an array, a tensor, or a list of tensors or arrays of one dimension."""
MARK = b"d"
"""The first byte of a description. A pickle begins with another."""


class Value(NamedTuple):
    """What a dict has under a name."""

    name: str
    kind: int
    dtype: Any
    """A type of NumPy or torch."""
    shape: tuple[int, ...]
    """The shape of an array or a tensor, or the lengths of those of a list."""


def described(item: Any) -> tuple[bytes, list[Memory]] | None:
    """The description of a dict and its memory, in order, none of it copied. None if it has any other value."""
    if type(item) is not dict or not item:
        return None
    values: list[Value] = []
    memory: list[Memory] = []
    tensors: list[Any] = []
    for name, value in item.items():
        found = _found(name, value) if type(name) is str else None
        if found is None:
            return None
        values.append(found[0])
        memory.append(found[1])
        tensors += value if found[0].kind in (TENSORS, ARRAYS) else (value,)
    if len(set(map(id, tensors))) < len(tensors):  # what is there twice arrives as one object: pickle does that
        return None
    return _description(tuple(values)), memory


def batch_description(batches: WideBatches) -> bytes:
    """The description of each of some batches: they differ only in their numbers."""
    kind = TENSOR if batches.form == "torch" else ARRAY
    return _description(
        tuple(
            Value(name, kind, torch_type(column.dtype) if kind == TENSOR else column.dtype, column.shape(batches.size))
            for name, column in batches.columns.items()
        )
    )


def load_described(description: bytes, received: Received) -> dict[str, Any]:
    """The dict of a description, with its arrays and tensors in new memory."""
    values = _values(description)
    if len({(kind, dtype) for _, kind, dtype, _ in values}) == 1 and values[0][1] == TENSORS:
        lists = received.tensor_lists(values[0][2], [lengths for _, _, _, lengths in values])
        return {name: tensors for (name, *_), tensors in zip(values, lists, strict=True)}
    makers = received.array, received.tensor, received.tensors, received.arrays
    return {name: makers[kind](number, dtype, shape) for number, (name, kind, dtype, shape) in enumerate(values)}


def _found(name: str, value: Any) -> tuple[Value, Memory] | None:
    kind = type(value)
    if kind is PickedArray:
        if value.form == "torch":
            return Value(name, TENSOR, torch_type(value.dtype), value.shape), value
        return Value(name, ARRAY, value.dtype, value.shape), value
    if kind is np.ndarray:
        flags = value.flags
        if not (flags.c_contiguous and flags.writeable and value.nbytes) or value.dtype.hasobject:
            return None
        return Value(name, ARRAY, value.dtype, value.shape), memoryview(value.reshape(-1).view(np.uint8))
    if kind is list and value and type(value[0]) is np.ndarray:
        if not are_joined_arrays(value):
            return None
        arrays = JoinedList(value)
        return Value(name, ARRAYS, value[0].dtype, tuple(arrays.lengths)), arrays
    if kind is list:
        if not _are_tensors(value) or not is_joined(value):
            return None
        tensors = JoinedList(value)
        return Value(name, TENSORS, value[0].dtype, tuple(tensors.lengths)), tensors
    if kind.__module__ != "torch" or not is_plain_tensor(value) or not value.numel() or not value.is_contiguous():
        return None
    flat = value.reshape(-1)
    if flat.stride(0) != 1:  # one value, which has any stride
        return None
    return Value(name, TENSOR, value.dtype, tuple(value.shape)), memoryview(flat.view(torch_module().uint8).numpy())


def _are_tensors(values: Sequence[Any]) -> bool:
    return bool(values) and type(values[0]).__module__ == "torch"


@lru_cache(256)
def _description(values: tuple[Value, ...]) -> bytes:
    return MARK + pickle.dumps([tuple(value) for value in values])


@lru_cache(256)
def _values(description: bytes) -> list[tuple[str, int, Any, tuple[int, ...]]]:
    values: list[tuple[str, int, Any, tuple[int, ...]]] = pickle.loads(description[len(MARK) :])
    return values


@cache
def torch_type(dtype: np.dtype[Any]) -> Any:
    """The type that torch has for numbers of a type of NumPy."""
    return torch_module().from_numpy(np.empty(0, dtype)).dtype
