"""Stages that work on one item at a time: map, filter, select_columns and with_format."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, NoReturn, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import SchemaMismatchError
from midepoch.stages.counted import CountedItems, Outputs
from midepoch.stages.flow import Context, Flow, Idle, RowRun, SingleItem, check_group_size, single_groups
from midepoch.stages.kept import Kept, rejected_row
from midepoch.stages.stage import FunctionStage, Stage
from midepoch.values.forms import Form
from midepoch.values.rows import convert_batch, convert_item

NOTHING_KEPT = "filter kept no row"
MAPPINGS = dict, Mapping
"""To ask for the class that most items have first is much faster than to ask for the abstract one alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(FunctionStage):
    """Call a function on each item. A dict that it returns updates the item; any other value replaces the item."""

    remove_columns: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What a state remembers beside the function, if it is set."""

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        outputs = self._outputs(inputs.as_single_items(), context)
        return replace(inputs.with_single_items(outputs), schema=None)

    def _outputs(self, inputs: Iterator[SingleItem], context: Context) -> Iterator[SingleItem]:
        call, removed = self.call, self.remove_columns
        for item, cursor, key in inputs:
            if removed:
                check_removed(item, removed)  # before the call, because the function may change the item
            result = call(item, key, context)
            if isinstance(result, MAPPINGS) and isinstance(item, MAPPINGS):
                kept = without(item, removed) if removed else item
                result = {**kept, **(kept if result is item else result)}
            elif removed and isinstance(result, pa.RecordBatch):
                result = without(result, removed)
            elif result is None and isinstance(item, MAPPINGS):
                raise TypeError(
                    f"The function of {self.name} returned None{_for_row(self, key, context)}. It must return the row, "
                    "or a dict of the columns that it changes. Does it end without a return statement?"
                )
            yield result, cursor, key

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        return schema if getattr(self.call.function, "keeps_columns", False) else None

    def describe(self) -> dict[str, Any] | None:
        return self.call.describe(remove_columns=list(self.remove_columns), **self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(FunctionStage):
    """Keep the items for which a function is true. Each is judged alone, also by a function of many."""

    size: int | None = None
    """How many items a batched function gets the columns of; None for a function of one item."""
    checks: bool = False
    """True if a survey has chosen the rows, so that all of them must be kept."""
    tries: bool = False
    """True if it is tried that a batched function judges rows alone: in a survey, which depends on it."""

    def __post_init__(self) -> None:
        if self.size is not None:
            check_group_size(self.size)

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        call = self.call
        if self.size is not None:
            groups = single_groups(inputs.as_row_runs(self.size), self.size)
            runs = self._runs(groups, Idle(inputs.passes, NOTHING_KEPT), context)
            return Flow(row_runs=runs, form=inputs.form, schema=inputs.schema)
        if self.checks:
            return inputs.with_single_items(self._checked(inputs.as_single_items(), context))
        if inputs.passes is not None:
            return inputs.with_single_items(self._watched(inputs, context))
        kept = (
            single
            for single in inputs.as_single_items()
            if (is_kept := call(single[0], single[2], context)) or (is_kept is None and self._refuse(single, context))
        )
        return inputs.with_single_items(kept)

    def _refuse(self, single: SingleItem, context: Context) -> NoReturn:
        raise TypeError(
            f"The function of {self.name} returned None{_for_row(self, single[2], context)}. It "
            "must return True to keep the row, or False. Does it end without a return statement?"
        )

    def _watched(self, inputs: Flow, context: Context) -> Iterator[SingleItem]:
        idle = Idle(inputs.passes, NOTHING_KEPT)
        for single in inputs.as_single_items():
            is_kept = self.call(single[0], single[2], context)
            if is_kept is None:
                self._refuse(single, context)
            idle.note(bool(is_kept), single[1])
            if is_kept:
                yield single

    def _checked(self, inputs: Iterator[SingleItem], context: Context) -> Iterator[SingleItem]:
        for single in inputs:
            if not self.call(single[0], single[2], context):
                raise rejected_row(self.name, context.name(single[2]))
            yield single

    def _runs(self, groups: Iterator[RowRun], idle: Idle, context: Context) -> Iterator[RowRun]:
        """What a batched function keeps."""
        to_try = self.tries
        for group in groups:
            mask = self._mask(group, context)
            if self.checks and not mask.all():
                raise rejected_row(self.name, context.name(int(group.keys[~mask][0])))
            if to_try and len(group) > 1:
                to_try = False
                self._check_judged_alone(group, mask, context)
            idle.note(bool(mask.any()), group.cursors[-1])
            if mask.all():
                yield group
            elif mask.any():
                yield group.take(np.flatnonzero(mask))

    def _mask(self, group: RowRun, context: Context) -> npt.NDArray[np.bool_]:
        """Which rows of a group the function keeps."""
        result = self.call(group.rows.columns(), int(group.keys[0]), context, group.keys)
        mask = result.to_pylist() if isinstance(result, pa.Array | pa.ChunkedArray) else np.asarray(result).tolist()
        if not isinstance(mask, list) or len(mask) != len(group):
            raise ValueError(
                f"filter(batched=True) needs a function that returns one truth value for each of the {len(group)} "
                f"rows, but it returned {len(mask) if isinstance(mask, list) else mask!r}."
            )
        return np.array([bool(keep) for keep in mask], np.bool_)

    def _check_judged_alone(self, group: RowRun, mask: npt.NDArray[np.bool_], context: Context) -> None:
        """Raise if a row is judged otherwise in a smaller group."""
        middle = len(group) // 2
        halves = [self._mask(group.slice(*half), context) for half in ((0, middle), (middle, len(group)))]
        for number in np.flatnonzero(np.concatenate(halves) != mask).tolist()[:1]:
            raise ValueError(
                f"survey: filter(batched=True) judges {context.name(int(group.keys[number]))} otherwise if other rows "
                "are in its batch. Which rows are in a batch changes with the order and at a resume, so the function "
                "must judge each row alone."
            )

    @property
    def needs_survey(self) -> bool:  # type: ignore[override]
        return not self.checks

    def checking(self, on: bool) -> Self:
        return replace(self, checks=on)

    def for_survey(self) -> Self:
        return replace(self, tries=True)

    def count(self, inputs: int) -> int | None:
        return inputs if self.checks else None

    def counted(self, inputs: CountedItems, cursor: Cursor, context: Context) -> CountedItems:
        make = partial(self.flow, cursor=cursor, context=context)
        return Outputs(inputs, make) if self.checks else Kept(inputs, make, self.name, context.name)

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        return schema

    def describe(self) -> dict[str, Any] | None:
        # Rows are judged alone, so the size of a batch changes none.
        return self.call.describe(batched=self.size is not None)


def _for_row(stage: FunctionStage, key: int, context: Context) -> str:
    """Names the row that a function got, where its key says which it is: of a mixture it does not."""
    return context.name_row(stage.call.number, key, single=True).replace(", at ", " for ", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(Stage):
    """Keep only some columns."""

    names: tuple[str, ...]
    name = "select_columns"

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        schema = self.item_schema(inputs.schema)
        if inputs.row_runs is not None:
            runs = (RowRun(run.rows.select(self.names), run.cursors, run.keys) for run in inputs.row_runs)
            return Flow(row_runs=runs, form=inputs.form, schema=schema, deferred=inputs.deferred)
        items = ((self._select(item), cursor, key) for item, cursor, key in inputs.as_single_items())
        return replace(inputs.with_single_items(items), schema=schema)

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        if schema is None or not set(self.names) <= set(schema.names):
            return None
        return pa.schema([schema.field(name) for name in self.names])

    def _select(self, item: Any) -> Any:
        if not isinstance(item, Mapping | pa.RecordBatch):
            raise TypeError(
                f"select_columns needs items that are dicts, got a {type(item).__name__}. Let the map before it return "
                "a dict, or leave it out."
            )
        columns = item.schema.names if isinstance(item, pa.RecordBatch) else list(item)
        missing = [name for name in self.names if name not in columns]
        if missing:
            raise SchemaMismatchError(f"select_columns: an item has no column {missing[0]!r}; it has {columns}.")
        if isinstance(item, pa.RecordBatch):
            return item.select(self.names)
        return {name: item[name] for name in self.names}

    def describe(self) -> dict[str, Any] | None:
        return {"op": self.name, "columns": list(self.names)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Convert(Stage):
    """Give items other values: Python, NumPy, torch or Arrow."""

    form: Form
    name = "with_format"
    sets_form: ClassVar[bool] = True

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        if inputs.row_runs is not None:
            return inputs.batched_as(self.form)
        convert = convert_batch if inputs.batched else convert_item
        items = ((convert(item, self.form), cursor, key) for item, cursor, key in inputs.as_single_items())
        return replace(inputs.with_single_items(items), form=self.form)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToTensors(Stage):
    """Give batches and packs the values that a Loader delivers if the user chose no form."""

    form: Literal["torch"]
    name = "with_format"

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        if inputs.row_runs is not None:
            return inputs.batched_as(self.form)
        convert = convert_batch if inputs.batched else convert_item
        items = (
            (convert(item, self.form) if isinstance(item, MAPPINGS) else item, cursor, key)
            for item, cursor, key in inputs.as_single_items()
        )
        return replace(inputs.with_single_items(items), form=self.form)


def check_removed(columns: Any, removed: tuple[str, ...]) -> None:
    """Raise if a column does not exist that ``remove_columns`` names. Items without columns pass."""
    if isinstance(columns, pa.RecordBatch):
        columns = dict.fromkeys(columns.schema.names)
    missing = [name for name in removed if name not in columns] if isinstance(columns, MAPPINGS) else []
    if missing:
        raise SchemaMismatchError(f"remove_columns names {missing[0]!r}, which is not among {list(columns)}.")


def without(columns: Any, removed: tuple[str, ...]) -> Any:
    """A dict or a record batch without the removed columns."""
    if isinstance(columns, pa.RecordBatch):
        return columns.select([name for name in columns.schema.names if name not in removed])
    return {name: value for name, value in columns.items() if name not in removed}
