"""A filter whose function gets the columns of many rows at a time: filter(batched=True)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch.checkpoint.lanes import Cursor
from midepoch.stages.batch import by_group
from midepoch.stages.counted import CountedItems, Outputs
from midepoch.stages.flow import Context, Flow, RowRun, single_groups
from midepoch.stages.kept import Kept, KeptOfGroups, rejected_row, without_others
from midepoch.stages.skipped import delivered_of
from midepoch.stages.stage import Call, FunctionStage, Stage
from midepoch.values.rows import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterBatches(FunctionStage):
    """Call a function on the columns of ``size`` items. It returns for each whether to keep it."""

    size: int
    many_outputs: ClassVar[bool] = True
    needs_survey: ClassVar[bool] = True

    @property
    def group_size(self) -> int:
        return self.size

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        runs = by_group(inputs, self.size, cursor, self.call.number, context, self._outputs)
        return Flow(row_runs=runs, form=inputs.form, schema=inputs.schema)

    def _outputs(self, group: RowRun, context: Context) -> Rows:
        mask = _mask(self.call, group, context)
        if context.origins is not None:
            context.origins.keep(group.keys[mask])
        return group.rows.keep(mask.tolist())

    @property
    def keeps_rows(self) -> bool:
        return True

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        return schema

    def count(self, inputs: int) -> int | None:
        return None

    def checking(self, on: bool) -> Stage:
        return FilterColumns(call=self.call, size=self.size, use="check") if on else self

    def for_survey(self) -> Stage:
        return FilterColumns(call=self.call, size=self.size, use="survey")

    def counted(self, inputs: CountedItems, cursor: Cursor, context: Context) -> CountedItems:
        columns = FilterColumns(call=self.call, size=self.size, use="count")
        kept = Kept(inputs, partial(columns.flow, cursor=cursor, context=context), self.name, context.name)
        checked = without_others(kept, self.name, context.name)
        return KeptOfGroups(inputs, kept, checked, self.size, delivered_of(cursor[-1]))

    def describe(self) -> dict[str, Any] | None:
        return self.call.describe(batched=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterColumns(FunctionStage):
    """The same filter where each row is judged alone, so that groups may be cut anywhere. Rows keep their keys."""

    size: int
    use: str
    """"survey": what it keeps is found out, and that rows are judged alone is tried. "count": a survey knows what it
    keeps. "check": a survey has chosen the rows, so that all of them must be kept."""

    @property
    def inputs_at_once(self) -> int:
        return self.size

    @property
    def needs_survey(self) -> bool:  # type: ignore[override]
        return self.use != "check"

    def checking(self, on: bool) -> Stage:
        return self if on else FilterBatches(call=self.call, size=self.size)

    def count(self, inputs: int) -> int | None:
        return inputs if self.use == "check" else None

    def item_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        return schema

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        groups = single_groups(inputs.as_row_runs(self.size), self.size)
        return Flow(row_runs=self._kept(groups, context), form=inputs.form, schema=inputs.schema)

    def _kept(self, groups: Iterator[RowRun], context: Context) -> Iterator[RowRun]:
        is_tried = self.use != "survey"
        for group in groups:
            mask = _mask(self.call, group, context)
            if self.use == "check" and not mask.all():
                raise rejected_row(self.name, context.name(int(group.keys[~mask][0])))
            if not is_tried and len(group) > 1:
                is_tried = True
                self._check_judged_alone(group, mask, context)
            if mask.all():
                yield group
            elif mask.any():
                yield RowRun(group.rows.keep(mask.tolist()), group.cursors[mask], group.keys[mask])

    def _check_judged_alone(self, group: RowRun, mask: npt.NDArray[np.bool_], context: Context) -> None:
        """Raise if a row is judged otherwise in a smaller group."""
        middle = len(group) // 2
        halves = [_mask(self.call, group.slice(*half), context) for half in ((0, middle), (middle, len(group)))]
        for number in np.flatnonzero(np.concatenate(halves) != mask).tolist()[:1]:
            raise ValueError(
                f"survey: filter(batched=True) judges {context.name(int(group.keys[number]))} otherwise if other rows "
                "are in its group, so what it keeps cannot be known. Let the function judge each row alone, or leave "
                "out survey()."
            )

    def counted(self, inputs: CountedItems, cursor: Cursor, context: Context) -> CountedItems:
        return Outputs(inputs, partial(self.flow, cursor=cursor, context=context))

    def describe(self) -> dict[str, Any] | None:
        return self.call.describe(batched=True)


def _mask(call: Call, group: RowRun, context: Context) -> npt.NDArray[np.bool_]:
    """Which rows of a group a function keeps."""
    result = call(group.rows.columns(), int(group.keys[0]), context, group.keys)
    mask = result.to_pylist() if isinstance(result, pa.Array | pa.ChunkedArray) else np.asarray(result).tolist()
    if not isinstance(mask, list) or len(mask) != len(group):
        raise ValueError(
            f"filter(batched=True) needs a function that returns one truth value for each of the {len(group)} "
            f"rows, but it returned {len(mask) if isinstance(mask, list) else mask!r}."
        )
    return np.array([bool(keep) for keep in mask], np.bool_)
