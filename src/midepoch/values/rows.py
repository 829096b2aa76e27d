"""Rows: some rows on their way through the stages, converted column by column and fanned out to single rows last.

``Rows`` is an Arrow record batch, places in a pool of such, or a dict of columns, together with the form in which the
rows are handed to users.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch.errors import SchemaMismatchError
from midepoch.values.convert import (
    Form,
    arrow_batches,
    arrow_columns,
    concat_batches,
    convert_each,
    convert_named,
    convert_values,
    even_array,
    is_list,
    join,
    own_array,
    row_values,
)
from midepoch.values.gather import MOST_PARTS, Spread, spread
from midepoch.values.take import keep, take

Columns = dict[str, Any]
"""One sequence a column, all of the same length."""


class Pool:
    """Rows from several places, maybe of other pools, of which some are picked again and again in some order.

    The parts may be views of files, and rows are copied out of them when they are picked, which may be long after they
    were read: ``check`` raises if the files are not what they were. Parts without it are put together at first use.
    """

    def __init__(self, parts: "Sequence[pa.RecordBatch | Picked]", check: Callable[[], None] | None = None) -> None:
        self._parts, self._check = parts, check
        self._together: dict[tuple[str, ...], pa.RecordBatch] = {}

    def check(self) -> None:
        """Raise if rows must not be copied out of the parts any more."""
        if self._check is not None:
            self._check()

    @cached_property
    def names(self) -> list[str]:
        """The columns."""
        first = self._parts[0]
        return first.pool.names if isinstance(first, Picked) else list(first.schema.names)

    def together(self, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """All rows as one batch, maybe with some of the columns only: the others are not copied."""
        wanted = tuple(self.names if names is None else names)
        if wanted not in self._together or len(self._parts) == 1:
            self.check()
        if wanted not in self._together:
            batches: list[pa.RecordBatch] = [
                part.batch(names) if isinstance(part, Picked) else part if names is None else part.select(names)
                for part in self._parts
            ]
            self._together[wanted] = batches[0] if len(batches) == 1 else concat_batches(batches)
        return self._together[wanted]

    @cached_property
    def arrays(self) -> dict[str, Spread]:
        """The columns that are arrays of wide rows whichever are picked. They are still views of the parts."""
        unknown = self._check is None and not all(isinstance(part, Picked) for part in self._parts)
        if unknown or len(self._parts) > MOST_PARTS:
            return {}
        self.check()
        parts = [part.arrays() if isinstance(part, Picked) else _even_lists(part) for part in self._parts]
        found = {name: spread([part.get(name) for part in parts]) for name in parts[0]}
        return {name: one for name, one in found.items() if one is not None}

    @cached_property
    def lists(self) -> dict[str, list[Any]]:
        """All rows as columns of Python values: their bytes are copied once, into those values."""
        self.check()
        parts = [part.lists() if isinstance(part, Picked) else arrow_columns(part, "python") for part in self._parts]
        return {name: _end_to_end(part[name] for part in parts) for name in parts[0]}

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """All rows as dicts of Python values."""
        self.check()
        return _end_to_end(
            part.rows() if isinstance(part, Picked) else _fan_out(arrow_columns(part, "python"), part.num_rows)
            for part in self._parts
        )


@dataclass(frozen=True, slots=True)
class Picked:
    """The rows at some places of a pool, not yet put together."""

    pool: Pool
    places: npt.NDArray[np.int64]

    def batch(self, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """The rows as a batch, maybe with some of the columns only."""
        return take(self.pool.together(names), self.places)

    @property
    def names(self) -> list[str]:
        """The columns."""
        return self.pool.names

    def lists(self) -> dict[str, list[Any]]:
        """The rows as columns of Python values."""
        pick = _picker(self.places)
        return {name: list(pick(values)) for name, values in self.pool.lists.items()}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The columns of wide rows of numbers, each in memory of its own."""
        self.pool.check()
        return {name: one.pick(self.places) for name, one in self.pool.arrays.items()}

    def batches(self, size: int, form: Literal["numpy", "torch"]) -> Iterator[Columns]:
        """The rows as columns of ``size`` rows each: wide rows of numbers are gathered into the batch itself."""
        names, arrays = self.names, self.pool.arrays
        if not arrays:
            return arrow_batches(self.batch(), size, form)
        rest = [name for name in names if name not in arrays]
        others: Iterator[Columns] = arrow_batches(self.batch(rest), size, form) if rest else repeat({})
        wide = (replace(self, places=self.places[at : at + size]).arrays() for at in range(0, len(self.places), size))
        return (
            {name: own_array(one[name], form) if name in one else other[name] for name in names}
            for one, other in zip(wide, others, strict=False)
        )

    def rows(self) -> Sequence[dict[str, Any]]:
        """The rows as dicts of Python values."""
        return _picker(self.places)(self.pool.rows)


def _end_to_end(lists: Iterable[Iterable[Any]]) -> list[Any]:
    """One list out of several."""
    joined: list[Any] = []
    for one in lists:
        joined += one
    return joined


def _even_lists(batch: pa.RecordBatch) -> dict[str, npt.NDArray[Any] | None]:
    """The columns of lists, as arrays where they are such."""
    lists = (field.name for field in batch.schema if is_list(getattr(field.type, "storage_type", field.type)))
    return {name: even_array(batch.column(name)) for name in lists}


def _fan_out(columns: Columns, count: int) -> list[dict[str, Any]]:
    """Columns of ``count`` values as rows."""
    return _row_maker(tuple(columns))(*columns.values()) if columns else [{} for _ in range(count)]


def _picker(places: npt.NDArray[np.int64]) -> Callable[[list[Any]], Sequence[Any]]:
    """A function that picks the values at some places of a list: twice as fast as a comprehension."""
    if len(places) == 1:  # of which itemgetter would give the bare value
        place = int(places[0])
        return lambda values: values[place : place + 1]
    return itemgetter(*places.tolist()) if len(places) else lambda _: ()


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows, in the form in which users get them: ``data`` is Arrow's, or columns in that form."""

    data: pa.RecordBatch | Columns | Picked
    form: Form = "python"
    due: bool = False
    """Whether columns are still in another form. Which rows lie beside a row is another after a resume, so they are
    converted when it is known what is handed over together: a group, or a single row."""

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

    @property
    def names(self) -> list[str]:
        """The columns."""
        if isinstance(self.data, Picked):
            return self.data.names
        return list(self.data) if isinstance(self.data, dict) else list(self.data.schema.names)

    def slice(self, start: int, stop: int) -> "Rows":
        """The rows from ``start`` to ``stop``, without copying."""
        if isinstance(self.data, Picked):
            return Rows(replace(self.data, places=self.data.places[start:stop]), self.form)
        if isinstance(self.data, pa.RecordBatch):
            return Rows(self.data.slice(start, stop - start), self.form)
        return replace(self, data={name: column[start:stop] for name, column in self.data.items()})

    def keep(self, mask: Sequence[bool]) -> "Rows":
        """The rows where ``mask`` is true."""
        if isinstance(self.data, Picked):
            return Rows(replace(self.data, places=self.data.places[np.asarray(mask, bool)]), self.form)
        if isinstance(self.data, pa.RecordBatch):
            return Rows(keep(self.data, mask), self.form)
        kept = np.flatnonzero(mask).tolist()
        columns = {
            name: [column[number] for number in kept] if isinstance(column, list) else column[kept]
            for name, column in self.data.items()
        }
        return replace(self, data=columns)

    def select(self, names: Sequence[str]) -> "Rows":
        """Some of the columns."""
        data, there = self.data, self.names
        missing = [name for name in names if name not in there]
        if missing:
            raise SchemaMismatchError(f"There is no column {missing[0]!r}. There are: {', '.join(there)}.")
        if isinstance(data, dict):
            return replace(self, data={name: data[name] for name in names})
        return Rows(data.batch(names) if isinstance(data, Picked) else data.select(names), self.form)

    def to(self, form: Form) -> "Rows":
        """The same rows in another form. They are converted only when they are used."""
        return Rows(self.data, form, isinstance(self.data, dict))

    def columns(self) -> Any:
        """The rows as one object: a dict of columns, or for the form "arrow" a record batch."""
        if isinstance(self.data, Picked) and self.form in ("numpy", "torch") and len(self):
            return next(self.data.batches(len(self), self.form))
        data: Any = self._known().data
        if isinstance(data, pa.RecordBatch):
            return arrow_columns(data, self.form)
        return _converted(data, self.form) if self.due else data

    def values(self, name: str) -> Any:
        """The values of a column one by one, each as if it were alone."""
        data: Any = self._known().data
        if isinstance(data, pa.RecordBatch):
            return row_values(data.column(name), self.form)
        return convert_each(data[name], self.form) if self.due else data[name]

    def batches(self, size: int) -> Iterator[Any]:
        """The rows as ``columns()`` of ``size`` rows each, the last of what is left."""
        starts = range(0, len(self), size)
        if isinstance(self.data, Picked) and self.form in ("numpy", "torch"):
            return self.data.batches(size, self.form)
        if self.form == "python":
            columns = self.columns()
            return ({name: column[at : at + size] for name, column in columns.items()} for at in starts)
        whole = self._known()
        if isinstance(whole.data, pa.RecordBatch):
            return arrow_batches(whole.data, size, self.form)
        return (whole.slice(at, at + size).columns() for at in starts)

    def items(self) -> Iterable[Any]:
        """The rows one by one."""
        if isinstance(self.data, Picked) and self.form == "python":
            return self.data.rows()
        known = self._known()
        if self.form == "arrow" and isinstance(known.data, pa.RecordBatch):
            return map(known.data.slice, range(len(known)), repeat(1))
        if self.form == "arrow":
            return (known.slice(at, at + 1).columns() for at in range(len(known)))
        return _fan_out({name: known.values(name) for name in known.names}, len(self))


def concat(parts: Sequence[Rows]) -> Rows:
    """The rows of several parts, one after the other. All have the same columns and form."""
    if len(parts) == 1:
        return parts[0]
    form = parts[0].form
    if all(isinstance(part.data, pa.RecordBatch | Picked) for part in parts):
        if any(isinstance(part.data, Picked) for part in parts):
            return Rows(_joined([part.data for part in parts]), form)
        return Rows(concat_batches([part.data for part in parts]), form)
    due = all(part.due for part in parts)
    columns: list[Any] = [part.data if due else part.columns() for part in parts]
    for one in columns:
        if set(one) != set(columns[0]):
            raise ValueError(
                f"A batched function returned the columns {list(columns[0])} for some rows and {list(one)} for others. "
                "Let it return the same columns every time."
            )
    return Rows({name: join([one[name] for one in columns], form) for name in columns[0]}, form, due)


def _joined(parts: "Sequence[pa.RecordBatch | Picked]") -> Picked:
    """The rows of several parts, still not put together."""
    first = parts[0]
    if isinstance(first, Picked) and all(isinstance(part, Picked) and part.pool is first.pool for part in parts):
        return Picked(first.pool, np.concatenate([part.places for part in parts]))
    sizes = (len(part.places) if isinstance(part, Picked) else part.num_rows for part in parts)
    return Picked(Pool(parts), np.arange(sum(sizes)))


def _converted(columns: Mapping[str, Any], form: Form) -> Any:
    """Columns from user code in a form."""
    made = {name: convert_named(name, column, form) for name, column in columns.items()}
    return pa.RecordBatch.from_pydict(made) if form == "arrow" else made


def convert_item(item: Any, form: Form) -> Any:
    """One item from user code in a form."""
    if form == "arrow" and isinstance(item, Mapping):
        return _converted({name: [value] for name, value in item.items()}, form)
    if form == "arrow":
        if isinstance(item, pa.RecordBatch):
            return item
        raise TypeError(f"The form 'arrow' needs items that are dicts or record batches, got {type(item).__name__}.")
    if isinstance(item, pa.RecordBatch):
        rows = Rows(item, form)
        return rows.columns() if len(rows) != 1 else next(iter(rows.items()))
    return convert_values(item, form)


def convert_batch(item: Any, form: Form) -> Any:
    """One batch from a stage in a form: its values are columns."""
    if isinstance(item, pa.RecordBatch):
        return Rows(item, form).columns()
    return Rows(dict(item)).to(form).columns() if isinstance(item, Mapping) else convert_item(item, form)


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
