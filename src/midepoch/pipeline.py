"""A pipeline, and its lanes in one epoch: all that decides which items there are, nothing about who reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from math import prod
from typing import Any

import pyarrow as pa

from midepoch.deal import Cursor, Standing, lane_cuts
from midepoch.errors import CheckpointMismatchError
from midepoch.fingerprint import data_difference, pipeline_difference
from midepoch.index import Index
from midepoch.order import Interval, Order, OrderStep, Shuffle, build_order, lanes_by_file
from midepoch.stages.batch import Batch
from midepoch.stages.blocks import Files
from midepoch.stages.flow import Context, Flow
from midepoch.stages.source import Lane, Pace
from midepoch.stages.stage import Stage


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The rows of an index in some order, and the stages that they pass through."""

    index: Index
    columns: tuple[str, ...] | None = None
    steps: tuple[OrderStep, ...] = ()
    stages: tuple[Stage, ...] = ()

    @cached_property
    def size(self) -> int:
        """How many rows an epoch has."""
        size = self.index.rows
        for step in self.steps:
            size = step.size(size)
        return size

    @cached_property
    def uniform(self) -> bool:
        """Whether every stage gives a known number of items, so that counts alone say where all lanes stand."""
        return all(stage.count(1) is not None for stage in self.stages)

    @cached_property
    def item_rows(self) -> int:
        """How many inputs of the first ``batch`` make an item of the last."""
        return prod(stage.size for stage in self.stages if isinstance(stage, Batch))

    @property
    def origin(self) -> Cursor:
        """The cursor at the beginning of a lane."""
        return (0,) * (1 + sum(stage.splits for stage in self.stages))

    @property
    def seed(self) -> int:
        """The seed for the users' functions: that of the last shuffle."""
        return next((step.seed for step in reversed(self.steps) if isinstance(step, Shuffle)), 0)

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return list(self.schema.names)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the rows that are read."""
        return self.index.schema(self.columns)

    def items(self, rows: int, item_rows: int | None = None) -> int:
        """How many items so many rows of a lane give in a uniform pipeline, maybe with another batch size."""
        count = max(0, rows)
        if item_rows not in (None, self.item_rows):
            return -(-count // item_rows)
        for stage in self.stages:
            counted = stage.count(count)
            assert counted is not None
            count = counted
        return count

    def describe(self) -> list[dict[str, Any]]:
        """What a state remembers of the pipeline."""
        told: list[dict[str, Any]] = [] if self.columns is None else [{"op": "read", "columns": list(self.columns)}]
        told += [step.describe() for step in self.steps]
        for number, stage in enumerate(self.stages):
            grouped_later = any(later.splits for later in self.stages[number + 1 :])
            if isinstance(stage, Batch) and grouped_later:  # then the cursors count these batches
                told.append({"op": "batch", "n": stage.size, "drop_last": stage.drop_last})
            elif (described := stage.describe()) is not None:
                told.append(described)
        return told

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What a state remembers of data and pipeline."""
        return {"data": self.index.fingerprint, "pipeline": self.describe()}

    def check_fingerprint(self, then: Any) -> None:
        """Raise, and say what differs, unless a state is of this data and this pipeline."""
        if not isinstance(then, Mapping) or not {"data", "pipeline"} <= set(then):
            raise CheckpointMismatchError("The state is damaged: it has no fingerprint. Load an earlier checkpoint.")
        try:
            told = data_difference(then["data"], self.index.facts, self.fingerprint["data"])
            other = pipeline_difference(then["pipeline"], self.fingerprint["pipeline"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointMismatchError(
                f"The state's fingerprint is damaged ({type(error).__name__}: {error}). Load an earlier checkpoint."
            ) from error
        if told is not None:
            raise CheckpointMismatchError(told)
        told = other
        if told is not None:
            raise CheckpointMismatchError(
                f"The pipeline is not the one of the checkpoint: {told}. "
                "Build it as it was, or start anew without the state."
            )

    def context(self, epoch: int) -> Context:
        """What the stages may know."""
        rows_until = next(
            (number for number, stage in enumerate(self.stages, start=1) if stage.splits or isinstance(stage, Batch)),
            len(self.stages) + 1,
        )
        return Context(seed=self.seed, epoch=epoch, rows_until=rows_until, locate=self.index.locate)


class Lanes:
    """The lanes of one epoch of a pipeline."""

    def __init__(self, pipeline: Pipeline, *, epoch: int, lanes: int, mode: str) -> None:
        self._pipeline, self._epoch, self._mode, self.count = pipeline, epoch, mode, lanes
        self._cuts = lane_cuts(pipeline.size, lanes)

    @cached_property
    def _by_file(self) -> Sequence[Order]:
        return lanes_by_file(self._pipeline.index.order(), self._pipeline.steps, self._epoch, self.count)

    @cached_property
    def _order(self) -> Order:
        return build_order(self._pipeline.index.order(), self._pipeline.steps, self._epoch)

    def order(self, lane: int) -> Order:
        """The rows of a lane."""
        if self._mode == "file":
            return self._by_file[lane]
        return Interval(self._order, self._cuts[lane], self._cuts[lane + 1])

    def size(self, lane: int) -> int:
        """How many rows a lane has."""
        return self._by_file[lane].size if self._mode == "file" else self._cuts[lane + 1] - self._cuts[lane]

    def open(self, files: Files, pace: Pace, lane: int, standing: Standing, skip: int, stride: int) -> Flow:
        """The items of a lane from where it stands: the one after ``skip`` others, then every ``stride``-th."""
        pipeline = self._pipeline
        source = Lane(files, self.order(lane), pace)
        at = standing.cursor[0]
        if pipeline.uniform and not standing.done:
            runs = source.runs(at, self.size(lane), rows=pipeline.item_rows, phase=skip, stride=stride)
            return self._flow(runs, standing.cursor)
        flow = self._flow(source.runs(at, self.size(lane)), standing.cursor)
        if not standing.done and (skip, stride) == (0, 1):
            return flow
        done = set(standing.done)
        steps = (step for number, step in enumerate(flow.steps()) if number not in done)
        return replace(flow, runs=None, single=islice(steps, skip, None, stride))

    def _flow(self, runs: Any, cursor: Cursor) -> Flow:
        """The stages, each opened at its part of the cursor."""
        flow = Flow(runs=runs)
        context = self._pipeline.context(self._epoch)
        width = 1
        for stage in self._pipeline.stages:
            width += stage.splits
            flow = stage.flow(flow, cursor[:width], context)
        return flow
