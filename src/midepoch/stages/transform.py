"""Stages that call a user's function on each item, and those that only change how items look."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import SchemaMismatchError
from midepoch.stages.flow import Context, Emitted, Flow, Run
from midepoch.stages.stage import FunctionStage, Stage
from midepoch.values.forms import Form
from midepoch.values.rows import convert_batch, convert_item


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(FunctionStage):
    """One item in, one out. A dict that the function returns is laid over the item; anything else replaces it."""

    remove_columns: tuple[str, ...] = ()

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        """Each item's result, computed when it is asked for."""
        return replace(inputs.one_by_one(self._steps(inputs.each(), context)), schema=None)

    def _steps(self, steps: Iterator[Emitted], context: Context) -> Iterator[Emitted]:
        call, removed = self.call, self.remove_columns
        for item, end, key in steps:
            result = call(item, key, context)
            if isinstance(result, Mapping) and isinstance(item, Mapping):
                result = {**(without(item, removed) if removed else item), **result}
            yield result, end, key

    def describe(self) -> dict[str, Any] | None:
        """The function and its parameters."""
        return self.call.describe(remove_columns=list(self.remove_columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(FunctionStage):
    """Keeps the items for which the function is true."""

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        """The items that stay."""
        call = self.call
        kept = (step for step in inputs.each() if call(step[0], step[2], context))
        return inputs.one_by_one(kept)

    def count(self, inputs: int) -> int | None:
        return None

    def describe(self) -> dict[str, Any] | None:
        """The function and its parameters."""
        return self.call.describe()


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(Stage):
    """Some of the columns."""

    names: tuple[str, ...]
    name = "select_columns"

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        """The items with these columns only."""
        if inputs.runs is not None:
            chosen = (Run(run.rows.select(self.names), run.ends, run.keys) for run in inputs.runs)
            return Flow(runs=chosen, form=inputs.form, schema=self._schema(inputs.schema))
        picked = ((self._pick(item), end, key) for item, end, key in inputs.each())
        return replace(inputs.one_by_one(picked), schema=self._schema(inputs.schema))

    def _schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        if schema is None or not set(self.names) <= set(schema.names):
            return None
        return pa.schema([schema.field(name) for name in self.names])

    def _pick(self, item: Any) -> Any:
        if not isinstance(item, Mapping | pa.RecordBatch):
            raise TypeError(
                f"select_columns needs items that are dicts, got a {type(item).__name__}. Let the map before it return "
                "a dict, or leave it out."
            )
        there = item.schema.names if isinstance(item, pa.RecordBatch) else list(item)
        missing = [name for name in self.names if name not in there]
        if missing:
            raise SchemaMismatchError(f"select_columns: an item has no column {missing[0]!r}; it has {there}.")
        if isinstance(item, pa.RecordBatch):
            return item.select(self.names)
        return {name: item[name] for name in self.names}

    def describe(self) -> dict[str, Any] | None:
        """The columns."""
        return {"op": self.name, "columns": list(self.names)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Convert(Stage):
    """The items in another form: Python, NumPy, torch or Arrow values."""

    form: Form
    name = "with_format"

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        """The same items in the form."""
        if inputs.runs is not None:
            reformed = (Run(run.rows.to(self.form), run.ends, run.keys) for run in inputs.runs)
            return Flow(runs=reformed, form=self.form, schema=inputs.schema)
        make = convert_batch if inputs.batched else convert_item
        steps = ((make(item, self.form), end, key) for item, end, key in inputs.each())
        return replace(inputs.one_by_one(steps), form=self.form)


def without(columns: Mapping[str, Any], removed: tuple[str, ...]) -> dict[str, Any]:
    """The columns but those removed, each of which must be there."""
    missing = [name for name in removed if name not in columns]
    if missing:
        raise SchemaMismatchError(f"remove_columns names {missing[0]!r}, which is not among {list(columns)}.")
    return {name: value for name, value in columns.items() if name not in removed}
