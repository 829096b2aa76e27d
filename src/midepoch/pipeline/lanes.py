"""The lanes of a pipeline in one epoch: those of its source, and the stages that their items pass through."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from midepoch._common.checks import cached_property
from midepoch._common.hashing import digest
from midepoch.checkpoint.lanes import Cursor, LanePosition
from midepoch.checkpoint.state import State
from midepoch.counting.window_counts import LaneCounts, WindowCounts
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.source import EpochCut
from midepoch.stages.counted import CountedItems, Outputs
from midepoch.stages.flow import Flow, SingleItem
from midepoch.stages.kept import without_others
from midepoch.stages.pack.windows import PlannedWindows
from midepoch.stages.stacked import StackedRun
from midepoch.stages.stage import Stage, cursor_numbers

COUNTS_FORMAT = 1
"""Part of the key of shared counts; raise it when those of older releases must not be used."""


def cut_of(state: State) -> EpochCut:
    """How the epoch of a state, which has begun, is cut."""
    return EpochCut(
        epoch=state.epoch,
        lanes=len(state.positions),
        mode=state.mode,
        appended=state.appended,
        edits=state.edits,
    )


@dataclass(slots=True)
class PackCounts:
    """How many packs were made, and how many tokens they have, without padding."""

    packs: int = 0
    tokens: int = 0

    def count(self, flow: Flow) -> Flow:
        """The same packs, counted."""
        if flow.stacked_runs is not None:
            return replace(flow, stacked_runs=self._counted_runs(flow.stacked_runs))
        return flow.with_single_items(self._counted(flow.as_single_items()))

    def _counted_runs(self, runs: Iterator[StackedRun]) -> Iterator[StackedRun]:
        for run in runs:
            self.packs += len(run)
            self.tokens += sum(int(ends[-1]) for ends in run.ragged["cu_seqlens"])
            yield run

    def _counted(self, packs: Iterator[SingleItem]) -> Iterator[SingleItem]:
        for single in packs:
            self.packs += 1
            self.tokens += int(single[0]["cu_seqlens"][-1])
            yield single


class PipelineLanes:
    """The lanes of one epoch of a pipeline."""

    def __init__(self, pipeline: Pipeline, cut: EpochCut) -> None:
        self.pipeline, self.cut = pipeline, replace(cut, masks=bool(cut.edits) and (cut.masks or pipeline.keeps_layout))
        self.deferred = False
        """True if items of a uniform pipeline go to another process: rows that no function needs are ``RowItems``."""
        self.packs = PackCounts()
        self.left_out: dict[int, set[int]] = {}
        """For each lane that was opened, the keys of the masked rows that were read, if there are any."""
        self.source = pipeline.source.cut(self.cut, lambda: pipeline.known_survey)

    @classmethod
    def of(cls, pipeline: Pipeline, state: State) -> "PipelineLanes":
        """The lanes of a state's epoch, which has begun."""
        return cls(pipeline, cut_of(state))

    def __reduce__(self) -> tuple[Any, ...]:
        return PipelineLanes, (self.pipeline, self.cut)

    def size(self, lane: int) -> int:
        return self.source.size(lane)

    def reaches(self, lane: int, cursor: Cursor, margin: int) -> bool:
        return self.source.reaches(lane, cursor[: len(self.pipeline.source.begin)], margin)

    def open(self, opened: Any, lane: int, position: LanePosition, skip: int, stride: int) -> Flow:
        """The items of a lane from its position on: without the first ``skip``, then every ``stride``-th."""
        flow = self.flow(opened, lane, position.cursor)
        if not position.delivered_ahead and (skip, stride) == (0, 1):
            return flow
        delivered_ahead = set(position.delivered_ahead)
        items = flow.as_single_items()
        items = (single for number, single in enumerate(items) if number not in delivered_ahead)
        return flow.with_single_items(islice(items, skip, None, stride))

    def counted(self, lane: int, cursor: Cursor) -> CountedItems:
        return self._counted(lane, cursor, self.pipeline.stages, counts_packs=True)

    def units(self, lane: int, cursor: Cursor) -> CountedItems:
        """The outputs of the last stage that changes the number of items, from a cursor on."""
        return self._counted(lane, cursor, self.pipeline.stages[: self.pipeline.unit_stages])

    def windows(self, lane: int, cursor: Cursor) -> PlannedWindows | None:
        """The windows of the stage that packs documents, from a cursor of that stage on; None if there is none."""
        for number, stage in enumerate(self.pipeline.stages, start=1):
            if stage.makes_windows:
                windows = self._counted(lane, cursor, self.pipeline.stages[:number])
                assert isinstance(windows, PlannedWindows)
                return windows
        return None

    def _counted(
        self,
        lane: int,
        cursor: Cursor,
        stages: Sequence[Stage],
        *,
        counts_packs: bool = False,
    ) -> CountedItems:
        width = len(self.pipeline.source.begin)
        items = self.source.counted(lane, cursor[:width])
        if self.pipeline.uniform:
            items = Outputs(items, self._with_deferral)
        context = replace(self.pipeline.context(self.cut.epoch), output_counts=partial(self.output_counts, lane))
        filters = [number for number, stage in enumerate(stages) if stage.needs_survey and stage.keeps_rows]
        if not filters:
            items = without_others(items, "read(filters=...)", context.name)
        for number, (stage, own_numbers) in enumerate(zip(stages, cursor_numbers(stages), strict=True)):
            width += own_numbers
            items = stage.counted(items, cursor[:width], context)
            if stage.length_column is not None and counts_packs:
                items = Outputs(items, self.packs.count)
            if filters and number == filters[-1]:
                items = without_others(items, stage.name, context.name)
        return items

    def output_counts(self, lane: int) -> LaneCounts:
        """How many packs the windows of a lane have, as far as any process knows."""
        return LaneCounts(self._output_counts, lane)

    @cached_property
    def _output_counts(self) -> WindowCounts:
        stages, survey = self.pipeline.stages, self.pipeline.known_survey
        last = next(number for number, stage in enumerate(stages, start=1) if stage.makes_windows)
        folder, key = None, ""
        if survey is not None and survey.folder is not None:
            described = self.pipeline.source.describe(), [stage.describe() for stage in stages[:last]]
            parts = [COUNTS_FORMAT, survey.digest, self.pipeline.source.fingerprint, described, asdict(self.cut)]
            folder, key = survey.folder, digest(json.dumps(parts, sort_keys=True).encode(), size=16).hex()
        size = stages[last - 1].group_size
        return WindowCounts(folder, key, lanes=self.cut.lanes, lane_rows=self.source.size(0), size=size)

    def _with_deferral(self, flow: Flow) -> Flow:
        return replace(flow, deferred=True) if self.deferred else flow

    def flow(self, opened: Any, lane: int, cursor: Cursor) -> Flow:
        """The items of a lane from a cursor on. Each stage gets the cursor's numbers up to its own."""
        width = len(self.pipeline.source.begin)
        context = self.pipeline.context(self.cut.epoch)
        if self.cut.masks:
            left_out = self.left_out.setdefault(lane, set())  # one for all flows of the lane
            self.source.note_masked(lane, left_out)
            context = replace(context, left_out=left_out)
        flow, stages = self.source.flow(opened, lane, cursor[:width]), self.pipeline.stages
        passes = flow.passes
        for stage, own_numbers in zip(stages, cursor_numbers(stages), strict=True):
            width += own_numbers
            flow = replace(flow, passes=passes, skips=own_numbers > 1)
            flow = stage.flow(flow, cursor[:width], context)
            if stage.length_column is not None:
                flow = self.packs.count(flow)
        return flow
