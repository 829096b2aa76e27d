"""Values that user functions returned: in the form that the pipeline asks for, as batches, and as Arrow columns."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from midepoch.errors import SchemaMismatchError
from midepoch.values.arrow import concat_batches
from midepoch.values.columns import Form, object_array, to_numpy, to_torch, torch_module

PYTHON_NUMBERS = {bool, int, float}


def convert(column: Any, form: Form) -> Any:
    """A sequence of values in a form. What cannot be converted stays unchanged."""
    if form == "python":
        return to_plain(column)
    if form == "arrow":
        return column if isinstance(column, pa.Array) else pa.array(to_plain(column))
    return _stack_torch(column) if form == "torch" else _stack_numpy(column)


def convert_named(name: str, column: Any, form: Form) -> Any:
    """``convert`` of a column, with an error that names the column if Arrow finds no common type."""
    try:
        return convert(column, form)
    except pa.ArrowException as error:
        raise SchemaMismatchError(
            f"The form 'arrow' needs values of one type in each column, but {name!r} has values of several: {error}. "
            "Let the function before return one type, or remove the column."
        ) from error


def convert_columns(
    columns: Mapping[str, Any], form: Form, ragged: Callable[[str], bool] | None = None
) -> dict[str, Any]:
    """Columns in a form. Arrays are never stacked in lists that are columns for which ``ragged(name)`` is true."""
    lists = {name for name, column in columns.items() if ragged and type(column) is list and ragged(name)}
    alone = lists if form in ("numpy", "torch") else set()
    return {
        name: [convert_value(value, form) for value in column] if name in alone else convert_named(name, column, form)
        for name, column in columns.items()
    }


def convert_each(column: Any, form: Form) -> Any:
    """The values of a sequence one by one, each converted as if it were alone."""
    alike = not isinstance(column, list) or (len(kinds := set(map(type, column))) == 1 and kinds <= {bool, int, float})
    if form == "python" or alike:
        return convert(column, form)
    return [convert([value], form)[0] for value in column]


def convert_value(value: Any, form: Form) -> Any:
    """One value in a form. What cannot be converted stays unchanged."""
    if form == "python":
        return to_plain(value)
    if form == "torch":
        tensor = tensor_from(value) if holds_numbers(value) else None
        return value if tensor is None else tensor
    return np.asarray(value) if holds_numbers(value) else value


def convert_values(item: Any, form: Form) -> Any:
    """The values of a dict, or a single value, in a form."""
    if isinstance(item, Mapping):
        return {name: convert_value(value, form) for name, value in item.items()}
    return convert_value(item, form)


def as_column(column: Any, form: Form) -> Any:
    """A column as a list, an array or a tensor, which can be sliced and joined."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.Array):
        return {"numpy": to_numpy, "torch": to_torch}.get(form, pa.Array.to_pylist)(column)
    return column if isinstance(column, list | np.ndarray) or hasattr(column, "dtype") else list(column)


def to_plain(value: Any) -> Any:
    """Plain Python values in place of arrays and tensors, also inside lists."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    elif isinstance(value, pa.Array | pa.ChunkedArray):
        return value.to_pylist()
    return [to_plain(inner) for inner in value] if type(value) is list and _has_arrays(value) else value


def holds_numbers(value: Any) -> bool:
    """True for a number, an array or a tensor of numbers, and a list of numbers that is not empty."""
    if isinstance(value, bool | int | float | np.number | np.bool_):
        return True
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    if isinstance(value, list | tuple):
        return bool(value) and all(issubclass(kind, bool | int | float) for kind in set(map(type, value)))
    return type(value).__module__ == "torch" and type(value).__name__ == "Tensor"


def _has_arrays(values: list[Any]) -> bool:
    return any(hasattr(value, "tolist") or (type(value) is list and _has_arrays(value)) for value in values)


def _stack_numpy(column: Any) -> Any:
    if isinstance(column, np.ndarray):
        return column
    if type(column).__module__.startswith("torch"):
        return column.numpy()
    arrays = [np.asarray(value) for value in column] if all(map(holds_numbers, column)) else []
    if arrays and all(array.shape == arrays[0].shape and array.dtype.kind in "biuf" for array in arrays):
        same = all(array.dtype == arrays[0].dtype for array in arrays)
        stacked = np.empty((len(arrays), *arrays[0].shape), arrays[0].dtype) if same else None
        return np.stack(arrays, out=stacked)  # contiguous, whatever the arrays are
    return arrays if arrays and arrays[0].ndim else object_array(column)


def _stack_torch(column: Any) -> Any:
    torch = torch_module()
    if isinstance(column, torch.Tensor):
        return column
    if isinstance(column, np.ndarray):
        tensor = tensor_from(column.copy()) if column.dtype.kind in "biuf" else None
        return column.tolist() if tensor is None else tensor
    if type(column) is list and (tensor := _of_python(column)) is not None:
        return tensor
    if not all(holds_numbers(value) or is_empty_list(value) for value in column):
        return list(column)
    tensors = [tensor_from(value) for value in column]
    if any(tensor is None for tensor in tensors):
        return list(column)
    kinds = {tensor.dtype for tensor in tensors if tensor.numel()}
    if len(kinds) == 1:  # an empty list says nothing about its type: it has that of the others
        (kind,) = kinds
        tensors = [tensor if tensor.numel() else tensor.to(kind) for tensor in tensors]
    if all(tensor.shape == tensors[0].shape for tensor in tensors):
        return torch.stack(tensors)
    return tensors


def _of_python(numbers: list[Any]) -> Any:
    """A tensor of Python's numbers of one type; None of anything else. NumPy makes it many times faster than torch."""
    kinds = set(map(type, numbers))
    array = np.array(numbers) if len(kinds) == 1 and kinds <= PYTHON_NUMBERS else np.array(None)
    if array.dtype.kind not in "bif":  # such as integers that only an unsigned type holds
        return None
    torch = torch_module()
    tensor = torch.from_numpy(array)
    return tensor.to(torch.get_default_dtype()) if array.dtype.kind == "f" else tensor


def tensor_from(value: Any) -> Any:
    """A tensor of a number, a list or an array of numbers; None if torch has no such numbers.

    It shares the memory of an array that may be written to. Others are copied: torch can protect no memory.
    """
    torch = torch_module()
    if isinstance(value, torch.Tensor):
        return value
    if type(value) is list and (tensor := _of_python(value)) is not None:
        return tensor
    if isinstance(value, np.ndarray) and not (value.flags.writeable and all(step >= 0 for step in value.strides)):
        value = value.copy()
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # such as integers of more than 64 bits
        return None


def is_empty_list(value: Any) -> bool:
    """True for a list or a tuple without values. Beside lists of numbers it is one of them."""
    return isinstance(value, list | tuple) and not value


def collate(items: Sequence[Any], form: Form, ragged: Callable[[str], bool] | None = None) -> Any:
    """One batch of single items: a dict of columns for dicts, a record batch for record batches, else a list.

    Arrays of equal shape are stacked, except in columns for which ``ragged(name)`` is true: those are always lists.
    """
    first = items[0]
    if isinstance(first, pa.RecordBatch):
        return concat_batches(items)
    if not isinstance(first, Mapping):
        return convert(list(items), form)
    for item in items:
        if set(item) != set(first):
            raise ValueError(
                f"A batch needs items with the same columns, but one has {list(first)} and another {list(item)}. "
                "Let the function return the same keys for every item."
            )
    return convert_columns({name: [item[name] for item in items] for name in first}, form, ragged)


def join_columns(parts: Sequence[Any], form: Form) -> Any:
    """One column out of several parts of it: an array or a tensor if the parts fit, else a list."""
    if all(isinstance(part, np.ndarray) and part.shape[1:] == parts[0].shape[1:] for part in parts):
        return np.concatenate(parts)
    if form == "torch" and all(not isinstance(part, list | np.ndarray) for part in parts):
        shapes = {tuple(part.shape[1:]) for part in parts}
        if len(shapes) == 1:
            return torch_module().cat(list(parts))
    return [value for part in parts for value in part]


def join_others(name: str, values: Sequence[Any], form: Form) -> Any:
    """A column besides the tokens, of several samples: arrays and tensors end to end, anything else as a list.

    Samples with None are left out of the array. If all have None, the result is None.
    """
    present = [value for value in values if value is not None]
    if not present:
        return None
    if not all(hasattr(value, "dtype") and getattr(value, "ndim", 0) and holds_numbers(value) for value in present):
        return list(values)
    shapes = {tuple(value.shape[1:]) for value in present}
    if len(shapes) > 1:
        listed = " and ".join(str(("n", *shape)) for shape in sorted(shapes))
        raise ValueError(
            f"{name!r} has arrays of the shapes {listed} in samples that are joined; only the first dimension may "
            "differ. Let the function before return arrays of one shape, or lists of arrays, which are not joined."
        )
    if all(isinstance(value, np.ndarray) for value in present):
        joined = np.concatenate(present)
        return torch_module().from_numpy(joined) if form == "torch" else joined
    torch = torch_module()
    return torch.cat([torch.as_tensor(value) for value in present])


INT32 = np.iinfo(np.int32)
BINARIES = {pa.binary().id, pa.large_binary().id}
STRINGS = {pa.string().id, pa.large_string().id}


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
        if _ids(field.type) & BINARIES and any(_ids(kind) & STRINGS for kind in kinds):
            raise pa.ArrowTypeError(f"Field {field.name} has incompatible types: {kinds[0]} vs {kinds[1]}")
    return wide


def _ids(kind: pa.DataType) -> set[int]:
    """The ids of a type and of all types inside it."""
    return {kind.id}.union(*(_ids(kind.field(number).type) for number in range(kind.num_fields)))


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
