"""Values: how Arrow columns and user functions' results become Python, NumPy, torch or Arrow values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch.errors import MissingExtraError, SchemaMismatchError
from midepoch.values.numbers import DTYPES, numbers_of

Form = Literal["python", "numpy", "torch", "arrow"]
FORMS: tuple[str, ...] = get_args(Form)


def collate(items: Sequence[Any], form: Form, ragged: Callable[[str], bool] | None = None) -> Any:
    """Make a batch of single items: a dict of columns for dicts, a record batch for Arrow, else a list.

    Arrays of equal shape are stacked, except in columns that are ``ragged``, which are lists of arrays always.
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
    columns = {name: [item[name] for item in items] for name in first}
    listed = ragged if ragged is not None and form in ("numpy", "torch") else lambda name: False
    return {
        name: [_convert_value(one, form) for one in column] if listed(name) else convert_named(name, column, form)
        for name, column in columns.items()
    }


def concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch out of several, whose types may differ where they were inferred from single items."""
    if all(batch.schema.equals(batches[0].schema) for batch in batches):
        return pa.concat_batches(batches)
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks().to_batches()[0]


def standalone(item: Any) -> Any:
    """An item as it is best sent to another process: a record batch without the rest of the block it was cut from.

    Arrow sends the whole block's memory with every cut of it.
    """
    if not isinstance(item, pa.RecordBatch):
        return item
    try:
        return pa.concat_batches([item, item.slice(0, 0)])
    except pa.ArrowException:  # some dictionaries cannot be joined, not even to themselves
        return item


def arrow_columns(batch: pa.RecordBatch, form: Form) -> Any:
    """A record batch in a form."""
    if form == "arrow":
        return batch
    make = {"python": to_python, "numpy": to_numpy, "torch": to_torch}[form]
    return {name: make(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def arrow_batches(batch: pa.RecordBatch, size: int, form: Literal["numpy", "torch", "arrow"]) -> Iterator[Any]:
    """The same, ``size`` rows at a time: to look at numbers takes longer than to cut them, so that is done once."""
    starts = range(0, batch.num_rows, size)
    if form == "arrow":
        return map(batch.slice, starts, repeat(size))
    make, finish = (to_torch, _tensor) if form == "torch" else (to_numpy, np.asarray)
    columns = [
        (name, one, make) if (array := even_array(one)) is None else (name, array, finish)
        for name, one in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return ({name: converted(one[at : at + size]) for name, one, converted in columns} for at in starts)


def even_array(column: pa.Array) -> npt.NDArray[Any] | None:
    """A view of a column of numbers, or of lists of as many numbers each, without nulls; None of any other.

    Of such a column some rows are what ``to_numpy`` would make of them alone.
    """
    return to_numpy(column) if _is_even(column) else None


def _is_even(column: pa.Array) -> bool:
    if isinstance(column, pa.ExtensionArray):
        return _is_even(column.storage)
    kind = column.type
    if column.null_count or not is_list(kind):
        return _is_number(kind) and not column.null_count
    if not pa.types.is_fixed_size_list(kind):
        lengths = numbers_of(column.value_lengths())
        if not len(lengths) or (lengths != lengths[0]).any():
            return False
    return _is_even(column.flatten())


def own_array(array: npt.NDArray[Any], form: Literal["numpy", "torch"]) -> Any:
    """An array of numbers that nobody else has, in a form."""
    return torch_module().from_numpy(array) if form == "torch" else array


def to_python(column: pa.Array) -> list[Any]:
    """A column as a list of the values that Arrow's ``to_pylist`` gives; numbers come quicker by way of NumPy."""
    kind = column.type
    slow = not _is_number(kind) or pa.types.is_float16(kind) or column.null_count
    values: list[Any] = column.to_pylist() if slow else numbers_of(column).tolist()
    return values


def to_numpy(column: pa.Array) -> Any:
    """A column as an array, a view of Arrow's memory where there are no nulls.

    Null floats become NaN and null times NaT, as Arrow does. Nulls among other values make an array of objects with
    None, so that ints stay ints. Lists of equal length become one more dimension; others, and those with nulls
    among them, a list of arrays.
    """
    column = storage(column)
    kind = column.type
    if _is_number(kind) and not column.null_count:
        return numbers_of(column)
    if pa.types.is_boolean(kind) or _is_number(kind):
        whole = column.null_count and not pa.types.is_floating(kind)
        return _objects(column.to_pylist()) if whole else _converted(column)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_date(kind):
        return _converted(column)
    if is_list(kind):
        return row_values(column, "numpy") if column.null_count else _list_to_numpy(column)
    return _objects(column.to_pylist())


def _converted(column: pa.Array) -> Any:
    return column.to_numpy(zero_copy_only=False)


def to_torch(column: pa.Array) -> Any:
    """A column as a tensor of its own memory where it holds numbers, as a list of those for ragged lists, or a list."""
    array = to_numpy(column)
    return _tensors(array) if _are_arrays(array) else column.to_pylist()


def row_values(column: pa.Array, form: Form) -> Any:
    """The values of a column one by one, each as if it were alone.

    What a row looks like must not depend on the rows beside it, which are others after a resume: an int next to a
    null stays what it is next to an int.
    """
    if form == "python":
        return to_python(column)
    make = to_torch if form == "torch" else to_numpy
    if _is_steady(column):
        return make(column)
    column = storage(column)
    if column.null_count:
        present = iter(row_values(column.drop_null(), form))
        return [next(present) if valid else None for valid in column.is_valid().to_pylist()]
    return [make(one.values) for one in column]


def convert(column: Any, form: Form) -> Any:
    """A sequence of values from user code in a form; what cannot be converted stays as it is."""
    if form == "python":
        return _to_python(column)
    if form == "arrow":
        return column if isinstance(column, pa.Array) else pa.array(_to_python(column))
    if form == "torch":
        return _stack_torch(column)
    return _stack_numpy(column)


def convert_named(name: str, column: Any, form: Form) -> Any:
    """The same of a column with a name; one of values that Arrow cannot put together is told."""
    try:
        return convert(column, form)
    except pa.ArrowException as error:
        raise SchemaMismatchError(
            f"The form 'arrow' needs values of one type in a column, and {name!r} has others: {error}. Let the "
            "function before return such, or remove the column."
        ) from error


def convert_each(column: Any, form: Form) -> Any:
    """The values of such a sequence one by one, each converted as if it were alone."""
    alike = not isinstance(column, list) or (len(kinds := set(map(type, column))) == 1 and kinds <= {bool, int, float})
    if form == "python" or alike:
        return convert(column, form)
    return [convert([value], form)[0] for value in column]


def as_column(column: Any, form: Form) -> Any:
    """What a user's function returned for a column: a list, an array or a tensor, which can be cut and joined."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.Array):
        return {"numpy": to_numpy, "torch": to_torch}.get(form, pa.Array.to_pylist)(column)
    return column if isinstance(column, list | np.ndarray) or hasattr(column, "dtype") else list(column)


def convert_values(item: Any, form: Form) -> Any:
    """The values of a dict, or one value, from user code in a form."""
    if isinstance(item, Mapping):
        return {name: _convert_value(value, form) for name, value in item.items()}
    return _convert_value(item, form)


def _convert_value(value: Any, form: Form) -> Any:
    if form == "python":
        return _to_python(value)
    if not _holds_numbers(value):
        return value
    return torch_module().as_tensor(value) if form == "torch" else np.asarray(value)


def torch_module() -> Any:
    """Torch, or an error that says how to get it."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch", "The form 'torch'") from error
    return torch


def _is_number(kind: pa.DataType) -> bool:
    return kind.id in DTYPES


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is that of lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def storage(column: pa.Array) -> pa.Array:
    """The column without what only says how to see it: extension types and dictionaries."""
    if isinstance(column, pa.ExtensionArray):
        return storage(column.storage)
    return storage(column.dictionary_decode()) if pa.types.is_dictionary(column.type) else column


def _is_steady(column: pa.Array) -> bool:
    """Whether no value of the column would be converted otherwise without the others."""
    column = storage(column)
    kind = column.type
    if is_list(kind):
        even = pa.types.is_fixed_size_list(kind) or not is_list(kind.value_type)
        return even and not column.null_count and _is_steady(column.flatten())
    return not column.null_count or not (pa.types.is_boolean(kind) or pa.types.is_integer(kind))


def _to_python(value: Any) -> Any:
    """Plain Python values in place of arrays and tensors."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    elif isinstance(value, pa.Array | pa.ChunkedArray):
        return value.to_pylist()
    return [_to_python(one) for one in value] if type(value) is list and _has_arrays(value) else value


def _has_arrays(values: list[Any]) -> bool:
    return any(hasattr(one, "tolist") or (type(one) is list and _has_arrays(one)) for one in values)


def _objects(values: Sequence[Any]) -> Any:
    return np.fromiter(values, object, len(values))


def _list_to_numpy(column: pa.Array) -> Any:
    """Lists as a matrix where they are equally long, else as a list of arrays."""
    if pa.types.is_fixed_size_list(column.type):
        each = column.type.list_size
        values = to_numpy(column.values.slice(column.offset * each, len(column) * each))
        if isinstance(values, np.ndarray):
            return values.reshape(len(column), each, *values.shape[1:])
        return [values[start : start + each] for start in range(0, len(values), each)] if each else [[] for _ in column]
    values = to_numpy(column.flatten())
    ends = np.concatenate([[0], np.cumsum(numbers_of(column.value_lengths()))])
    lengths = np.diff(ends)
    if isinstance(values, np.ndarray) and len(lengths) and (lengths == lengths[0]).all():
        return values.reshape(len(column), int(lengths[0]), *values.shape[1:])
    return [values[start:stop] for start, stop in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]


def _are_arrays(column: Any) -> bool:
    """Whether a column is an array of numbers, or a list of such and None."""
    if isinstance(column, list):
        return all(one is None or _are_arrays(one) for one in column)
    return isinstance(column, np.ndarray) and column.dtype.kind in "biuf"


def _tensors(column: Any) -> Any:
    return [_tensors(one) for one in column] if isinstance(column, list) else _tensor(column)


def _tensor(array: Any) -> Any:
    """A tensor with a copy of an array of numbers; anything else as it was."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        return array
    torch = torch_module()
    # Arrow's memory may be a read-only map of the file, which a write to the tensor would crash on: copy.
    return torch.from_numpy(array.copy())


def _stack_numpy(column: Any) -> Any:
    if isinstance(column, np.ndarray):
        return column
    if type(column).__module__.startswith("torch"):
        return column.numpy()
    arrays = [np.asarray(value) for value in column] if _are_numbers(column) else []
    if arrays and all(one.shape == arrays[0].shape and one.dtype.kind in "biuf" for one in arrays):
        return np.stack(arrays)
    return arrays if arrays and arrays[0].ndim else _objects(column)


def _stack_torch(column: Any) -> Any:
    torch = torch_module()
    if isinstance(column, torch.Tensor):
        return column
    if isinstance(column, np.ndarray):
        return _tensor(column)
    if not _are_numbers(column):
        return list(column)
    tensors = [value if isinstance(value, torch.Tensor) else torch.as_tensor(value) for value in column]
    if tensors and all(one.shape == tensors[0].shape for one in tensors):
        return torch.stack(tensors)
    return tensors


def _are_numbers(column: Sequence[Any]) -> bool:
    """Whether every value is a number, an array of numbers or a list of numbers, all of one kind."""
    return all(_holds_numbers(value) for value in column)


def _holds_numbers(value: Any) -> bool:
    if isinstance(value, bool | int | float | np.number | np.bool_):
        return True
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(one, bool | int | float) for one in value)
    return type(value).__module__ == "torch" and type(value).__name__ == "Tensor"


def join(parts: Sequence[Any], form: Form) -> Any:
    """One column out of its parts."""
    if all(isinstance(part, np.ndarray) and part.shape[1:] == parts[0].shape[1:] for part in parts):
        return np.concatenate(parts)
    if form == "torch" and all(not isinstance(part, list | np.ndarray) for part in parts):
        shapes = {tuple(part.shape[1:]) for part in parts}
        if len(shapes) == 1:
            return torch_module().cat(list(parts))
    return [value for part in parts for value in part]


def join_others(name: str, values: Sequence[Any], form: Form) -> Any:
    """What several samples have besides tokens: arrays and tensors end to end, anything else as a list.

    Those that have None are left out of arrays; where all have it, that is the result.
    """
    there = [value for value in values if value is not None]
    if not there:
        return None
    if not all(hasattr(value, "dtype") and getattr(value, "ndim", 0) and _holds_numbers(value) for value in there):
        return list(values)
    shapes = {tuple(value.shape[1:]) for value in there}
    if len(shapes) > 1:
        told = " and ".join(str(("n", *shape)) for shape in sorted(shapes))
        raise ValueError(
            f"{name!r} has arrays of the shapes {told} in samples "
            "that are put together; only the first number may differ. Let the function before return equal shapes, or "
            "lists of arrays, which are kept as they are."
        )
    if all(isinstance(value, np.ndarray) for value in there):
        joined = np.concatenate(there)
        return torch_module().from_numpy(joined) if form == "torch" else joined
    torch = torch_module()
    return torch.cat([torch.as_tensor(value) for value in there])
