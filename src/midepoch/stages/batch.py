"""The stages that make one item of several: ``batch``, and the loader's ``collate_fn``."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from midepoch._common.hashing import I64
from midepoch._common.jobs import FUNCTIONS
from midepoch.checkpoint.lanes import Cursor
from midepoch.stages.counted import Batches, CountedItems, hashes_of
from midepoch.stages.flow import Context, Flow, ItemRun, RowRun, SingleItem
from midepoch.stages.stage import Stage, check_not_async
from midepoch.values.columns import Form
from midepoch.values.convert import collate
from midepoch.values.rows import Rows, row_items


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
        if inputs.row_runs is None or self.collate is not None:
            return Flow(single_items=self._of_items(inputs), form=inputs.form, batched=True)
        runs = self._of_columns(inputs.as_row_runs(self.size), row_items if inputs.deferred else Rows.batches)
        if inputs.deferred or inputs.form == "python":  # the values exist already and are only sliced
            return Flow(item_runs=runs, form=inputs.form, batched=True)
        single_items = chain.from_iterable(map(ItemRun.single_items, runs))
        return Flow(single_items=single_items, form=inputs.form, batched=True)

    def _of_columns(
        self, runs: Iterator[RowRun], batches_of: Callable[[Rows, int], Iterable[Any]]
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

    def _of_items(self, inputs: Flow) -> Iterator[SingleItem]:
        single_items = inputs.as_single_items()
        collate_fn = None if self.collate is None else FUNCTIONS.timed(self.collate)
        while group := list(islice(single_items, self.size)):
            if len(group) < self.size and self.drop_last:
                return
            items, after = [item for item, _, _ in group], group[-1][1]
            keys = np.array([key for _, _, key in group], np.int64)
            (key,) = sums_of(keys, self.size, batched=inputs.batched).tolist()
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
