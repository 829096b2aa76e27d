"""Values: how Arrow columns and user functions' results become Python, NumPy, torch or Arrow items.

``Rows`` is some rows in one of two shapes, an Arrow record batch or a dict of columns, together with the form in
which they are handed to users. It is converted column by column and fanned out to single rows last.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, repeat
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch.errors import MissingExtraError, SchemaMismatchError

Form = Literal["python", "numpy", "torch", "arrow"]
FORMS: tuple[str, ...] = get_args(Form)
Columns = dict[str, Any]
"""One sequence a column, all of the same length."""


class Pool:
    """Rows from several places, maybe of other pools, of which some are picked again and again in some order."""

    def __init__(self, parts: "Sequence[pa.RecordBatch | Picked]") -> None:
        self._parts = parts

    @cached_property
    def together(self) -> pa.RecordBatch:
        """All rows as one batch."""
        batches = [part.batch() if isinstance(part, Picked) else part for part in self._parts]
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    @cached_property
    def lists(self) -> dict[str, list[Any]]:
        """All rows as columns of Python values: their bytes are copied once, into those values."""
        parts = [part.lists() if isinstance(part, Picked) else arrow_columns(part, "python") for part in self._parts]
        return {name: list(chain.from_iterable(part[name] for part in parts)) for name in parts[0]}

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """All rows as dicts of Python values."""
        return [row for part in self._parts for row in Rows(part).items()]


@dataclass(frozen=True, slots=True)
class Picked:
    """The rows at some places of a pool, not yet put together."""

    pool: Pool
    places: npt.NDArray[np.int64]

    def batch(self) -> pa.RecordBatch:
        """The rows as a batch."""
        return self.pool.together.take(pa.array(self.places))

    def lists(self) -> dict[str, list[Any]]:
        """The rows as columns of Python values."""
        places = self.places.tolist()
        return {name: [values[place] for place in places] for name, values in self.pool.lists.items()}


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows, in the form in which users get them: ``data`` is Arrow's, or columns already in that form."""

    data: pa.RecordBatch | Columns | Picked
    form: Form = "python"

    def _known(self) -> "Rows":
        """The rows put together, if they are not yet: as Python values if those are wanted, else as a batch."""
        if not isinstance(self.data, Picked):
            return self
        return Rows(self.data.lists() if self.form == "python" else self.data.batch(), self.form)

    def __len__(self) -> int:
        if isinstance(self.data, Picked):
            return len(self.data.places)
        if isinstance(self.data, pa.RecordBatch):
            return int(self.data.num_rows)
        return len(next(iter(self.data.values()), ()))

    def slice(self, start: int, stop: int) -> "Rows":
        """The rows from ``start`` to ``stop``, without copying."""
        if isinstance(self.data, Picked):
            return Rows(replace(self.data, places=self.data.places[start:stop]), self.form)
        if isinstance(self.data, pa.RecordBatch):
            return Rows(self.data.slice(start, stop - start), self.form)
        return Rows({name: column[start:stop] for name, column in self.data.items()}, self.form)

    def keep(self, mask: Sequence[bool]) -> "Rows":
        """The rows where ``mask`` is true."""
        if isinstance(self.data, Picked):
            return Rows(replace(self.data, places=self.data.places[np.asarray(mask, bool)]), self.form)
        if isinstance(self.data, pa.RecordBatch):
            return Rows(self.data.filter(pa.array(mask, pa.bool_())), self.form)
        kept = np.flatnonzero(mask).tolist()
        columns = {
            name: [column[number] for number in kept] if isinstance(column, list) else column[kept]
            for name, column in self.data.items()
        }
        return Rows(columns, self.form)

    def select(self, names: Sequence[str]) -> "Rows":
        """Some of the columns."""
        data = self.data.batch() if isinstance(self.data, Picked) else self.data
        there = list(data) if isinstance(data, dict) else data.schema.names
        missing = [name for name in names if name not in there]
        if missing:
            raise SchemaMismatchError(f"There is no column {missing[0]!r}. There are: {', '.join(there)}.")
        if isinstance(data, dict):
            return Rows({name: data[name] for name in names}, self.form)
        return Rows(data.select(names), self.form)

    def to(self, form: Form) -> "Rows":
        """The same rows in another form. Arrow data is converted only when it is used."""
        if isinstance(self.data, pa.RecordBatch | Picked):
            return replace(self, form=form)
        if form == "arrow":
            return Rows(pa.RecordBatch.from_pydict({name: convert(one, form) for name, one in self.data.items()}), form)
        return Rows({name: convert(column, form) for name, column in self.data.items()}, form)

    def columns(self) -> Any:
        """The rows as one object: a dict of columns, or for the form "arrow" a record batch."""
        data = self._known().data
        return arrow_columns(data, self.form) if isinstance(data, pa.RecordBatch) else data

    def batches(self, size: int) -> Iterator[Any]:
        """The rows as ``columns()`` of ``size`` rows each, the last of what is left."""
        starts = range(0, len(self), size)
        if self.form == "python":
            columns = self.columns()
            return ({name: column[at : at + size] for name, column in columns.items()} for at in starts)
        whole = self._known()
        return (whole.slice(at, at + size).columns() for at in starts)

    def items(self) -> Iterable[Any]:
        """The rows one by one."""
        if isinstance(self.data, Picked) and self.form == "python":
            rows = self.data.pool.rows
            return [rows[place] for place in self.data.places.tolist()]
        data = self._known().data
        if isinstance(data, pa.RecordBatch) and self.form == "arrow":
            return map(data.slice, range(len(self)), repeat(1))
        columns: Any = data
        if isinstance(data, pa.RecordBatch):
            columns = {name: row_values(data.column(name), self.form) for name in data.schema.names}
        if not columns:
            return ({} for _ in range(len(self)))
        return _row_maker(tuple(columns))(*columns.values())


def concat(parts: Sequence[Rows]) -> Rows:
    """The rows of several parts, one after the other. All have the same columns and form."""
    if len(parts) == 1:
        return parts[0]
    form = parts[0].form
    if all(isinstance(part.data, pa.RecordBatch | Picked) for part in parts):
        batches = [part.data.batch() if isinstance(part.data, Picked) else part.data for part in parts]
        return Rows(_concat_batches(batches), form)
    columns = [part.columns() for part in parts]
    for one in columns:
        if set(one) != set(columns[0]):
            raise ValueError(
                f"A batched function returned the columns {list(columns[0])} for some rows and {list(one)} for others. "
                "Let it return the same columns every time."
            )
    return Rows({name: _join([one[name] for one in columns], form) for name in columns[0]}, form)


def collate(items: Sequence[Any], form: Form) -> Any:
    """Make a batch of single items: a dict of columns for dicts, a record batch for Arrow, else a list."""
    first = items[0]
    if isinstance(first, pa.RecordBatch):
        return _concat_batches(items)
    if not isinstance(first, Mapping):
        return convert(list(items), form)
    for item in items:
        if set(item) != set(first):
            raise ValueError(
                f"A batch needs items with the same columns, but one has {list(first)} and another {list(item)}. "
                "Let the function return the same keys for every item."
            )
    return {name: convert([item[name] for item in items], form) for name in first}


def _concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch out of several, whose types may differ where they were inferred from single items."""
    if all(batch.schema.equals(batches[0].schema) for batch in batches):
        return pa.concat_batches(batches)
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks().to_batches()[0]


@lru_cache(maxsize=256)
def _row_maker(names: tuple[str, ...]) -> Callable[..., list[dict[str, Any]]]:
    """A function of columns that returns rows as dicts.

    Its source is written out for these names, as namedtuple does: a dict display is twice as fast as
    ``dict(zip(...))``, and this is where a text data set spends its time.
    """
    values = [f"v{number}" for number in range(len(names))]
    columns = [f"c{number}" for number in range(len(names))]
    display = ", ".join(f"{name!r}: {value}" for name, value in zip(names, values, strict=True))
    code = f"lambda {', '.join(columns)}: [{{{display}}} for {', '.join(values)}, in zip({', '.join(columns)})]"
    maker: Callable[..., list[dict[str, Any]]] = eval(code)
    return maker


def arrow_columns(batch: pa.RecordBatch, form: Form) -> Any:
    """A record batch in a form."""
    if form == "arrow":
        return batch
    make = {"python": pa.Array.to_pylist, "numpy": to_numpy, "torch": to_torch}[form]
    return {name: make(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def to_numpy(column: pa.Array) -> Any:
    """A column as an array, a view of Arrow's memory where there are no nulls.

    Null floats become NaN and null times NaT, as Arrow does. Nulls among other values make an array of objects with
    None, so that ints stay ints. Lists of equal length become one more dimension; others, and those with nulls
    among them, a list of arrays.
    """
    column = _storage(column)
    kind = column.type
    if pa.types.is_boolean(kind) or _is_number(kind):
        if column.null_count and not pa.types.is_floating(kind):
            return _objects(column.to_pylist())
        return column.to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_date(kind):
        return column.to_numpy(zero_copy_only=False)
    if _is_list(kind):
        return row_values(column, "numpy") if column.null_count else _list_to_numpy(column)
    return _objects(column.to_pylist())


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
        return column.to_pylist()
    make = to_torch if form == "torch" else to_numpy
    if _is_steady(column):
        return make(column)
    column = _storage(column)
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


def as_column(column: Any, form: Form) -> Any:
    """What a user's function returned for a column: a list, an array or a tensor, which can be cut and joined."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.Array):
        return {"numpy": to_numpy, "torch": to_torch}.get(form, pa.Array.to_pylist)(column)
    return column if isinstance(column, list | np.ndarray) or hasattr(column, "dtype") else list(column)


def convert_item(item: Any, form: Form) -> Any:
    """One item from user code in a form."""
    if form == "arrow" and isinstance(item, Mapping):
        return pa.RecordBatch.from_pylist([_convert_item_values(item, "python")])
    if form == "arrow":
        if isinstance(item, pa.RecordBatch):
            return item
        raise TypeError(f"The form 'arrow' needs items that are dicts or record batches, got {type(item).__name__}.")
    if isinstance(item, pa.RecordBatch):
        rows = Rows(item, form)
        return rows.columns() if len(rows) != 1 else next(iter(rows.items()))
    return _convert_item_values(item, form)


def convert_batch(item: Any, form: Form) -> Any:
    """One batch from a stage in a form: its values are columns."""
    if isinstance(item, pa.RecordBatch):
        return Rows(item, form).columns()
    return Rows(dict(item)).to(form).columns() if isinstance(item, Mapping) else convert_item(item, form)


def _convert_item_values(item: Any, form: Form) -> Any:
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
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _storage(column: pa.Array) -> pa.Array:
    """The column without what only says how to see it: extension types and dictionaries."""
    if isinstance(column, pa.ExtensionArray):
        return _storage(column.storage)
    return _storage(column.dictionary_decode()) if pa.types.is_dictionary(column.type) else column


def _is_steady(column: pa.Array) -> bool:
    """Whether no value of the column would be converted otherwise without the others."""
    column = _storage(column)
    kind = column.type
    if _is_list(kind):
        even = pa.types.is_fixed_size_list(kind) or not _is_list(kind.value_type)
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
    ends = np.concatenate([[0], np.cumsum(column.value_lengths().to_numpy(zero_copy_only=False))])
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


def _join(parts: Sequence[Any], form: Form) -> Any:
    """One column out of its parts."""
    if all(isinstance(part, np.ndarray) and part.shape[1:] == parts[0].shape[1:] for part in parts):
        return np.concatenate(parts)
    if form == "torch" and all(not isinstance(part, list | np.ndarray) for part in parts):
        shapes = {tuple(part.shape[1:]) for part in parts}
        if len(shapes) == 1:
            return torch_module().cat(list(parts))
    return [value for part in parts for value in part]
