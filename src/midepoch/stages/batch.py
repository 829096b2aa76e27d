"""Stages that work on groups of items: batches, and user functions of columns."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from midepoch._common.checks import count
from midepoch._common.hashing import I64
from midepoch._common.jobs import FUNCTIONS
from midepoch.checkpoint.lanes import Cursor
from midepoch.stages.arguments import check_not_async, name_of
from midepoch.stages.counted import Batches, CountedItems, hashes_of
from midepoch.stages.flow import (
    WHOLE_LANE,
    Context,
    Flow,
    ItemRun,
    RowRun,
    SingleItem,
    check_group_size,
    resume_groups,
    single_groups,
)
from midepoch.stages.stacked import StackedRun, groups_of, stacked_batch
from midepoch.stages.stage import Call, FunctionStage, Stage
from midepoch.stages.transform import check_removed, without
from midepoch.values.collate import collate
from midepoch.values.convert import as_column
from midepoch.values.forms import Form
from midepoch.values.row_items import row_items
from midepoch.values.rows import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Stage):
    """Make one item of ``size`` items. The last batch of a lane may be smaller; ``drop_last`` leaves it out."""

    size: int
    drop_last: bool = False
    collate: Callable[[list[Any]], Any] | None = None
    """A user function that makes the batch, instead of laying the items out as columns."""
    default_form: Form | None = None
    """The form of the columns if the user chose none; None is that of the items."""
    name = "batch"

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise ValueError(f"A batch size must be an integer of at least 1, got {self.size!r}.")
        if self.collate is not None:
            check_not_async(self.collate, "collate_fn")

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return () if self.collate is None else (self.collate,)

    @property
    def group_size(self) -> int:
        return self.size

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        if self.default_form is not None:
            inputs = inputs.batched_as(self.default_form)
        if inputs.stacked_runs is not None and self.collate is None:
            return Flow(single_items=self._of_stacked(inputs, inputs.stacked_runs), form=inputs.form, batched=True)
        if inputs.row_runs is None or self.collate is not None:
            return Flow(single_items=self._of_items(inputs), form=inputs.form, batched=True)
        if inputs.deferred:
            runs = self._of_columns(inputs.as_row_runs(self.size), row_items)
            return Flow(item_runs=runs, form=inputs.form, batched=True)
        if inputs.form == "python":
            lists = Flow(row_runs=_as_lists(inputs.row_runs))
            runs = self._of_columns(lists.as_row_runs(self.size))
            # The values exist already and are only sliced, so it is faster to make many batches at a time.
            return Flow(item_runs=(run._replace(items=list(run.items)) for run in runs), batched=True)
        runs = self._of_columns(inputs.as_row_runs(self.size))
        single_items = chain.from_iterable(map(ItemRun.single_items, runs))
        return Flow(single_items=single_items, form=inputs.form, batched=True)

    def _of_columns(
        self, runs: Iterator[RowRun], batches_of: Callable[[Rows, int], Iterable[Any]] = Rows.batches
    ) -> Iterator[ItemRun]:
        """The batches of each run, each made when it is asked for."""
        for run in runs:
            whole = len(run) // self.size * self.size
            stop = whole if self.drop_last else len(run)
            cursors = run.cursors[self.size - 1 : stop : self.size]
            keys = sums_of(run.keys[:stop], self.size, batched=False)
            if stop > whole:
                cursors = np.concatenate([cursors, run.cursors[stop - 1 : stop]])
            batches = batches_of(run.rows if stop == len(run) else run.rows.slice(0, stop), self.size)
            del run  # so that the next one is made in its memory, which is still in the CPU cache
            yield ItemRun(batches, cursors, keys)
            del batches

    def _of_stacked(self, inputs: Flow, runs: Iterator[StackedRun]) -> Iterator[SingleItem]:
        form: Literal["numpy", "torch"] = "torch" if inputs.form == "torch" else "numpy"
        for group in groups_of(runs, self.size):
            if self.drop_last and sum(map(len, group)) < self.size:
                return
            batch: Any = stacked_batch(group, form)
            if batch is None:
                items = [item for run in group for item, _, _ in run.single_items(form)]
                batch = collate(items, form, inputs.ragged)
            keys = np.array([key for run in group for key in run.keys], np.int64)
            yield batch, group[-1].cursors[-1], sum_of(keys, batched=False)
            del batch  # so that the next one is made in its memory

    def _of_items(self, inputs: Flow) -> Iterator[SingleItem]:
        single_items = inputs.as_single_items()
        collate_fn = None if self.collate is None else FUNCTIONS.timed(self.collate)
        while group := list(islice(single_items, self.size)):
            if len(group) < self.size and self.drop_last:
                return
            items, after = [item for item, _, _ in group], group[-1][1]
            key = sum_of(np.array([key for _, _, key in group], np.int64), batched=inputs.batched)
            batch = collate_fn(items) if collate_fn else collate(items, inputs.form, inputs.ragged)
            del group, items  # so that the next items are made in their memory, of which images need much
            yield batch, after, key
            del batch

    def count(self, inputs: int) -> int | None:
        return inputs // self.size if self.drop_last else -(-inputs // self.size)

    def counted(self, inputs: CountedItems, cursor: Cursor, context: Context) -> CountedItems:
        return Batches(inputs, lambda flow: self.flow(flow, cursor, context), self.size, drop_last=self.drop_last)

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        return schema if self.collate is None else None

    def describe_as_input(self) -> dict[str, Any] | None:
        return {"op": self.name, "n": self.size, "drop_last": self.drop_last}


def sums_of(keys: I64, size: int, *, batched: bool) -> I64:
    """The keys of batches of ``size`` items: the sums of what the items add to a digest."""
    hashes, firsts = hashes_of(keys, batched=batched), np.arange(0, len(keys), size)
    return np.add.reduceat(hashes, firsts).view(np.int64) if len(keys) else keys


def sum_of(keys: I64, *, batched: bool) -> int:
    """The key of one batch."""
    return int(hashes_of(keys, batched=batched).sum(dtype=np.uint64).view(np.int64))


def _as_lists(runs: Iterator[RowRun]) -> Iterator[RowRun]:
    """The runs as columns of Python values: each run is converted at once, and sliced into batches after that."""
    for run in runs:  # a run without columns stays Arrow, which alone knows how many rows it has
        yield RowRun(Rows(run.rows.columns(), "python"), run.cursors, run.keys) if run.rows.names else run


@dataclass(frozen=True, slots=True, kw_only=True)
class Collate(Stage):
    """Call the loader's ``collate_fn`` on each item: it changes how an item looks, not which rows it holds."""

    function: Callable[[Any], Any]
    name = "collate_fn"

    def __post_init__(self) -> None:
        check_not_async(self.function, self.name)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.function,)

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        function = FUNCTIONS.timed(self.function)
        items = ((function(item), cursor, key) for item, cursor, key in inputs.as_single_items())
        return Flow(single_items=items, form=inputs.form, batched=inputs.batched)

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class MapBatches(FunctionStage):
    """Call a function on the columns of ``size`` items. It may return any number of rows."""

    size: int
    drop_last: bool = False
    """True if the last items of a lane are left out where they are fewer than ``size``."""
    remove_columns: tuple[str, ...] = ()
    many_outputs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_group_size(self.size)

    @property
    def group_size(self) -> int:
        return self.size

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        runs = by_group(inputs, self.size, cursor, self.call.number, context, self._outputs)
        return Flow(row_runs=runs, form=inputs.form)

    def _outputs(self, group: RowRun, context: Context) -> Rows:
        if self.drop_last and len(group) < self.size:
            return Rows({})
        return call_on_columns(self.call, group, self.remove_columns, context)

    def count(self, inputs: int) -> int | None:
        return None

    @property
    def why_not_counted(self) -> str:
        return (
            f"{self.name}(batched=True) may return any number of rows: pass one_to_one=True if it returns one for each "
            "row, made of that row alone"
        )

    def describe(self) -> dict[str, Any] | None:
        # The size decides which rows the function sees together, so another one can change the rows it returns.
        return self.call.describe(
            batched=True,
            batch_size=None if self.size == WHOLE_LANE else self.size,
            whole_lane=self.size == WHOLE_LANE,
            drop_last_batch=self.drop_last,
            remove_columns=list(self.remove_columns),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MapBatchesOneToOne(FunctionStage):
    """Call a function on the columns of up to ``size`` items. It returns one row for each, made of that item alone."""

    size: int
    remove_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_group_size(self.size)
        if self.call.with_rng:
            raise ValueError(
                "one_to_one=True with with_rng=True is not possible: a batch of rows has one random generator, and "
                "which rows are in a batch may change. Pass batched=False, or leave out one of the two."
            )

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        groups = single_groups(inputs.as_row_runs(self.size), self.size)
        runs = (RowRun(self._outputs(group, context), group.cursors, group.keys) for group in groups)
        return Flow(row_runs=runs, form=inputs.form)

    def _outputs(self, group: RowRun, context: Context) -> Rows:
        outputs = call_on_columns(self.call, group, self.remove_columns, context)
        if len(outputs) != len(group):
            raise ValueError(
                f"{self.name}({name_of(self.call.function)}, batched=True, one_to_one=True) got "
                f"{count('row', len(group))} and returned {len(outputs):,}"
                f"{context.name_row(self.call.number, int(group.keys[0]), single=True)} and after it. It must return "
                "one row for each. If the number of rows may change, leave out one_to_one."
            )
        return outputs

    def describe(self) -> dict[str, Any] | None:
        # Rows do not depend on each other, so the size of a batch changes none.
        return self.call.describe(batched=True, one_to_one=True, remove_columns=list(self.remove_columns))


def call_on_columns(call: Call, group: RowRun, removed: tuple[str, ...], context: Context) -> Rows:
    """The rows that a function returns for the columns of a group. Columns that it does not return are kept."""
    columns = group.rows.columns()
    check_removed(columns, removed)  # before the call, because the function may change the columns
    result = call(columns, int(group.keys[0]), context, group.keys)
    if isinstance(result, pa.Table):
        result = (
            result.combine_chunks().to_batches()[0] if len(result) else pa.RecordBatch.from_pylist([], result.schema)
        )
    if isinstance(result, pa.RecordBatch):
        return Rows(without(result, removed), group.rows.form)
    if not isinstance(result, Mapping):
        kind = type(result).__name__
        raise TypeError(
            f"{call.stage}(batched=True) needs a function that returns a dict of columns (or an Arrow batch), "
            f"but it returned {'None. Does it end without a return statement?' if result is None else kind + '.'}"
        )
    kept = {} if isinstance(columns, pa.RecordBatch) else without(columns, removed)
    returned = kept if result is columns else result
    merged = {**kept, **{name: as_column(column, group.rows.form) for name, column in returned.items()}}
    lengths = {name: len(column) for name, column in merged.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"{call.stage}(batched=True) has columns of different lengths: {lengths}. Columns that the function "
            "does not return keep their length: name them in remove_columns if the number of rows changes."
        )
    return Rows(merged, group.rows.form)


def by_group(
    inputs: Flow,
    size: int,
    cursor: Cursor,
    stage: int,
    context: Context,
    make: Callable[[RowRun, Context], Rows],
) -> Iterator[RowRun]:
    """Turn groups of ``size`` inputs into outputs, from the cursor on: the resume rule, for whole columns."""
    groups = single_groups(inputs.as_row_runs(size), size)
    for group in resume_groups(groups, cursor, inputs.skips, stage, context):
        rows = make(group.inputs, context)
        outputs = RowRun(rows, *group.cursors_and_keys(len(rows)))
        if len(outputs):
            yield outputs.slice(group.delivered, len(outputs))
