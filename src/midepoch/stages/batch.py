"""Stages that work on groups of items: batches, and the user's functions of columns."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from midepoch.checkpoint.lanes import Cursor
from midepoch.stages.flow import (
    Context,
    Emitted,
    Flow,
    Items,
    Run,
    check_delivered,
    cut_groups,
    from_cursor,
    outputs_of,
)
from midepoch.stages.stage import FunctionStage, Stage
from midepoch.stages.transform import without
from midepoch.values.collate import collate
from midepoch.values.convert import as_column
from midepoch.values.rows import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Stage):
    """``size`` items in, one out. The last of a lane may be smaller, or is left out."""

    size: int
    drop_last: bool = False
    collate: Callable[[list[Any]], Any] | None = None
    """What makes one item of several, instead of laying them out as columns."""
    name = "batch"

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise ValueError(f"A batch needs a whole number of items from 1, got {self.size!r}.")

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return () if self.collate is None else (self.collate,)

    @property
    def group_size(self) -> int:
        return self.size

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        """The batches: slices of whole columns as long as no function made single items of them."""
        if inputs.runs is not None and self.collate is None:
            if inputs.form == "python":
                lots = self._lots(Flow(runs=_as_lists(inputs.runs)).groups(self.size))
                # Made already, but for the cutting: then it is quicker to cut many at a time.
                return Flow(many=(Items(list(batches), ends, keys) for batches, ends, keys in lots), batched=True)
            single = chain.from_iterable(map(Items.each, self._lots(inputs.groups(self.size))))
            return Flow(single=single, form=inputs.form, batched=True)
        return Flow(single=self._from_steps(inputs), form=inputs.form, batched=True)

    def _lots(self, groups: Iterator[Run]) -> Iterator[Items]:
        """The batches of each run, made when they are asked for."""
        for run in groups:
            whole = len(run) // self.size * self.size
            stop = whole if self.drop_last else len(run)
            last = [*range(self.size - 1, stop, self.size), *([stop - 1] if stop > whole else [])]
            ends, keys = run.ends[last], run.keys[: stop : self.size]
            batches = (run.rows if stop == len(run) else run.rows.slice(0, stop)).batches(self.size)
            del run  # so that the next one is made in its memory, which is still in the cache
            yield Items(batches, ends, keys)
            del batches

    def _from_steps(self, inputs: Flow) -> Iterator[Emitted]:
        steps = inputs.each()
        while some := list(islice(steps, self.size)):
            if len(some) == self.size or not self.drop_last:
                items = [item for item, _, _ in some]
                made = self.collate(items) if self.collate else collate(items, inputs.form, inputs.ragged)
                yield made, some[-1][1], some[0][2]

    def count(self, inputs: int) -> int | None:
        return inputs // self.size if self.drop_last else -(-inputs // self.size)

    def describe_as_input(self) -> dict[str, Any] | None:
        return {"op": self.name, "n": self.size, "drop_last": self.drop_last}


def _as_lists(runs: Iterator[Run]) -> Iterator[Run]:
    """The runs with columns of Python values: converted a whole run at a time, and cut into batches after that."""
    for run in runs:  # those without columns have no values, and only Arrow knows how many there are
        yield Run(Rows(run.rows.columns(), "python"), run.ends, run.keys) if run.rows.names else run


@dataclass(frozen=True, slots=True, kw_only=True)
class Collate(Stage):
    """A function of each item that changes how it looks, not what it is."""

    function: Callable[[Any], Any]
    name = "collate_fn"

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.function,)

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        """Each item's result."""
        function = self.function
        return Flow(single=((function(item), end, key) for item, end, key in inputs.each()), form=inputs.form)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapBatches(FunctionStage):
    """A function of the columns of ``size`` items, which may return any number of rows."""

    size: int
    remove_columns: tuple[str, ...] = ()
    many_outputs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise ValueError(f"batch_size must be a whole number from 1, got {self.size!r}.")

    @property
    def group_size(self) -> int:
        return self.size

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        """The rows that the function returns for each group."""
        return Flow(
            runs=_grouped(inputs, self.size, cursor, lambda group: self._outputs(group, context)),
            form=inputs.form,
        )

    def _outputs(self, group: Run, context: Context) -> Rows:
        columns = group.rows.columns()
        result = self.call(columns, int(group.keys[0]), context)
        if isinstance(result, pa.Table):
            result = (
                result.combine_chunks().to_batches()[0]
                if len(result)
                else pa.RecordBatch.from_pylist([], result.schema)
            )
        if isinstance(result, pa.RecordBatch):
            return Rows(result, group.rows.form)
        if not isinstance(result, Mapping):
            raise TypeError(
                f"{self.call.stage}(batched=True) needs a function that returns a dict of columns (or an Arrow batch), "
                f"but it returned {type(result).__name__}."
            )
        kept = {} if isinstance(columns, pa.RecordBatch) else without(columns, self.remove_columns)
        merged = {**kept, **{name: as_column(column, group.rows.form) for name, column in result.items()}}
        lengths = {name: len(column) for name, column in merged.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"{self.call.stage}(batched=True) returned columns of different lengths: {lengths}. Columns that the "
                "function does not return keep their length: name them in remove_columns if the number of rows changes."
            )
        return Rows(merged, group.rows.form)

    def count(self, inputs: int) -> int | None:
        return None

    def describe(self) -> dict[str, Any] | None:
        """The function and its parameters; the size decides which rows the function sees together."""
        return self.call.describe(batched=True, batch_size=self.size, remove_columns=list(self.remove_columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterBatches(FunctionStage):
    """A function of the columns of ``size`` items, which returns one truth value for each."""

    size: int
    many_outputs: ClassVar[bool] = True

    @property
    def group_size(self) -> int:
        return self.size

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        """The rows that stay."""
        return Flow(
            runs=_grouped(inputs, self.size, cursor, lambda group: self._outputs(group, context)),
            form=inputs.form,
            schema=inputs.schema,
        )

    def _outputs(self, group: Run, context: Context) -> Rows:
        result = self.call(group.rows.columns(), int(group.keys[0]), context)
        mask = result.to_pylist() if isinstance(result, pa.Array | pa.ChunkedArray) else np.asarray(result).tolist()
        if not isinstance(mask, list) or len(mask) != len(group):
            raise ValueError(
                f"filter(batched=True) needs a function that returns one truth value for each of the {len(group)} "
                f"rows; it returned {len(mask) if isinstance(mask, list) else mask!r}."
            )
        return group.rows.keep([bool(keep) for keep in mask])

    def count(self, inputs: int) -> int | None:
        return None

    def describe(self) -> dict[str, Any] | None:
        """The function and its parameters."""
        return self.call.describe(batched=True)


def _grouped(inputs: Flow, size: int, cursor: Cursor, outputs: Callable[[Run], Rows]) -> Iterator[Run]:
    """Turn groups of ``size`` inputs into outputs, from the cursor on: the resume rule, for whole columns."""
    for group, start, delivered in from_cursor(cut_groups(inputs.groups(size), size), cursor):
        made = outputs_of(group, start, outputs(group))
        check_delivered(delivered, len(made))
        if len(made) > delivered:
            yield made.slice(delivered, len(made))
