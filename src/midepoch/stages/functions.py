"""Stages that call a user function: map and filter, one item at a time or many items as columns."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch._common.checks import count
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import SchemaMismatchError
from midepoch.stages.counted import rejected_row
from midepoch.stages.flow import WHOLE_LANE, Context, Flow, RowRun, SingleItem, check_group_size, resume_groups
from midepoch.stages.stage import FunctionStage, name_of
from midepoch.values.convert import as_column
from midepoch.values.rows import Rows

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
class MapBatches(FunctionStage):
    """Call a function on the columns of ``size`` items. It may return any number of rows, unless it is ``one_to_one``.

    A one-to-one function returns one row for each, made of that item alone. So its groups may be cut anywhere.
    """

    size: int
    one_to_one: bool = False
    drop_last: bool = False
    """True if the last items of a lane are left out where they are fewer than ``size``."""
    remove_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_group_size(self.size)
        if self.one_to_one and self.call.with_rng:
            raise ValueError(
                "one_to_one=True with with_rng=True is not possible: a batch of rows has one random generator, and "
                "which rows are in a batch may change. Pass batched=False, or leave out one of the two."
            )

    @property
    def many_outputs(self) -> bool:  # type: ignore[override]
        return not self.one_to_one

    @property
    def group_size(self) -> int:
        return 1 if self.one_to_one else self.size

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        groups = inputs.groups(self.size)
        if not self.one_to_one:
            return Flow(row_runs=self._outputs(groups, cursor, inputs.skips, context), form=inputs.form)
        runs = (RowRun(self._same_number(group, context), group.cursors, group.keys) for group in groups)
        return Flow(row_runs=runs, form=inputs.form)

    def _outputs(self, groups: Iterator[RowRun], cursor: Cursor, skips: bool, context: Context) -> Iterator[RowRun]:
        for group in resume_groups(groups, cursor, skips, self.call.number, context):
            is_left_out = self.drop_last and len(group.inputs) < self.size
            rows = Rows({}) if is_left_out else self._called(group.inputs, context)
            outputs = RowRun(rows, *group.cursors_and_keys(len(rows)))
            if len(outputs):
                yield outputs.slice(group.delivered, len(outputs))

    def _same_number(self, group: RowRun, context: Context) -> Rows:
        outputs = self._called(group, context)
        if len(outputs) != len(group):
            raise ValueError(
                f"{self.name}({name_of(self.call.function)}, batched=True, one_to_one=True) got "
                f"{count('row', len(group))} and returned {len(outputs):,}"
                f"{context.name_row(self.call.number, int(group.keys[0]), single=True)} and after it. It must return "
                "one row for each. If the number of rows may change, leave out one_to_one."
            )
        return outputs

    def _called(self, group: RowRun, context: Context) -> Rows:
        """The rows that the function returns for the columns of a group. Columns that it does not return are kept."""
        columns = group.rows.columns()
        check_removed(columns, self.remove_columns)  # before the call, because the function may change the columns
        result = self.call(columns, int(group.keys[0]), context, group.keys)
        if isinstance(result, pa.Table):
            batches = result.combine_chunks().to_batches()
            result = batches[0] if batches else pa.RecordBatch.from_pylist([], result.schema)
        if isinstance(result, pa.RecordBatch):
            return Rows(without(result, self.remove_columns), group.rows.form)
        if not isinstance(result, Mapping):
            kind = type(result).__name__
            raise TypeError(
                f"{self.name}(batched=True) needs a function that returns a dict of columns (or an Arrow batch), "
                f"but it returned {'None. Does it end without a return statement?' if result is None else kind + '.'}"
            )
        kept = {} if isinstance(columns, pa.RecordBatch) else without(columns, self.remove_columns)
        returned = kept if result is columns else result
        merged = {**kept, **{name: as_column(column, group.rows.form) for name, column in returned.items()}}
        lengths = {name: len(column) for name, column in merged.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"{self.name}(batched=True) has columns of different lengths: {lengths}. Columns that the function "
                "does not return keep their length: name them in remove_columns if the number of rows changes."
            )
        return Rows(merged, group.rows.form)

    def count(self, inputs: int) -> int | None:
        return inputs if self.one_to_one else None

    @property
    def why_not_counted(self) -> str:
        return (
            f"{self.name}(batched=True) may return any number of rows: pass one_to_one=True if it returns one for each "
            "row, made of that row alone, or cache() the rows that it makes"
        )

    def describe(self) -> dict[str, Any] | None:
        removed = list(self.remove_columns)
        if self.one_to_one:  # rows do not depend on each other, so the size of a batch changes none
            return self.call.describe(batched=True, one_to_one=True, remove_columns=removed)
        # The size decides which rows the function sees together, so another one can change the rows it returns.
        return self.call.describe(
            batched=True,
            batch_size=None if self.size == WHOLE_LANE else self.size,
            whole_lane=self.size == WHOLE_LANE,
            drop_last_batch=self.drop_last,
            remove_columns=removed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoosingStage(FunctionStage):
    """A stage whose function decides for each item whether it stays. A survey knows the decision for each row."""

    checks: bool = False
    """True if a survey has chosen the rows, so that all of them must stay."""

    @property
    def leaves_out(self) -> bool:
        """True if items may be left out."""
        return True

    @property
    def needs_survey(self) -> bool:  # type: ignore[override]
        return self.leaves_out and not self.checks

    def checking(self, on: bool) -> Self:
        return replace(self, checks=on and self.leaves_out)

    def count(self, inputs: int) -> int | None:
        return None if self.needs_survey else inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(ChoosingStage):
    """Keep the items for which a function is true. Each is judged alone, also by a function of many."""

    size: int | None = None
    """How many items a batched function gets the columns of; None for a function of one item."""

    def __post_init__(self) -> None:
        if self.size is not None:
            check_group_size(self.size)

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        if self.size is None:
            return inputs.with_single_items(self._items(inputs.as_single_items(), context))
        runs = self._runs(inputs.groups(self.size), context)
        return Flow(row_runs=runs, form=inputs.form, schema=inputs.schema)

    def _items(self, inputs: Iterator[SingleItem], context: Context) -> Iterator[SingleItem]:
        call = self.call
        for single in inputs:
            is_kept = call(single[0], single[2], context)
            if not is_kept and (self.checks or is_kept is None):
                self._refuse(is_kept, single[2], context)
            if is_kept:
                yield single

    def _refuse(self, is_kept: object, key: int, context: Context) -> NoReturn:
        if is_kept is not None:
            raise rejected_row(self.name, context.name(key))
        raise TypeError(
            f"The function of {self.name} returned None{_for_row(self, key, context)}. It "
            "must return True to keep the row, or False. Does it end without a return statement?"
        )

    def _runs(self, groups: Iterator[RowRun], context: Context) -> Iterator[RowRun]:
        """What a batched function keeps."""
        for group in groups:
            mask = self._mask(group, context)
            if self.checks and not mask.all():
                raise rejected_row(self.name, context.name(int(group.keys[~mask][0])))
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

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        return schema

    def describe(self) -> dict[str, Any] | None:
        # Rows are judged alone, so the size of a batch changes none.
        return self.call.describe(batched=self.size is not None)


def _for_row(stage: FunctionStage, key: int, context: Context) -> str:
    """Names the row that a function got, where its key says which it is: of a mixture it does not."""
    return context.name_row(stage.call.number, key, single=True).replace(", at ", " for ", 1)


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
