"""Rows from several blocks, as the windows of a shuffle need them: read once, then picked in the order asked for.

A ``RowPool`` holds the blocks, and ``PickedRows`` says which of its rows come next. Rows are copied as late and as
seldom as the form allows: as Python values once for the whole pool, as wide arrays straight into each batch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch._common.lazy import cached_property
from midepoch._common.types import I64
from midepoch.errors import DataFormatError
from midepoch.values.arrow import (
    TEXTS,
    arrow_batches,
    arrow_columns,
    even_array,
    is_list,
    object_array,
    tensor_parts,
    without_copy,
)
from midepoch.values.collate import concat_batches
from midepoch.values.file_checks import Check, all_checks, in_memory
from midepoch.values.gather import MAX_PARTS, PartedArray, PickedArray, joined_array
from midepoch.values.open_batch import OpenBatch, SlicedRows, Values, as_list
from midepoch.values.origin import UNREADABLE, RowOrigin, unreadable
from midepoch.values.row_dicts import row_dicts
from midepoch.values.take import take
from midepoch.values.texts import Texts, texts_of

SMALL_PART = 512
"""Parts with fewer rows on average are joined before they are converted to Python values."""

SMALL_PART_BYTES = 128 << 10
"""The same for bytes: to copy more takes longer than it saves."""

Columns = dict[str, Any]
"""One sequence per column, all of the same length."""

Picker = Callable[[list[Any]], Sequence[Any]]
"""Picks some values of a list."""


@dataclass(frozen=True, slots=True)
class ScatteredRows:
    """Rows that lie scattered in a block which is a view of a file. They are copied once it is known what for."""

    block: pa.RecordBatch
    rows: I64

    @property
    def schema(self) -> pa.Schema:
        """The columns of the block."""
        return self.block.schema

    def batch(self, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """A copy of the rows, with all columns or only those in ``names``."""
        rows = take(self.block.select(names) if names else self.block, self.rows)
        return rows if names is None else rows.select(names)


class RowPool:
    """The rows of several parts, numbered through: record batches, rows of them, or rows picked from another pool.

    Parts may be views of files, and their rows may be copied long after they were read. ``check`` raises if one of
    those files has changed since. It is called before rows are copied, because a map of a truncated file cannot be
    read, and after that, because the file may have changed meanwhile. Parts without ``check`` are copied together at
    first use.
    """

    def __init__(
        self,
        parts: "Sequence[pa.RecordBatch | ScatteredRows | SlicedRows | PickedRows]",
        check: Check | None = None,
        origin: RowOrigin | Callable[[], RowOrigin | None] | None = None,
    ) -> None:
        """``origin`` may be a function: only errors need to know where the rows come from."""
        self._parts, self._check, self._origin = parts, check, origin
        self._batches: dict[tuple[str, ...], pa.RecordBatch] = {}
        self._values: dict[str, Values] = {}

    @property
    def origin(self) -> RowOrigin | None:
        """The rows of files that these are, where they are known."""
        return self._origin() if callable(self._origin) else self._origin

    def check(self) -> None:
        """Raise if a file of the parts has changed."""
        if self.file_check is not None:
            self.file_check()

    @cached_property
    def file_check(self) -> Check | None:
        """What ``check`` calls, for pools from which parts are picked too; None if no part is a view of a file."""
        pools = (part.pool for part in self._parts if isinstance(part, PickedRows))
        return all_checks([self._check, *(pool.file_check for pool in pools)])

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the first part."""
        first = self._parts[0]
        return first.pool.schema if isinstance(first, PickedRows) else first.schema

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def batch(self, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """All rows as one record batch, with all columns or only those in ``names``: the others are not copied."""
        wanted = tuple(self.names if names is None else names)
        if wanted not in self._batches or self.is_view:
            self.check()
        if wanted not in self._batches:
            batches: list[pa.RecordBatch] = [
                part
                if isinstance(part, pa.RecordBatch) and names is None
                else part.select(names)
                if isinstance(part, pa.RecordBatch)
                else part.batch(names)
                for part in self._parts
            ]
            joined = batches[0] if self.is_view else concat_batches(batches)
            if not self.is_view:
                self.check()
            self._batches[wanted] = joined
        return self._batches[wanted]

    @property
    def is_view(self) -> bool:
        """True if ``batch`` may be a view of a file: a single part is not copied."""
        return len(self._parts) == 1

    def texts(self, names: Sequence[str], indices: I64) -> dict[str, pa.Array]:
        """The rows at ``indices`` of those columns whose texts are gathered straight from the parts."""
        gathered = [name for name in names if name in self._texts]
        if not gathered:
            return {}
        self.check()
        taken = {name: self._texts[name].take(indices) for name in gathered}
        self.check()
        return {name: texts for name, texts in taken.items() if texts is not None}

    @cached_property
    def _texts(self) -> dict[str, Texts]:
        """The columns of texts, not copied, if all parts are rows of blocks, and not too many files are checked."""
        parts = [
            (part.block, part.rows) if isinstance(part, ScatteredRows) else (part, None)
            for part in self._parts
            if isinstance(part, pa.RecordBatch | ScatteredRows)
        ]
        most = len(parts) if self._check is in_memory else MAX_PARTS
        if self._check is None or not max(2, len(self._parts)) <= len(parts) <= most:
            return {}
        self.check()
        found = {name: texts_of([(block.column(name), rows) for block, rows in parts]) for name in self.names}
        return {name: texts for name, texts in found.items() if texts is not None}

    @cached_property
    def wide_arrays(self) -> dict[str, PartedArray]:
        """The columns that are arrays of wide rows in every part, so any rows of them are too. Views of the parts."""
        unchecked = self._check is None and not all(isinstance(part, PickedRows) for part in self._parts)
        if unchecked or len(self._parts) > MAX_PARTS:
            return {}
        self.check()
        parts = [part.parted_arrays() if isinstance(part, PickedRows) else _even_lists(part) for part in self._parts]
        columns = {name: joined_array([part.get(name) for part in parts]) for name in parts[0]}
        return {name: column for name, column in columns.items() if column is not None}

    def values(self, names: Sequence[str]) -> dict[str, Values]:
        """All rows as columns: copies of numbers, and lists of other Python values. Each column is converted once."""
        missing = [name for name in names if name not in self._values]
        if missing:
            with self._converting():
                parts = [_values_of(part, missing) for part in self._convertible()]
                self._values |= {name: _joined_values([part[name] for part in parts]) for name in missing}
        return {name: self._values[name] for name in names}

    @cached_property
    def dicts(self) -> list[dict[str, Any]]:
        """All rows as dicts of Python values."""
        with self._converting():
            return _joined(
                row_dicts(arrow_columns(part, "python"), part.num_rows)
                if isinstance(part, pa.RecordBatch)
                else part.dicts()
                for part in self._convertible()
            )

    @contextmanager
    def _converting(self) -> Iterator[None]:
        """Check files before and after views of them are converted. Parts that are pools check their own."""
        if self._check is not None:
            self._check()
        try:
            yield
        except DataFormatError:  # of a part that is a pool, and knows the row
            raise
        except UNREADABLE as error:
            raise unreadable(self.batch(), self.origin, error) from None
        if self._check is not None:
            self._check()

    @cached_property
    def dealt_names(self) -> list[str]:
        """The columns of text and numbers, if all parts are slices: to deal out values is faster than to copy twice."""
        slices = [part.opened for part in self._parts if isinstance(part, SlicedRows)]
        if len(slices) < len(self._parts):
            return []
        return [
            field.name
            for field in self.schema
            if field.type.id in TEXTS or all(opened.has_numbers(field.name) for opened in slices)
        ]

    def _convertible(self) -> "Iterator[pa.RecordBatch | SlicedRows | PickedRows]":
        """The parts, joined if they are small: to convert a part has a cost that does not depend on its rows.

        Others are copied one after the other, if they must be: then the next copy is made in the memory of the last.
        """
        if self._are_small:
            yield self.batch()
            return
        for part in self._parts:
            yield part.batch() if isinstance(part, ScatteredRows) else part

    @property
    def _are_small(self) -> bool:
        """True if all parts are rows of blocks, and few or short on average."""
        parts = [part for part in self._parts if isinstance(part, pa.RecordBatch | ScatteredRows)]
        if len(parts) < max(2, len(self._parts)):
            return False
        rows = sum(len(part.rows) if isinstance(part, ScatteredRows) else part.num_rows for part in parts)
        if rows >= SMALL_PART * len(parts):
            return False
        first = parts[0]  # a guess from one part: to measure all would take as long
        block = first.block if isinstance(first, ScatteredRows) else first
        row_bytes = block.nbytes / max(1, block.num_rows)
        return bool(row_bytes * rows < SMALL_PART_BYTES * len(parts))


@dataclass(frozen=True, slots=True)
class PickedRows:
    """The rows of a pool at ``indices``, not yet copied."""

    pool: RowPool
    indices: I64
    picker: "Picker | None" = field(default=None, compare=False)
    """Picks the values at ``indices``, if the same are picked again and again."""

    def batch(self, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """The rows as a record batch, with all columns or only those in ``names``."""
        wanted = self.names if names is None else names
        texts = self.pool.texts(wanted, self.indices)
        rest = [name for name in wanted if name not in texts]
        schema = self.pool.schema
        fields, columns = {name: schema.field(name) for name in texts}, texts
        if rest or not wanted:  # rows without columns are known by their number alone
            rows = take(self.pool.batch(rest if texts else names), self.indices)
            if self.pool.is_view:
                self.pool.check()
            if not texts:
                return rows
            fields |= {field.name: field for field in rows.schema}
            columns = texts | {name: rows.column(name) for name in rest}
        schema = pa.schema([fields[name] for name in wanted], schema.metadata)
        return pa.RecordBatch.from_arrays([columns[name] for name in wanted], schema=schema)

    @property
    def origin(self) -> RowOrigin | None:
        """The rows of files that these are, where they are known."""
        return None if self.pool.origin is None else self.pool.origin.take(self.indices)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return self.pool.names

    def at(self, chosen: slice | npt.NDArray[np.bool_]) -> "PickedRows":
        """Some of the rows."""
        return PickedRows(self.pool, self.indices[chosen])

    def lists(self) -> dict[str, list[Any]]:
        """The rows as columns of Python values."""
        return {name: as_list(values) for name, values in self.values(self.names).items()}

    def values(self, names: Sequence[str]) -> dict[str, Values]:
        """The rows as columns: copies of numbers, and lists of other Python values."""
        columns = self.pool.values(names)
        has_lists = any(isinstance(column, list) for column in columns.values())
        pick = self.picker or (picker_of(self.indices) if has_lists else list)
        return {
            name: list(pick(column)) if isinstance(column, list) else column.take(self.indices)
            for name, column in columns.items()
        }

    def parted_arrays(self) -> dict[str, PartedArray | None]:
        """The columns of wide rows of numbers, not copied."""
        return {name: column.at(self.indices) for name, column in self.pool.wide_arrays.items()}

    def batches(self, size: int, form: Literal["numpy", "torch"], *, deferred: bool = False) -> Iterator[Columns]:
        """Dicts of columns of ``size`` rows each. Wide rows of numbers are copied once, into the batch itself.

        With ``deferred`` they are not copied yet: such columns are ``PickedArray``.
        """
        wide, dealt_names = self.pool.wide_arrays, self.pool.dealt_names
        rest = [name for name in self.names if name not in wide and name not in dealt_names]
        starts = range(0, len(self.indices), size)
        columns: list[Iterator[Columns]] = []
        if wide:
            make = self._unpicked if deferred else self._picked
            columns.append(make(self.indices[at : at + size], form) for at in starts)
        if dealt_names:
            columns.append(_dealt_batches(self.values(dealt_names), size, form))
        if rest or not columns:
            columns.append(arrow_batches(self.batch(rest if columns else None), size, form))
        return columns[0] if len(columns) == 1 else (_merged(some, self.names) for some in zip(*columns, strict=False))

    def _picked(self, indices: I64, form: Literal["numpy", "torch"]) -> Columns:
        """The columns of wide rows of numbers, at some indices of the pool, each in a new array."""
        self.pool.check()
        arrays = {name: without_copy(column.pick(indices), form) for name, column in self.pool.wide_arrays.items()}
        self.pool.check()
        return arrays

    def _unpicked(self, indices: I64, form: Literal["numpy", "torch"]) -> Columns:
        """The columns of wide rows of numbers, not copied yet."""
        check = self.pool.file_check
        return {name: PickedArray(column, indices, form, check) for name, column in self.pool.wide_arrays.items()}

    def dicts(self) -> Sequence[dict[str, Any]]:
        """The rows as dicts of Python values."""
        return (self.picker or picker_of(self.indices))(self.pool.dicts)


def _joined(sequences: Iterable[Sequence[Any]]) -> list[Any]:
    """All values in one list: the first sequence itself, if that is a list. Nobody else may hold it."""
    rest = iter(sequences)
    first: Sequence[Any] = next(rest, ())
    joined = first if isinstance(first, list) else list(first)
    for values in rest:
        joined += values
    return joined


def _values_of(part: "pa.RecordBatch | SlicedRows | PickedRows", names: Sequence[str]) -> dict[str, Values]:
    return OpenBatch(part).values(0, part.num_rows, names) if isinstance(part, pa.RecordBatch) else part.values(names)


def _joined_values(parts: Sequence[Values]) -> Values:
    """The values of all parts: a copy of numbers, if all have numbers, or a list."""
    numbers = [part for part in parts if not isinstance(part, list)]
    return np.concatenate(numbers) if len(numbers) == len(parts) else _joined(map(as_list, parts))


def _merged(some: Sequence[Columns], names: Sequence[str]) -> Columns:
    """The columns of several dicts in the order of ``names``."""
    merged = {name: column for columns in some for name, column in columns.items()}
    return {name: merged[name] for name in names}


def _dealt_batches(columns: dict[str, Values], size: int, form: Literal["numpy", "torch"]) -> Iterator[Columns]:
    """Batches as ``arrow_batches`` makes them of text, which is a list in place of a tensor, and of numbers."""
    parts = [_dealt_parts(values, size, form) for values in columns.values()]
    return (dict(zip(columns, some, strict=True)) for some in zip(*parts, strict=True))


def _dealt_parts(values: Values, size: int, form: Literal["numpy", "torch"]) -> Iterator[Any]:
    if form == "torch" and not isinstance(values, list):
        return tensor_parts(values, size)
    make = object_array if form == "numpy" and isinstance(values, list) else lambda part: part
    return (make(values[at : at + size]) for at in range(0, len(values), size))


def _even_lists(part: pa.RecordBatch | ScatteredRows | SlicedRows) -> dict[str, PartedArray | None]:
    """The list columns, as arrays where all lists of the column are equally long."""
    part = part.batch() if isinstance(part, SlicedRows) else part
    block, rows = (part.block, part.rows) if isinstance(part, ScatteredRows) else (part, None)
    lists = (field.name for field in block.schema if is_list(getattr(field.type, "storage_type", field.type)))
    arrays = {name: even_array(block.column(name)) for name in lists}
    return {name: None if array is None else PartedArray.of(array, rows) for name, array in arrays.items()}


def picker_of(indices: I64) -> Picker:
    """A function that picks the values at ``indices`` of a list: twice as fast as a comprehension."""
    if len(indices) == 1:  # itemgetter would return the bare value
        index = int(indices[0])
        return lambda values: values[index : index + 1]
    return itemgetter(*indices.tolist()) if len(indices) else lambda _: ()
