"""Stages that remove or rename columns of rows, whole runs at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import SchemaMismatchError
from midepoch.stages.flow import Context, Flow, RowRun
from midepoch.stages.stage import Stage
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
