"""Rows from several blocks, as the windows of a shuffle need them: read once, then picked in the order asked for.

A ``RowPool`` holds the blocks, and ``PickedRows`` says which of its rows come next. Rows are copied as late and as
seldom as the form allows: as Python values once for the whole pool, as wide arrays straight into each batch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any, Literal

import pyarrow as pa

from midepoch._common.lazy import cached_property
from midepoch._common.types import I64
from midepoch.values.arrow import arrow_batches, arrow_columns, even_array, is_list, without_copy
from midepoch.values.collate import concat_batches
from midepoch.values.gather import MAX_PARTS, PartedArray, PickedArray, joined_array
from midepoch.values.origin import UNREADABLE, RowOrigin, unreadable
from midepoch.values.take import take

SMALL_PART = 512
"""Parts with fewer rows on average are joined before they are converted to Python values."""

SMALL_PART_BYTES = 128 << 10
"""The same for bytes: to copy more takes longer than it saves."""

Columns = dict[str, Any]
"""One sequence per column, all of the same length."""

Check = Callable[[], None]
"""Raises if a file has changed. Values that were copied from it before are then of the version that was indexed."""


def all_checks(checks: "Iterable[Check | None]") -> Check | None:
    """One check for several, each of which is made once; None if there is none."""
    distinct = tuple(dict.fromkeys(check for check in checks if check is not None))
    if len(distinct) < 2:
        return distinct[0] if distinct else None

    def check_all() -> None:
        for check in distinct:
            check()

    return check_all


@dataclass(frozen=True, slots=True)
class ScatteredRows:
    """Rows that lie scattered in a block which is a view of a file. They are copied once it is known what for."""

    block: pa.RecordBatch
    rows: I64

    @property
    def schema(self) -> pa.Schema:
        """The columns of the block."""
        return self.block.schema

    def batch(self) -> pa.RecordBatch:
        """A copy of the rows."""
        return take(self.block, self.rows)


class RowPool:
    """The rows of several parts, numbered through: record batches, rows of them, or rows picked from another pool.

    Parts may be views of files, and their rows may be copied long after they were read. ``check`` raises if one of
    those files has changed since. It is called before rows are copied, because a map of a truncated file cannot be
    read, and after that, because the file may have changed meanwhile. Parts without ``check`` are copied together at
    first use.
    """

    def __init__(
        self,
        parts: "Sequence[pa.RecordBatch | ScatteredRows | PickedRows]",
        check: Check | None = None,
        origin: RowOrigin | None = None,
    ) -> None:
        self._parts, self._check, self.origin = parts, check, origin
        self._batches: dict[tuple[str, ...], pa.RecordBatch] = {}

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
                part.batch(names) if isinstance(part, PickedRows) else part if names is None else part.select(names)
                for part in self._copied_parts
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

    @cached_property
    def lists(self) -> dict[str, list[Any]]:
        """All rows as columns of Python values."""
        self.check()
        try:
            parts = [
                part.lists() if isinstance(part, PickedRows) else arrow_columns(part, "python")
                for part in self._convertible
            ]
        except UNREADABLE as error:
            raise unreadable(self.batch(), self.origin, error) from None
        self.check()
        return {name: _joined(part[name] for part in parts) for name in parts[0]}

    @cached_property
    def dicts(self) -> list[dict[str, Any]]:
        """All rows as dicts of Python values."""
        self.check()
        try:
            rows = _joined(
                part.dicts()
                if isinstance(part, PickedRows)
                else row_dicts(arrow_columns(part, "python"), part.num_rows)
                for part in self._convertible
            )
        except UNREADABLE as error:
            raise unreadable(self.batch(), self.origin, error) from None
        self.check()
        return rows

    @cached_property
    def _copied_parts(self) -> "Sequence[pa.RecordBatch | PickedRows]":
        """The parts, with a copy of rows that lie scattered in their block."""
        return [part.batch() if isinstance(part, ScatteredRows) else part for part in self._parts]

    @property
    def _convertible(self) -> "Sequence[pa.RecordBatch | PickedRows]":
        """The parts, joined if they are small: to convert a part has a cost that does not depend on its rows."""
        parts = self._copied_parts
        batches = [part for part in parts if isinstance(part, pa.RecordBatch)]
        if len(batches) < len(parts) or len(batches) < 2:
            return parts
        rows = sum(batch.num_rows for batch in batches)
        small = rows < SMALL_PART * len(batches)
        if small and batches[0].num_rows:  # a guess from one part: to measure all would take as long
            row_bytes = batches[0].nbytes / batches[0].num_rows
            small = row_bytes * rows < SMALL_PART_BYTES * len(batches)
        return [self.batch()] if small else parts


@dataclass(frozen=True, slots=True)
class PickedRows:
    """The rows of a pool at ``indices``, not yet copied."""

    pool: RowPool
    indices: I64

    def batch(self, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """The rows as a record batch, with all columns or only those in ``names``."""
        rows = take(self.pool.batch(names), self.indices)
        if self.pool.is_view:
            self.pool.check()
        return rows

    @property
    def origin(self) -> RowOrigin | None:
        """The rows of files that these are, where they are known."""
        return None if self.pool.origin is None else self.pool.origin.take(self.indices)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return self.pool.names

    def lists(self) -> dict[str, list[Any]]:
        """The rows as columns of Python values."""
        pick = _picker(self.indices)
        return {name: list(pick(values)) for name, values in self.pool.lists.items()}

    def parted_arrays(self) -> dict[str, PartedArray | None]:
        """The columns of wide rows of numbers, not copied."""
        return {name: column.at(self.indices) for name, column in self.pool.wide_arrays.items()}

    def batches(self, size: int, form: Literal["numpy", "torch"], *, deferred: bool = False) -> Iterator[Columns]:
        """Dicts of columns of ``size`` rows each. Wide rows of numbers are copied once, into the batch itself.

        With ``deferred`` they are not copied yet: such columns are ``PickedArray``.
        """
        wide = self.pool.wide_arrays
        if not wide:
            return arrow_batches(self.batch(), size, form)
        rest = [name for name in self.names if name not in wide]
        others: Iterator[Columns] = arrow_batches(self.batch(rest), size, form) if rest else repeat({})
        parts = (self.indices[at : at + size] for at in range(0, len(self.indices), size))
        make = self._unpicked if deferred else self._picked
        wides: Iterator[Columns] = (make(part, form) for part in parts)
        if not rest:
            return wides
        names = self.names
        return (
            {name: first[name] if name in first else other[name] for name in names}
            for first, other in zip(wides, others, strict=False)
        )

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
        return _picker(self.indices)(self.pool.dicts)


def row_dicts(columns: Columns, count: int) -> list[dict[str, Any]]:
    """Columns of ``count`` values each, as one dict per row."""
    return _row_maker(tuple(columns))(*columns.values()) if columns else [{} for _ in range(count)]


def _joined(lists: Iterable[Iterable[Any]]) -> list[Any]:
    joined: list[Any] = []
    for values in lists:
        joined += values
    return joined


def _even_lists(part: pa.RecordBatch | ScatteredRows) -> dict[str, PartedArray | None]:
    """The list columns, as arrays where all lists of the column are equally long."""
    block, rows = (part.block, part.rows) if isinstance(part, ScatteredRows) else (part, None)
    lists = (field.name for field in block.schema if is_list(getattr(field.type, "storage_type", field.type)))
    arrays = {name: even_array(block.column(name)) for name in lists}
    return {name: None if array is None else PartedArray.of(array, rows) for name, array in arrays.items()}


def _picker(indices: I64) -> Callable[[list[Any]], Sequence[Any]]:
    """A function that picks the values at ``indices`` of a list: twice as fast as a comprehension."""
    if len(indices) == 1:  # itemgetter would return the bare value
        index = int(indices[0])
        return lambda values: values[index : index + 1]
    return itemgetter(*indices.tolist()) if len(indices) else lambda _: ()


@lru_cache(maxsize=256)
def _row_maker(names: tuple[str, ...]) -> Callable[..., list[dict[str, Any]]]:
    """A function of columns that returns rows as dicts.

    Its source is written out for these names, as namedtuple does. A dict display is twice as fast as
    ``dict(zip(...))``, and a text dataset spends most of its time here.
    """
    values = [f"v{number}" for number in range(len(names))]
    columns = [f"c{number}" for number in range(len(names))]
    display = ", ".join(f"{name!r}: {value}" for name, value in zip(names, values, strict=True))
    code = f"lambda {', '.join(columns)}: [{{{display}}} for {', '.join(values)}, in zip({', '.join(columns)})]"
    maker: Callable[..., list[dict[str, Any]]] = eval(code)
    return maker
