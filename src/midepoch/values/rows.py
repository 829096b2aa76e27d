"""Rows on their way through the stages: converted column by column, and turned into single rows last."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from midepoch._common.hashing import I64
from midepoch.errors import DataFormatError
from midepoch.values.arrow import concat_batches, take
from midepoch.values.columns import TEXTS, Form, arrow_batches, arrow_columns, row_values
from midepoch.values.convert import as_column, convert_columns, convert_each, convert_values, join_columns

Locate = Callable[[int], tuple[str, int]]
"""The name of the file that holds a row, and the row's number in that file."""


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """The numbers of rows in their dataset, and a function that finds the file of a number."""

    numbers: I64
    locate: Locate

    def at(self, chosen: slice | I64) -> "RowOrigin":
        """Some of them."""
        return RowOrigin(self.numbers[chosen], self.locate)


def join_origins(origins: "Iterable[RowOrigin | None]") -> RowOrigin | None:
    """The origin of rows that follow each other; None if that of some is not known, or they are of other datasets."""
    known = list(origins)
    first = known[0]
    if first is None or any(one is None or one.locate != first.locate for one in known):
        return None
    return RowOrigin(np.concatenate([one.numbers for one in known if one is not None]), first.locate)


UNREADABLE = (ValueError, OverflowError, SystemError)
"""What values raise that Python cannot hold: text that is not UTF-8, and times before year 1 or after year 9999."""


def unreadable(batch: pa.RecordBatch, origin: RowOrigin | None, error: Exception) -> Exception:
    """The error for a value that Python cannot hold: it names the column, and the row where that is known.

    An error that is not about a value is returned unchanged.
    """
    found = ((name, _first_unreadable(batch.column(name))) for name in batch.schema.names)
    name, row = next(((name, row) for name, row in found if row is not None), (None, 0))
    if name is None and not isinstance(error, UnicodeDecodeError):
        return error
    where = "a row (without workers, this message names the file)"
    if name is not None and origin is not None:
        file, number = origin.locate(int(origin.numbers[row]))
        where = f"row {number:,} of {file}"
    column = "A column" if name is None else f"The column {name!r}"
    if isinstance(error, UnicodeDecodeError):
        return DataFormatError(
            f"{column} has text that is not UTF-8 in {where}: {error.reason}, 0x{error.object[error.start]:02x}. Write "
            "the file again in UTF-8, or pass columns= without this one."
        )
    return DataFormatError(
        f"{column} has a value in {where} that Python cannot hold: {error}. Read it with with_format('arrow'), or pass "
        "columns= without this one."
    )


def _first_unreadable(column: Any) -> int | None:
    """The index of the first value that cannot be converted, if any."""
    for number in range(len(column)):
        try:
            column[number].as_py()
        except UNREADABLE:
            return number
    return None


def row_dicts(columns: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Columns of ``count`` values each, as one dict per row."""
    return _row_maker(tuple(columns))(*columns.values()) if columns else [{} for _ in range(count)]


@lru_cache(maxsize=256)
def _row_maker(names: tuple[str, ...]) -> Callable[..., list[dict[str, Any]]]:
    """A function of columns that returns rows as dicts.

    Its source is written out for these names, as namedtuple does. A dict display is twice as fast as
    ``dict(zip(...))``.
    """
    values = [f"v{number}" for number in range(len(names))]
    columns = [f"c{number}" for number in range(len(names))]
    display = ", ".join(f"{name!r}: {value}" for name, value in zip(names, values, strict=True))
    code = f"lambda {', '.join(columns)}: [{{{display}}} for {', '.join(values)}, in zip({', '.join(columns)})]"
    maker: Callable[..., list[dict[str, Any]]] = eval(code)
    return maker


T = TypeVar("T")
Columns = dict[str, Any]
"""One sequence per column, all of the same length."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows, and the form in which users get them: a record batch, or a dict of columns that a function returned."""

    data: pa.RecordBatch | Columns
    form: Form = "python"
    unconverted: bool = False
    """True if ``data`` is a dict of columns that are not in ``form`` yet.

    They are converted when it is known which rows are delivered together: a batch, or a single row. Converted earlier,
    a row would depend on its neighbours, and those are different after a resume."""
    origin: RowOrigin | None = field(default=None, compare=False)
    """The rows of files that a record batch has, where they are known: errors name them."""

    def __len__(self) -> int:
        if isinstance(self.data, pa.RecordBatch):
            return int(self.data.num_rows)
        return len(next(iter(self.data.values()), ()))

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.data) if isinstance(self.data, dict) else list(self.data.schema.names)

    def slice(self, start: int, stop: int) -> "Rows":
        """The rows from ``start`` to ``stop``, without a copy."""
        if isinstance(self.data, pa.RecordBatch):
            origin = None if self.origin is None else self.origin.at(slice(start, stop))
            return Rows(self.data.slice(start, stop - start), self.form, origin=origin)
        return replace(self, data={name: column[start:stop] for name, column in self.data.items()})

    def take(self, indices: I64) -> "Rows":
        """The rows at ``indices``, in that order."""
        if isinstance(self.data, pa.RecordBatch):
            origin = None if self.origin is None else self.origin.at(indices)
            return Rows(take(self.data, indices), self.form, origin=origin)
        numbers = indices.tolist()
        columns = {
            name: [column[number] for number in numbers] if isinstance(column, list) else column[numbers]
            for name, column in self.data.items()
        }
        return replace(self, data=columns)

    def select(self, names: Sequence[str]) -> "Rows":
        """Only the columns in ``names``, which exist."""
        return self.renamed(dict(zip(names, names, strict=True)))

    def renamed(self, names: Mapping[str, str]) -> "Rows":
        """Only the columns in ``names``, each under its new name."""
        if isinstance(self.data, pa.RecordBatch):
            return replace(self, data=self.data.select(list(names)).rename_columns(list(names.values())))
        return replace(self, data={new: self.data[old] for old, new in names.items()})

    def with_columns(self, columns: Mapping[str, pa.Array]) -> "Rows":
        """The rows with these columns, after or instead of those that there are."""
        if isinstance(self.data, dict):
            return replace(self, data=self.data | {name: as_column(columns[name], self.form) for name in columns})
        data = self.data
        for name, column in columns.items():
            field, number = pa.field(name, column.type), data.schema.get_field_index(name)
            data = data.append_column(field, column) if number < 0 else data.set_column(number, field, column)
        return replace(self, data=data)

    def to(self, form: Form) -> "Rows":
        """The same rows in another form. They are converted when they are used."""
        return replace(self, form=form, unconverted=isinstance(self.data, dict))

    def columns(self) -> Any:
        """The rows as one object: a dict of columns, or a record batch for the form "arrow"."""
        if isinstance(self.data, pa.RecordBatch):
            try:
                return arrow_columns(self.data, self.form)
            except UNREADABLE as error:
                raise unreadable(self.data, self.origin, error) from None
        return _convert_columns(self.data, self.form) if self.unconverted else self.data

    def values(self, name: str) -> Any:
        """The values of a column one by one, each converted as if it were alone."""
        if isinstance(self.data, pa.RecordBatch):
            try:
                return row_values(self.data.column(name), self.form)
            except UNREADABLE as error:
                raise unreadable(self.data, self.origin, error) from None
        return convert_each(self.data[name], self.form) if self.unconverted else self.data[name]

    def batches(self, size: int) -> Iterator[Any]:
        """The rows as ``columns()`` of ``size`` rows each. The last may be shorter."""
        starts = range(0, len(self), size)
        if self.form == "python":
            columns = self.columns()
            return ({name: column[at : at + size] for name, column in columns.items()} for at in starts)
        if isinstance(self.data, pa.RecordBatch):
            return self._readable(arrow_batches(self.data, size, self.form))
        return (self.slice(at, at + size).columns() for at in starts)

    def items(self) -> Iterable[Any]:
        """The rows one by one."""
        if self.form != "arrow":
            return row_dicts({name: self.values(name) for name in self.names}, len(self))
        if isinstance(self.data, pa.RecordBatch):
            return map(self.data.slice, range(len(self)), repeat(1))
        return (self.slice(at, at + 1).columns() for at in range(len(self)))

    def _readable(self, items: Iterator[T], errors: Any = UNREADABLE) -> Iterator[T]:
        """Items that are converted when they are asked for. An error about a value names its row.

        ``errors`` is an argument because modules are emptied when the interpreter exits, before iterators are closed.
        """
        try:
            yield from items
        except errors as error:
            raise unreadable(self.data, self.origin, error) from None


def concat(parts: Sequence[Rows]) -> Rows:
    """The rows of several parts, one part after the other. All parts have the same columns and form."""
    if len(parts) == 1:
        return parts[0]
    form = parts[0].form
    if all(isinstance(part.data, pa.RecordBatch) for part in parts):
        origin = join_origins(part.origin for part in parts)
        return Rows(concat_batches([part.data for part in parts]), form, origin=origin)
    unconverted = all(part.unconverted for part in parts)
    dicts: list[Any] = [part.data if unconverted else part.columns() for part in parts]
    for columns in dicts:
        if set(columns) != set(dicts[0]):
            raise ValueError(
                f"A batched function returned the columns {list(dicts[0])} for some rows and {list(columns)} for "
                "others. Let it return the same columns every time."
            )
    data = {name: join_columns([one[name] for one in dicts], form) for name in dicts[0]}
    return replace(parts[0], data=data, unconverted=unconverted)


def convert_item(item: Any, form: Form) -> Any:
    """One item from user code in a form."""
    if form == "arrow" and isinstance(item, Mapping):
        return _convert_columns({name: [value] for name, value in item.items()}, form)
    if form == "arrow":
        if isinstance(item, pa.RecordBatch):
            return item
        raise TypeError(f"The form 'arrow' needs items that are dicts or record batches, got {type(item).__name__}.")
    if isinstance(item, pa.RecordBatch):
        rows = Rows(item, form)
        return rows.columns() if len(rows) != 1 else next(iter(rows.items()))
    return convert_values(item, form)


def convert_batch(item: Any, form: Form, ragged: Callable[[str], bool] | None = None) -> Any:
    """One batch from a stage in a form. The values of the batch are columns, of which ``ragged`` lists stay lists."""
    if isinstance(item, pa.RecordBatch):
        return Rows(item, form).columns()
    if not isinstance(item, Mapping):
        return convert_item(item, form)
    return _convert_columns(item, form, ragged)


def _convert_columns(columns: Mapping[str, Any], form: Form, ragged: Callable[[str], bool] | None = None) -> Any:
    converted = convert_columns(columns, form, ragged)
    return pa.RecordBatch.from_pydict(converted) if form == "arrow" else converted


@dataclass(frozen=True, slots=True)
class RowItems:
    """Consecutive rows, or batches of rows, that are not made yet. Iterating makes them."""

    rows: Rows
    size: int | None = None
    """The number of rows of a batch; None if every row is an item."""

    def __len__(self) -> int:
        return -(-len(self.rows) // (self.size or 1))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows.items() if self.size is None else self.rows.batches(self.size))

    @property
    def parts(self) -> "tuple[RowItems, ...]":
        """The items, as ``RowRounds`` of one part."""
        return (self,)

    @property
    def are_columns(self) -> bool:
        """True if another process gets the rows as Arrow columns, and makes the same items of them.

        Items that are views of memory, such as arrays and single rows of tensors, are sent each for itself.
        """
        schema, form = _schema(self.rows.data), self.rows.form
        are_copies = form == "python" or (form == "torch" and self.size is not None)
        return are_copies and schema is not None and all(map(_is_sent, schema.types))

    def slice(self, start: int, stop: int) -> "RowItems":
        """Some of the items, without a copy: those that there are, as with a list."""
        begin, end = (min(number * (self.size or 1), len(self.rows)) for number in (start, stop))
        return RowItems(self.rows.slice(begin, max(begin, end)), self.size)


@dataclass(frozen=True, slots=True)
class RowRounds:
    """The first item of each part, then the second of each, and so on. All parts have the same number of items."""

    parts: tuple[RowItems, ...]

    def __len__(self) -> int:
        return len(self.parts) * len(self.parts[0])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts[0]) if len(self.parts) == 1 else chain.from_iterable(zip(*self.parts, strict=True))


def row_items(rows: Rows, size: int | None = None) -> RowItems | list[Any]:
    """The items of some rows: not made yet if they are rows of files, else as a list."""
    items = RowItems(rows, size)
    return items if _schema(rows.data) else list(items)


def _schema(data: Any) -> pa.Schema | None:
    """The columns of rows of files; None of what a function returned."""
    return data.schema if isinstance(data, pa.RecordBatch) else None


def _is_sent(kind: pa.DataType) -> bool:
    """True if Arrow sends a slice of such a column as it is, and nobody may register another class for its values."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_struct(kind):
        return all(_is_sent(kind.field(number).type) for number in range(kind.num_fields))
    if pa.types.is_fixed_size_list(kind):
        return not pa.types.is_nested(kind.value_type) and _is_sent(kind.value_type)
    is_fixed = pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind)
    return is_fixed or kind.id in TEXTS
