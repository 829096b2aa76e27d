"""Values that functions returned as Arrow columns: arrays keep their type, lists of Python integers become int32."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from midepoch.values.convert import to_plain

INT32 = np.iinfo(np.int32)


def to_arrow(column: Any, kind: pa.DataType | None = None) -> pa.Array:
    """A sequence of values as an Arrow array, of a given type or of the one that fits the values.

    Arrow's exceptions pass through: they say that the values have no common type, or not the given one.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.Array):
        return _as_type(column, kind)
    if hasattr(column, "numpy"):  # a tensor
        column = column.numpy()
    if isinstance(column, np.ndarray) and column.dtype != object:
        return _as_type(_of_array(column), kind)
    values = list(column)
    made = _of_int_lists(values)
    if made is None:
        made = _of_arrays(values)
    if made is None:
        made = pa.array([to_plain(value) for value in values] if any(map(_holds_arrays, values)) else values)
    if isinstance(made, pa.ChunkedArray):
        raise pa.ArrowCapacityError("the values of these rows do not fit into one Arrow column")
    return _as_type(made, kind)


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that is known of two, one of which may be that of nulls or of empty lists. Else the first."""
    if pa.types.is_null(one):
        return other
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(common_type(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        known = {field.name: field.type for field in other}
        return pa.struct([field.with_type(common_type(field.type, known.get(field.name, field.type))) for field in one])
    return one


def is_known(kind: pa.DataType) -> bool:
    """True if a type does not come from nulls or empty lists alone."""
    if pa.types.is_null(kind):
        return False
    return all(is_known(kind.field(number).type) for number in range(kind.num_fields))


def _as_type(values: pa.Array, kind: pa.DataType | None) -> pa.Array:
    if kind is None or values.type.equals(kind):
        return values
    if _loses(values.type, kind):
        raise pa.ArrowInvalid(f"{values.type} is not {kind}")
    return values.cast(kind)


def _loses(one: pa.DataType, other: pa.DataType) -> bool:
    """True if a cast can change values without an error: from floats to integers, or between text and numbers."""
    if pa.types.is_nested(one) and pa.types.is_nested(other) and one.num_fields == other.num_fields:
        return any(_loses(one.field(number).type, other.field(number).type) for number in range(one.num_fields))
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    was, becomes = ([is_kind(kind) for is_kind in kinds] for kind in (one, other))
    return was != becomes and not pa.types.is_null(one) and not (was[0] and becomes[1])


def _of_int_lists(values: Sequence[Any]) -> pa.Array | None:
    """Lists of Python integers of 32 bits, most likely tokens; None if the values are anything else.

    It is several times as fast as Arrow, which looks at each value twice.
    """
    first = next((value for value in values if type(value) is not list or value), None)
    if type(first) is not list or type(first[0]) is not int:
        return None
    flat = array("i")
    try:
        for value in values:
            flat.fromlist(value)
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
