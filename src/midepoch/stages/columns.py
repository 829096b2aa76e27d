"""Stages that remove, rename, fill, cast or add columns of rows, whole runs at a time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from midepoch._common.hashing import I64, digest
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import SchemaMismatchError
from midepoch.stages.flow import Context, Flow, RowRun
from midepoch.stages.stage import Stage
from midepoch.values.convert import as_column, to_plain
from midepoch.values.forms import Form
from midepoch.values.numbers import arrow_of
from midepoch.values.rows import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameColumns(Stage):
    """Give columns other names, or remove them. The others stay as they are, and so does the order."""

    names: tuple[tuple[str, str | None], ...]
    """Each old name with the new one; None removes the column."""
    name: str
    """The method that the user called."""

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        # Columns of the files have other names from here on, so nothing may look one up there by its new name.
        if inputs.row_runs is not None:
            runs = (RowRun(self._renamed(run.rows), run.cursors, run.keys) for run in inputs.row_runs)
            return Flow(row_runs=runs, form=inputs.form, schema=None)
        items = ((self._renamed_item(item), cursor, key) for item, cursor, key in inputs.as_single_items())
        return replace(inputs.with_single_items(items), schema=None)

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        if schema is None:
            return None
        return pa.schema([schema.field(old).with_name(new) for old, new in self._new_names(schema.names).items()])

    def _renamed(self, rows: Rows) -> Rows:
        new = self._new_names(rows.names)
        return rows.select(list(new)).renamed(list(new.values()))

    def _renamed_item(self, item: Any) -> Any:
        if isinstance(item, pa.RecordBatch):
            new = self._new_names(item.schema.names)
            return item.select(list(new)).rename_columns(list(new.values()))
        if not isinstance(item, Mapping):
            raise TypeError(
                f"{self.name} needs items that are dicts, got a {type(item).__name__}. Let the map before it return a "
                "dict, or leave it out."
            )
        return {new: item[old] for old, new in self._new_names(list(item)).items()}

    def _new_names(self, known: Sequence[str]) -> dict[str, str]:
        """The new name of each column that is kept."""
        names = dict(self.names)
        missing = [name for name in names if name not in known]
        if missing:
            raise SchemaMismatchError(f"{self.name}: there is no column {missing[0]!r}. There are: {', '.join(known)}.")
        kept = {name: new for name in known if (new := names.get(name, name)) is not None}
        twice = [name for name in kept.values() if list(kept.values()).count(name) > 1]
        if twice:
            raise SchemaMismatchError(
                f"{self.name}: there would be two columns {twice[0]!r}. Remove one of them first."
            )
        return kept

    def describe(self) -> dict[str, Any] | None:
        return {"op": self.name, "columns": [list(pair) for pair in self.names]}


@dataclass(frozen=True, slots=True, kw_only=True)
class FillColumns(Stage):
    """Add the columns that rows do not have, with nulls, and put all columns into one order: what ``concat`` does.

    A state does not remember it, so that datasets with other columns may be added to a run.
    """

    columns: pa.Schema
    name = "fill_columns"

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        # The schema stays that of the files: columns that they have may be looked up there.
        if inputs.row_runs is not None:
            runs = (RowRun(self._filled(run.rows), run.cursors, run.keys) for run in inputs.row_runs)
            return replace(inputs, row_runs=runs)
        fill = self._filled_batch if inputs.batched else self._filled_item
        items = ((fill(item), cursor, key) for item, cursor, key in inputs.as_single_items())
        return inputs.with_single_items(items)

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        if schema is None:
            return None
        known = {**{one.name: one for one in self.columns}, **{one.name: one for one in schema}}
        return pa.schema(list(known.values()))

    def _filled(self, rows: Rows) -> Rows:
        data = rows.data
        if isinstance(data, pa.RecordBatch):
            return replace(rows, data=self._filled_arrow(data))
        nulls = {
            one.name: as_column(pa.nulls(len(rows), one.type), rows.form)
            for one in self.columns
            if one.name not in data
        }
        return replace(rows, data={name: {**nulls, **data}[name] for name in self._order(data)})

    def _filled_item(self, item: Any) -> Any:
        if isinstance(item, pa.RecordBatch):
            return self._filled_arrow(item)
        return {**dict.fromkeys(self.columns.names), **item} if isinstance(item, Mapping) else item

    def _filled_batch(self, batch: Any) -> Any:
        if not isinstance(batch, Mapping):
            return self._filled_item(batch)
        rows = len(next(iter(batch.values()), ()))
        return {name: batch[name] if name in batch else [None] * rows for name in self._order(batch)}

    def _filled_arrow(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        own = batch.schema
        fields = [
            own.field(name) if name in own.names else self.columns.field(name).with_nullable(True)
            for name in self._order(own.names)
        ]
        columns = [
            batch.column(one.name) if one.name in own.names else pa.nulls(batch.num_rows, one.type) for one in fields
        ]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _order(self, names: Iterable[str]) -> list[str]:
        return list(dict.fromkeys([*self.columns.names, *names]))


@dataclass(frozen=True, slots=True, kw_only=True)
class CastColumns(Stage):
    """Give columns other types. The others stay as they are, and so does the order."""

    types: tuple[tuple[str, pa.DataType], ...]
    name: str
    """The method that the user called."""

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        # Columns of the files have other types from here on, so nothing may look one up there.
        if inputs.row_runs is not None:
            runs = (RowRun(self._cast_rows(run.rows), run.cursors, run.keys) for run in inputs.row_runs)
            return Flow(row_runs=runs, form=inputs.form, schema=None)
        items = (
            (self._cast_item(item, inputs.form, inputs.batched), cursor, key)
            for item, cursor, key in inputs.as_single_items()
        )
        return replace(inputs.with_single_items(items), schema=None)

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        if schema is None:
            return None
        types = self._types_of(schema.names)
        return pa.schema([pa.field(one.name, types[one.name]) if one.name in types else one for one in schema])

    def _types_of(self, known: list[str]) -> dict[str, pa.DataType]:
        missing = [name for name, _ in self.types if name not in known]
        if missing:
            raise SchemaMismatchError(f"{self.name}: there is no column {missing[0]!r}. There are: {', '.join(known)}.")
        return dict(self.types)

    def _cast_rows(self, rows: Rows) -> Rows:
        types = self._types_of(rows.names)
        data = rows.data
        if isinstance(data, pa.RecordBatch):
            return replace(rows, data=self._cast_batch(data))
        columns = {
            name: as_column(self._cast(name, _array(column), types[name]), rows.form) if name in types else column
            for name, column in data.items()
        }
        return replace(rows, data=columns)

    def _cast_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        types = self._types_of(batch.schema.names)
        columns = {
            name: self._cast(name, column, types[name]) if name in types else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _cast_item(self, item: Any, form: Form, batched: bool) -> Any:
        if isinstance(item, pa.RecordBatch):
            return self._cast_batch(item)
        if not isinstance(item, Mapping):
            raise TypeError(
                f"{self.name} needs items that are dicts, got a {type(item).__name__}. Let the map before it return a "
                "dict, or leave it out."
            )
        types = self._types_of(list(item))
        made = dict(item)
        for name, wanted in types.items():
            values = self._cast(name, _array(item[name] if batched else [item[name]]), wanted)
            made[name] = as_column(values, form) if batched else as_column(values, form)[0]
        return made

    def _cast(self, name: str, column: pa.Array, wanted: pa.DataType) -> pa.Array:
        try:
            return column.cast(wanted)
        except pa.ArrowException as error:
            raise SchemaMismatchError(
                f"{self.name}: values of the column {name!r} do not fit the type {wanted}: {error}. Choose a wider "
                "type, or change the values by a map."
            ) from error

    def describe(self) -> dict[str, Any] | None:
        return {"op": self.name, "types": [[name, str(wanted)] for name, wanted in self.types]}


@dataclass(frozen=True, slots=True, kw_only=True)
class AddColumn(Stage):
    """Add a column that has a value for each row of the files."""

    column: str
    values: pa.Array = field(compare=False)
    digest: str
    """Of the values, for a state and for comparison."""
    name = "add_column"

    @classmethod
    def of(cls, column: str, values: pa.Array) -> "AddColumn":
        """Take the values, in the order of the files."""
        stored = pa.RecordBatch.from_arrays([values], names=[column]).serialize()
        return cls(column=column, values=values, digest=digest(stored, size=8).hex())

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        if inputs.row_runs is not None:
            runs = (RowRun(self._with_column(run.rows, run.keys), run.cursors, run.keys) for run in inputs.row_runs)
            return Flow(row_runs=runs, form=inputs.form, schema=None)
        items = (
            (self._with_value(item, key, inputs.form), cursor, key) for item, cursor, key in inputs.as_single_items()
        )
        return replace(inputs.with_single_items(items), schema=None)

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        return None if schema is None else schema.append(pa.field(self.column, self.values.type))

    def _with_column(self, rows: Rows, keys: I64) -> Rows:
        self._check_new(rows.names)
        values = self.values.take(arrow_of(keys))
        data = rows.data
        if isinstance(data, pa.RecordBatch):
            columns = [*data.columns, values]
            batch = pa.RecordBatch.from_arrays(columns, names=[*data.schema.names, self.column])
            return replace(rows, data=batch)
        return replace(rows, data={**data, self.column: as_column(values, rows.form)})

    def _with_value(self, item: Any, key: int, form: Form) -> Any:
        if isinstance(item, pa.RecordBatch):
            data: Any = self._with_column(Rows(item, form), np.array([key])).data
            return data
        if not isinstance(item, Mapping):
            raise TypeError(f"add_column needs items that are dicts, got a {type(item).__name__}. Put it first.")
        self._check_new(list(item))
        return {**item, self.column: as_column(self.values.slice(key, 1), form)[0]}

    def _check_new(self, known: list[str]) -> None:
        if self.column in known:
            raise SchemaMismatchError(f"add_column: there is a column {self.column!r} already. Remove it first.")

    def describe(self) -> dict[str, Any] | None:
        return {"op": self.name, "column": self.column, "values": self.digest}


def _array(column: Any) -> pa.Array:
    return column if isinstance(column, pa.Array) else pa.array(to_plain(column))
