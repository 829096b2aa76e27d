"""Rows on their way through the stages: converted column by column, and turned into single rows last."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, repeat
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from midepoch.errors import SchemaMismatchError
from midepoch.values.arrow import arrow_batches, arrow_columns, row_values
from midepoch.values.collate import concat_batches, join_columns
from midepoch.values.convert import convert_each, convert_named, convert_values
from midepoch.values.file_checks import Check, all_checks, in_memory
from midepoch.values.forms import Form
from midepoch.values.gather import WideBatches
from midepoch.values.origin import UNREADABLE, RowOrigin, join_origins, unreadable
from midepoch.values.pool import Columns, PickedRows, RowPool
from midepoch.values.row_dicts import row_dicts
from midepoch.values.slices import BlockSlice, joined_slices
from midepoch.values.take import keep

T = TypeVar("T")

CHECKED_ROWS, CHECKED_BYTES = 256, 256 << 10
"""Items that are made one by one from a view of a file share a check of it: as many as have this many rows or bytes.

They are all in memory until the last is handed on, so more bytes would cost more, in page faults and in the CPU cache,
than a check does."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows, and the form in which users get them.

    ``data`` is a record batch, rows picked from a pool, or a dict of columns that a user's function returned.
    """

    data: pa.RecordBatch | Columns | PickedRows
    form: Form = "python"
    unconverted: bool = False
    """True if ``data`` is a dict of columns that are not in ``form`` yet.

    They are converted when it is known which rows are delivered together: a batch, or a single row. Converted earlier,
    a row would depend on its neighbours, and those are different after a resume."""
    check: Check | None = field(default=None, compare=False)
    """Raises if the file has changed of which ``data`` is a view. It is called after values are converted, before they
    are handed on."""
    origin: RowOrigin | None = field(default=None, compare=False)
    """The rows of files that a record batch has, where they are known: errors name them. A pool has its own."""
    part: BlockSlice | None = field(default=None, compare=False)
    """Where ``data`` lies in a block, if its rows are those: then it is joined with its neighbours without a copy."""

    @classmethod
    def of_block(cls, part: BlockSlice, check: Check | None = None, origin: RowOrigin | None = None) -> "Rows":
        """Some rows of a block."""
        return cls(part.rows, check=check, origin=origin, part=part)

    def __len__(self) -> int:
        if isinstance(self.data, PickedRows):
            return len(self.data.indices)
        if isinstance(self.data, pa.RecordBatch):
            return int(self.data.num_rows)
        return len(next(iter(self.data.values()), ()))

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        if isinstance(self.data, PickedRows):
            return self.data.names
        return list(self.data) if isinstance(self.data, dict) else list(self.data.schema.names)

    def slice(self, start: int, stop: int) -> "Rows":
        """The rows from ``start`` to ``stop``, without a copy."""
        if isinstance(self.data, PickedRows):
            return Rows(self.data.at(slice(start, stop)), self.form)
        if isinstance(self.data, pa.RecordBatch):
            origin = None if self.origin is None else self.origin.slice(start, stop)
            part = None if self._part is None else self._part.slice(start, stop)
            data = self.data.slice(start, stop - start) if part is None else part.rows
            return Rows(data, self.form, check=self.check, origin=origin, part=part)
        return replace(self, data={name: column[start:stop] for name, column in self.data.items()})

    def keep(self, mask: Sequence[bool]) -> "Rows":
        """The rows where ``mask`` is true."""
        if isinstance(self.data, PickedRows):
            return Rows(self.data.at(np.asarray(mask, bool)), self.form)
        if isinstance(self.data, pa.RecordBatch):
            origin = None if self.origin is None else self.origin.take(np.flatnonzero(mask))
            return Rows(keep(self.data, mask), self.form, check=self.check, origin=origin)
        kept = np.flatnonzero(mask).tolist()
        columns = {
            name: [column[number] for number in kept] if isinstance(column, list) else column[kept]
            for name, column in self.data.items()
        }
        return replace(self, data=columns)

    def select(self, names: Sequence[str]) -> "Rows":
        """Only the columns in ``names``. Raises SchemaMismatchError if one is missing."""
        data, known = self.data, self.names
        missing = [name for name in names if name not in known]
        if missing:
            raise SchemaMismatchError(f"There is no column {missing[0]!r}. There are: {', '.join(known)}.")
        if isinstance(data, dict):
            return replace(self, data={name: data[name] for name in names})
        if isinstance(data, PickedRows):
            return replace(self, data=data.batch(names), origin=data.origin)
        return replace(self, data=data.select(names))

    def renamed(self, names: Sequence[str]) -> "Rows":
        """The same columns under other names, in their order."""
        data, origin = self.data, self.origin
        if isinstance(data, PickedRows):
            data, origin = data.batch(), data.origin
        if isinstance(data, pa.RecordBatch):
            return replace(self, data=data.rename_columns(list(names)), origin=origin)
        return replace(self, data=dict(zip(names, data.values(), strict=True)))

    def to(self, form: Form) -> "Rows":
        """The same rows in another form. They are converted when they are used."""
        return Rows(self.data, form, isinstance(self.data, dict), self.check, self.origin, self.part)

    def columns(self) -> Any:
        """The rows as one object: a dict of columns, or a record batch for the form "arrow"."""
        if isinstance(self.data, PickedRows) and self.form in ("numpy", "torch") and len(self):
            return next(self.batches(len(self)))
        rows = self._gathered()
        data: Any = rows.data
        if isinstance(data, pa.RecordBatch):
            try:
                return self._checked(arrow_columns(data, self.form))
            except UNREADABLE as error:
                raise rows._unreadable(error) from None
        return _convert_columns(data, self.form) if self.unconverted else data

    def values(self, name: str) -> Any:
        """The values of a column one by one, each converted as if it were alone."""
        rows = self._gathered()
        data: Any = rows.data
        if isinstance(data, pa.RecordBatch):
            try:
                return self._checked(row_values(data.column(name), self.form))
            except UNREADABLE as error:
                raise rows._unreadable(error) from None
        return convert_each(data[name], self.form) if self.unconverted else data[name]

    def batches(self, size: int) -> Iterator[Any]:
        """The rows as ``columns()`` of ``size`` rows each. The last may be shorter."""
        starts = range(0, len(self), size)
        if isinstance(self.data, PickedRows) and self.form in ("numpy", "torch"):
            return self._decoded(self.data.batches(size, self.form))
        if self.form == "python":
            columns = self.columns()
            return ({name: column[at : at + size] for name, column in columns.items()} for at in starts)
        rows = self._gathered()
        if isinstance(rows.data, pa.RecordBatch):
            batches = arrow_batches(rows.data, size, self.form)
            if self.check is not None:
                together = min(CHECKED_ROWS, CHECKED_BYTES * len(rows) // max(1, rows.data.nbytes)) // size
                batches = _checked_together(batches, max(1, together), self.check)
            return rows._decoded(batches)
        return (rows.slice(at, at + size).columns() for at in starts)

    def unpicked_batches(self, size: int) -> Iterator[Any]:
        """The same as ``batches``, but arrays of wide rows may be ``PickedArray``, which are not copied yet."""
        picked = self._unpicked()
        if picked is None or self.form not in ("numpy", "torch"):
            return self.batches(size)
        return self._decoded(picked.batches(size, self.form, deferred=True))

    def wide_batches(self, size: int) -> WideBatches | None:
        """The same, if all columns are wide rows of numbers and there are only whole batches; else None."""
        if self.form not in ("numpy", "torch") or len(self) % size:
            return None
        picked = self._unpicked()
        if picked is None or len(picked.pool.wide_arrays) < len(picked.names):
            return None
        columns = {name: picked.pool.wide_arrays[name] for name in picked.names}
        return WideBatches(columns, picked.indices, size, self.form, picked.pool.file_check)

    def _unpicked(self) -> PickedRows | None:
        """The rows as those of a pool, if that spares a copy of wide rows."""
        if isinstance(self.data, PickedRows):
            return self.data
        if not isinstance(self.data, pa.RecordBatch) or self.form != "torch":  # as arrays they are views: nobody copies
            return None
        picked = PickedRows(RowPool([self.data], self.check or in_memory, self.origin), np.arange(len(self)))
        return picked if picked.pool.wide_arrays else None

    def items(self) -> Iterable[Any]:
        """The rows one by one."""
        if isinstance(self.data, PickedRows) and self.form == "python":
            return self.data.dicts()
        rows = self._gathered()
        if self.form == "arrow" and isinstance(rows.data, pa.RecordBatch):
            return self._checked_later(map(rows.data.slice, range(len(rows)), repeat(1)), CHECKED_ROWS)
        if self.form == "arrow":
            return (rows.slice(at, at + 1).columns() for at in range(len(rows)))
        if isinstance(rows.data, pa.RecordBatch):
            try:
                columns = {name: row_values(rows.data.column(name), self.form) for name in rows.names}
            except UNREADABLE as error:
                raise rows._unreadable(error) from None
            return self._checked(row_dicts(columns, len(self)))
        return row_dicts({name: rows.values(name) for name in rows.names}, len(self))

    @property
    def _part(self) -> BlockSlice | None:
        """Where ``data`` lies in a block. A stage may have put other data in its place."""
        return self.part if self.part is not None and self.part.rows is self.data else None

    def check_file(self) -> None:
        """Raise if the file has changed of which these rows are a view."""
        if self.check is not None:
            self.check()

    def _checked(self, converted: T) -> T:
        """Values that were converted from the rows, after a check."""
        self.check_file()
        return converted

    def _checked_later(self, items: Iterator[T], count: int) -> Iterator[T]:
        """Items that are converted when they are asked for, each handed on after a check that ``count`` items share."""
        return items if self.check is None else _checked_together(items, count, self.check)

    def _gathered(self) -> "Rows":
        """The same rows, with picked ones copied together: as Python columns for that form, else as a record batch."""
        if not isinstance(self.data, PickedRows):
            return self
        if self.form == "python":
            return Rows(self.data.lists(), self.form)
        return Rows(self.data.batch(), self.form, origin=self.data.origin)

    def _decoded(self, items: Iterator[T], errors: Any = UNREADABLE) -> Iterator[T]:
        """Items that are converted when they are asked for. An error about a value names its row.

        ``errors`` is an argument because modules are emptied when the interpreter exits, before iterators are closed.
        """
        try:
            yield from items
        except errors as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> Exception:
        data: Any = self.data
        if isinstance(data, PickedRows):
            return unreadable(data.batch(), data.origin, error)
        return unreadable(data, self.origin, error)


def concat(parts: Sequence[Rows]) -> Rows:
    """The rows of several parts, one part after the other. All parts have the same columns and form."""
    if len(parts) == 1:
        return parts[0]
    form = parts[0].form
    if all(isinstance(part.data, pa.RecordBatch | PickedRows) for part in parts):
        if any(isinstance(part.data, PickedRows) for part in parts):
            return Rows(_concat_picked(parts), form)
        check = all_checks(part.check for part in parts)
        if check is not None:  # some of the rows may have waited long for the others
            check()
        joined = joined_slices([part._part for part in parts])
        batch = concat_batches([part.data for part in parts]) if joined is None else joined.rows
        return Rows(batch, form, check=check, origin=join_origins(part.origin for part in parts), part=joined)
    unconverted = all(part.unconverted for part in parts)
    dicts: list[Any] = [part.data if unconverted else part.columns() for part in parts]
    for columns in dicts:
        if set(columns) != set(dicts[0]):
            raise ValueError(
                f"A batched function returned the columns {list(dicts[0])} for some rows and {list(columns)} for "
                "others. Let it return the same columns every time."
            )
    return Rows({name: join_columns([one[name] for one in dicts], form) for name in dicts[0]}, form, unconverted)


def pool_of(parts: Sequence[Rows]) -> RowPool:
    """The rows of several parts of files, none of them copied yet."""
    return RowPool(
        [part.data for part in parts], all_checks(part.check for part in parts), partial(_joined_origin, parts)
    )


def _joined_origin(parts: Sequence[Rows]) -> RowOrigin | None:
    return join_origins(part.data.origin if isinstance(part.data, PickedRows) else part.origin for part in parts)


def _concat_picked(parts: Sequence[Rows]) -> PickedRows:
    """The rows of several parts, still not copied."""
    picked = [part.data for part in parts if isinstance(part.data, PickedRows)]
    if len(picked) == len(parts) and all(part.pool is picked[0].pool for part in picked):
        return PickedRows(picked[0].pool, np.concatenate([part.indices for part in picked]))
    return PickedRows(pool_of(parts), np.arange(sum(map(len, parts))))


def _checked_together(items: Iterator[T], count: int, check: Check) -> Iterator[T]:
    while made := list(islice(items, count)):
        check()
        yield from made
        del made  # so that the next items are made in their memory, which is still in the CPU cache


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


def convert_batch(item: Any, form: Form) -> Any:
    """One batch from a stage in a form. The values of the batch are columns."""
    if isinstance(item, pa.RecordBatch):
        return Rows(item, form).columns()
    return Rows(dict(item)).to(form).columns() if isinstance(item, Mapping) else convert_item(item, form)


def _convert_columns(columns: Mapping[str, Any], form: Form) -> Any:
    converted = {name: convert_named(name, column, form) for name, column in columns.items()}
    return pa.RecordBatch.from_pydict(converted) if form == "arrow" else converted
