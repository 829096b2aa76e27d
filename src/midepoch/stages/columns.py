"""Stages that select, remove, rename, fill, cast, add or convert columns of rows, whole runs at a time."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from midepoch._common.hashing import I64, digest
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import SchemaMismatchError
from midepoch.stages.flow import Context, Flow, RowRun
from midepoch.stages.stage import Stage
from midepoch.values.arrow import arrow_of
from midepoch.values.columns import Form
from midepoch.values.convert import convert
from midepoch.values.rows import Rows, convert_batch, convert_item


class ColumnStage(Stage):
    """A stage that changes columns. It gets rows many at a time; an item is the only one of its rows, or a batch."""

    __slots__ = ()

    @abstractmethod
    def changed(self, rows: Rows, keys: I64) -> Rows:
        """The rows with other columns."""

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        if schema is None:
            return None
        nothing = Rows(pa.RecordBatch.from_pylist([], schema=schema), "arrow")
        return self.changed(nothing, np.empty(0, np.int64)).columns().schema

    def file_schema(self, schema: pa.Schema) -> pa.Schema | None:
        """The columns that are the files' own after it too, by name and value; None if none may be looked up there."""
        return None

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        schema = None if inputs.schema is None else self.file_schema(inputs.schema)
        if inputs.row_runs is not None:
            runs = (RowRun(self.changed(run.rows, run.keys), run.cursors, run.keys) for run in inputs.row_runs)
            return replace(inputs, row_runs=runs, schema=schema)
        items = ((self._item(item, key, inputs), cursor, key) for item, cursor, key in inputs.as_single_items())
        return replace(inputs.with_single_items(items), schema=schema)

    def _item(self, item: Any, key: int, inputs: Flow) -> Any:
        if not isinstance(item, Mapping | pa.RecordBatch):
            raise TypeError(
                f"{self.name} needs items that are dicts, got a {type(item).__name__}. Let the map before it return a "
                "dict, or leave it out."
            )
        if inputs.batched or isinstance(item, pa.RecordBatch):
            data = item if isinstance(item, pa.RecordBatch) else dict(item)
            return self.changed(Rows(data, inputs.form), np.array([key])).data
        row = self.changed(Rows({name: [value] for name, value in item.items()}, inputs.form), np.array([key])).data
        return {name: column[0] for name, column in row.items()}

    def check_known(self, names: Sequence[str], known: Sequence[str]) -> None:
        """Raise if one of the names is not that of a column."""
        missing = [name for name in names if name not in known]
        if missing:
            raise SchemaMismatchError(f"{self.name}: there is no column {missing[0]!r}. There are: {', '.join(known)}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(ColumnStage):
    """Keep only some columns."""

    names: tuple[str, ...]
    name = "select_columns"

    def changed(self, rows: Rows, keys: I64) -> Rows:
        self.check_known(self.names, rows.names)
        return rows.select(self.names)

    def file_schema(self, schema: pa.Schema) -> pa.Schema | None:
        return self.item_schema(schema)

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        # of a mixture not all columns are known
        is_known = schema is not None and set(self.names) <= set(schema.names)
        return ColumnStage.item_schema(self, schema) if is_known else None

    def describe(self) -> dict[str, Any] | None:
        return {"op": self.name, "columns": list(self.names)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameColumns(ColumnStage):
    """Give columns other names, or remove them. The others stay as they are, and so does the order."""

    names: tuple[tuple[str, str | None], ...]
    """Each old name with the new one; None removes the column."""
    name: str
    """The method that the user called."""

    def changed(self, rows: Rows, keys: I64) -> Rows:
        names = dict(self.names)
        self.check_known(list(names), rows.names)
        kept = {name: new for name in rows.names if (new := names.get(name, name)) is not None}
        twice = [name for name in kept.values() if list(kept.values()).count(name) > 1]
        if twice:
            raise SchemaMismatchError(
                f"{self.name}: there would be two columns {twice[0]!r}. Remove one of them first."
            )
        return rows.renamed(kept)

    def describe(self) -> dict[str, Any] | None:
        return {"op": self.name, "columns": [list(pair) for pair in self.names]}


@dataclass(frozen=True, slots=True, kw_only=True)
class FillColumns(ColumnStage):
    """Add the columns that rows do not have, with nulls, and put all columns into one order: what ``concat`` does.

    A state does not remember it, so that datasets with other columns may be added to a run.
    """

    columns: pa.Schema
    name = "fill_columns"

    def changed(self, rows: Rows, keys: I64) -> Rows:
        nulls = {one.name: pa.nulls(len(rows), one.type) for one in self.columns if one.name not in rows.names}
        return rows.with_columns(nulls).select(self._ordered(rows.names))

    def file_schema(self, schema: pa.Schema) -> pa.Schema | None:
        return pa.schema([schema.field(name) for name in self._ordered(schema.names) if name in schema.names])

    def _ordered(self, names: Sequence[str]) -> list[str]:
        return list(dict.fromkeys([*self.columns.names, *names]))


@dataclass(frozen=True, slots=True, kw_only=True)
class CastColumns(ColumnStage):
    """Give columns other types. The others stay as they are, and so does the order."""

    types: tuple[tuple[str, pa.DataType], ...]
    name: str
    """The method that the user called."""

    def changed(self, rows: Rows, keys: I64) -> Rows:
        self.check_known([name for name, _ in self.types], rows.names)
        return rows.with_columns(
            {name: self._cast(name, convert(rows.data[name], "arrow"), kind) for name, kind in self.types}
        )

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
class AddColumn(ColumnStage):
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

    def changed(self, rows: Rows, keys: I64) -> Rows:
        if self.column in rows.names:
            raise SchemaMismatchError(f"add_column: there is a column {self.column!r} already. Remove it first.")
        return rows.with_columns({self.column: self.values.take(arrow_of(keys))})

    def describe(self) -> dict[str, Any] | None:
        return {"op": self.name, "column": self.column, "values": self.digest}


@dataclass(frozen=True, slots=True, kw_only=True)
class Convert(Stage):
    """Give items other values: Python, NumPy, torch or Arrow."""

    form: Form
    by_loader: bool = False
    """True if the user chose no form, and a Loader delivers this one. Items without columns then stay as they are."""
    name = "with_format"

    @property
    def sets_form(self) -> bool:  # type: ignore[override]
        return not self.by_loader

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        if inputs.row_runs is not None:
            return inputs.batched_as(self.form)
        change = partial(convert_batch, ragged=inputs.ragged) if inputs.batched else convert_item
        items = (
            (change(item, self.form) if not self.by_loader or isinstance(item, Mapping) else item, cursor, key)
            for item, cursor, key in inputs.as_single_items()
        )
        return replace(inputs.with_single_items(items), form=self.form)
