"""Values that functions returned as Arrow columns: arrays keep their type, lists of Python integers become int32."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from midepoch.values.convert import to_plain

INT32 = np.iinfo(np.int32)


def to_arrow(column: Any) -> pa.Array:
    """A sequence of values as an Arrow array of the type that fits them. Arrow's exceptions pass through."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.Array):
        return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if hasattr(column, "numpy"):  # a tensor
        column = column.numpy()
    if isinstance(column, np.ndarray) and column.dtype != object:
        return _of_array(column)
    values = list(column)
    made = _of_int_lists(values)
    if made is None:
        made = _of_arrays(values)
    if made is None:
        made = pa.array([to_plain(value) for value in values] if any(map(_holds_arrays, values)) else values)
    if isinstance(made, pa.ChunkedArray):
        raise pa.ArrowCapacityError("the values of these rows do not fit into one Arrow column")
    return made


def widened(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The schema that holds the values of both, unchanged but for integers that become floats.

    Nulls and empty lists take any type, numbers the wider one. Raises ``pa.ArrowTypeError`` if there is none, and
    ``ValueError`` if the columns have other names.
    """
    if one.equals(other):
        return one
    if set(one.names) != set(other.names):
        raise ValueError(f"the columns are {one.names} and {other.names}")
    wide = pa.unify_schemas([one, other], promote_options="permissive")
    for field in wide:  # Arrow would make bytes of text
        kinds = [schema.field(field.name).type for schema in (one, other)]
        if _has(field.type, _is_binary) and any(_has(kind, _is_string) for kind in kinds):
            raise pa.ArrowTypeError(f"Field {field.name} has incompatible types: {kinds[0]} vs {kinds[1]}")
    return wide


def _has(kind: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    return is_kind(kind) or any(_has(kind.field(number).type, is_kind) for number in range(kind.num_fields))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _of_int_lists(values: Sequence[Any]) -> pa.Array | None:
    """Lists of Python integers of 32 bits, most likely tokens; None if the values are anything else.

    It takes about half the time of Arrow, which looks at each value twice.
    """
    first = next((value for value in values if type(value) is not list or value), None)
    if type(first) is not list or type(first[0]) is not int:
        return None
    flat = array("i")
    try:
        for value in values:
            flat.fromlist(value)
            if value and type(value[0]) is not int:  # an array takes bools for integers
                return None
    except (TypeError, OverflowError):
        return None
    return _lists([len(value) for value in values], pa.array(np.frombuffer(flat, np.int32)))


def _of_arrays(values: Sequence[Any]) -> pa.Array | None:
    """One-dimensional arrays or tensors of one dtype, maybe with None among them; None if the values are others."""
    arrays = [value.numpy() if hasattr(value, "numpy") else value for value in values]
    present = [one for one in arrays if one is not None]
    if not present or not all(isinstance(one, np.ndarray) and one.ndim == 1 for one in present):
        return None
    if len({one.dtype for one in present}) > 1 or present[0].dtype == object:
        return None
    mask = None if len(present) == len(arrays) else pa.array([one is None for one in arrays])
    return _lists([0 if one is None else len(one) for one in arrays], pa.array(np.concatenate(present)), mask)


def _lists(lengths: Sequence[int], values: pa.Array, mask: pa.Array | None = None) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if offsets[-1] > INT32.max:
        return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=mask)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, mask=mask)


def _of_array(values: Any) -> pa.Array:
    """An array, whose further dimensions become lists."""
    if values.ndim == 1:
        return pa.array(values)
    return _lists([values.shape[1]] * len(values), _of_array(values.reshape(-1, *values.shape[2:])))


def _holds_arrays(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_arrays, value.values()))
    if isinstance(value, list | tuple):
        return any(hasattr(inner, "tolist") or _holds_arrays(inner) for inner in value[:1])
    return hasattr(value, "tolist")
