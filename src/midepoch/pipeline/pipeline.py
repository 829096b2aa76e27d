"""A pipeline and its lanes in one epoch: everything that decides which items there are, nothing about who reads."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import prod
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from midepoch._common.hashing import digest
from midepoch._common.lazy import cached_property
from midepoch._common.text import count
from midepoch.checkpoint.checksum import fingerprint_digest
from midepoch.checkpoint.consistency import check_scale
from midepoch.checkpoint.fingerprint import pipeline_difference, rows_of
from midepoch.checkpoint.lanes import Cursor, LanePosition
from midepoch.checkpoint.state import AppendedFiles, LanePositions, ReaderProgress, State, Windows
from midepoch.errors import CheckpointMismatchError
from midepoch.index.group_counts import GroupCounts, LaneCounts, counts_path
from midepoch.index.survey import Survey
from midepoch.sources.files import FileRows
from midepoch.sources.source import ALL_ROWS, AdoptedCheckpoint, ItemSpec, Mode, MoveCursor, RowStride, Source
from midepoch.stages.counted import CountedItems
from midepoch.stages.flow import Context, Flow
from midepoch.stages.kept import without_others
from midepoch.stages.pack.planned import PlannedWindows
from midepoch.stages.stage import Call, Stage

log = logging.getLogger("midepoch")

COUNTS_FORMAT = 1
"""Part of the key of shared counts; raise it when those of older releases must not be used."""
StageKind = TypeVar("StageKind", bound=Stage)


class LazySurvey(Protocol):
    """A survey that is made when it is first asked for."""

    @property
    def is_known(self) -> bool:
        """True if it was asked for."""

    def survey(self) -> Survey | None:
        """The survey; None if it cannot be made."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A source of items, and the stages that they pass through."""

    source: Source
    stages: tuple[Stage, ...] = ()
    survey: Survey | None = field(default=None, compare=False)
    """What is known of each row without reading it. It changes no item, and is no part of a checkpoint."""
    own_lengths: LazySurvey | None = field(default=None, compare=False)
    """The survey that ``pack`` makes by itself, unless the user has made one."""
    balanced: int | None = field(default=None, compare=False)
    """The number of items of a global step whose costs are shared evenly by ranks; None if they take turns."""

    @property
    def known_survey(self) -> Survey | None:
        """The survey of the user, else the one that ``pack`` makes by itself, which is made now if need be."""
        if self.survey is not None or self.own_lengths is None:
            return self.survey
        return self.own_lengths.survey()

    @cached_property
    def uniform(self) -> bool:
        """True if the positions of all lanes follow from the number of items delivered."""
        return self.source.uniform and all(stage.count(1) is not None for stage in self.stages)

    @cached_property
    def counted(self) -> bool:
        """True if the number of items of a lane from any cursor on is known without reading rows."""
        return self.why_not_counted() is None

    def why_not_counted(self) -> str | None:
        """Which stage keeps the items from being counted, and what to do; None if they are counted."""
        if self.uniform:
            return None
        reason = self.source.why_not_counted(self.survey)
        if reason is not None:
            return reason
        if (reason := self.why_filters_are_not_counted()) is not None:
            return reason
        random, grouping = None, None if self.source.has_rows else "mix"
        covered = self.survey.covered if self.survey is not None else 0
        for stage in self.stages:
            covered -= stage.checking(False).needs_survey
            if stage.needs_survey:
                if grouping is not None:
                    remedy = "on each of the datasets before mixing them" if grouping == "mix" else f"before {grouping}"
                    return (
                        f"{stage.name} comes after {grouping}, whose items have no row numbers by which a survey could "
                        f"know them: use {stage.name} {remedy}"
                    )
                if random is not None:
                    return (
                        f"{stage.name} comes after {random} with with_rng=True, which makes other rows in every epoch: "
                        f"put {stage.name} first"
                    )
                if covered < 0 and self.known_survey is self.survey:
                    return f"how many items {stage.name} yields is only known by reading the rows: call .survey() once"
            elif stage.count(1) is None:
                return stage.why_not_counted
            grouping = grouping or (None if stage.keeps_rows else stage.name)
            random = stage.name if stage.uses_rng else random
        return None

    def why_filters_are_not_counted(self) -> str | None:
        """Why a survey cannot count what the filters keep, and what to do; None if it can."""
        filters = [stage for stage in self.stages if stage.needs_survey and stage.keeps_rows]
        if not any(stage.many_outputs for stage in filters) or (len(filters) == 1 and self.source.uniform):
            return None
        return (
            "filter(batched=True) is not the only filter, and checkpoints count the rows that it keeps alone, while a "
            "survey knows what all filters keep together: use filter(fn), or make one function of all filters"
        )

    @cached_property
    def item_rows(self) -> int:
        """The number of inputs of the first ``batch`` that make one item of the last."""
        return prod(stage.group_size for stage in self.stages if not stage.many_outputs)

    @property
    def begin(self) -> Cursor:
        """The cursor at the start of a lane."""
        return self.source.begin + (0,) * sum(stage.many_outputs for stage in self.stages)

    def _flow_of_nothing(self) -> Flow:
        """A flow without items through all stages. It says what the items are like, and nothing is read."""
        form, batched = self.source.item_spec
        schema = self.source.schema
        flow = Flow(single_items=iter(()), form=form, batched=batched)
        if schema is not None:
            flow = Flow(row_runs=iter(()), form=form, batched=batched, schema=schema)
        for stage in self.stages:
            flow = stage.flow(flow, self.begin, self.context(0))
        return flow

    @cached_property
    def item_spec(self) -> ItemSpec:
        """The form of the items, and whether they are batches."""
        flow = self._flow_of_nothing()
        return flow.form, flow.batched

    @cached_property
    def schema(self) -> pa.Schema | None:
        """The items' Arrow schema where their values are those of the files, else None."""
        return self._flow_of_nothing().schema

    @cached_property
    def run_schema(self) -> pa.Schema | None:
        """The same where every row is kept and comes in a run, so that a mixture can interleave columns."""
        flow = self._flow_of_nothing()
        return flow.schema if flow.row_runs is not None and self.first_resizing is None else None

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """The user functions that the source and the stages call."""
        return [*self.source.functions, *(function for stage in self.stages for function in stage.functions)]

    @property
    def first_resizing(self) -> str | None:
        """The name of the first stage that does not make one output of each input."""
        return next((stage.name for stage in self.stages if not stage.one_to_one), None)

    @property
    def first_uncounted(self) -> str | None:
        """The name of the first stage whose number of outputs is known only by reading."""
        return next((stage.name for stage in self.stages if stage.count(stage.group_size) is None), None)

    @property
    def keeps_rows(self) -> bool:
        """True if the items are the source's rows with all their columns, in any form, and no function uses them."""
        if self.schema is None or self.first_resizing is not None or any(stage.functions for stage in self.stages):
            return False
        return bool(self.schema.equals(self.source.schema))

    def call(self, name: str, function: Callable[..., Any], *, with_rng: bool = False) -> Call:
        """A user function as the next stage of this pipeline calls it."""
        salt = 1 + sum(stage.describe() is not None for stage in self.stages)
        return Call(function=function, stage=name, number=len(self.stages) + 1, with_rng=with_rng, salt=salt)

    def find(self, kind: type[StageKind]) -> StageKind | None:
        """The first stage of a kind, for callers that added one themselves and need what it collects."""
        return next((stage for stage in self.stages if isinstance(stage, kind)), None)

    def items(self, rows: int, item_rows: int | None = None) -> int:
        """The number of items that ``rows`` rows of a lane make in a uniform pipeline.

        With another number of rows an item than the pipeline's own, as in a state taken with another batch size, the
        last item may have fewer.
        """
        items = max(0, rows)
        if item_rows not in (None, self.item_rows):
            return -(-items // item_rows)
        for stage in self.stages:
            outputs = stage.count(items)
            assert outputs is not None, "only uniform pipelines are counted"
            items = outputs
        return items

    def describe(self) -> list[dict[str, Any]]:
        """What a state remembers of the pipeline."""
        description = self.source.describe()
        for number, stage in enumerate(self.stages):
            grouped_later = any(later.many_outputs for later in self.stages[number + 1 :])
            described = stage.describe_as_input() if grouped_later else stage.describe()
            if described is not None:
                description.append(described)
        return description

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What a state remembers of data and pipeline."""
        return {"data": self.source.fingerprint, "pipeline": self.describe()}

    @cached_property
    def _fingerprint_digest(self) -> bytes:
        return fingerprint_digest(self.fingerprint)

    def state_dict(self, state: State) -> dict[str, Any]:
        """A state of this pipeline as plain values."""
        return state.to_dict(self.fingerprint, self._fingerprint_digest)

    def adopt(self, state: State, then: Any) -> State:
        """A state with the fingerprint ``then``, as a state of this pipeline. Raises if it is of another."""
        move, _, changes, edits = self.adoption(then)
        check_scale(state, rows_of(self.fingerprint["data"]))
        width = len(self.begin)
        if move is not None:
            if state.reader_progress is not None:
                raise CheckpointMismatchError(
                    "The checkpoint holds what one of several readers delivered. To change a mixture, first join the "
                    "states of all ranks with merge_states, or those of a StatefulDataLoader's workers with "
                    "from_stateful_dataloader. Then load the result into the mixture as it was, and save its state."
                )
            later = tuple(_with_moved_cursors(one, move) for one in state.later)
            state = replace(_with_moved_cursors(state, move), earlier=(), later=later)
        epochs = (*state.earlier, state, *state.later)
        cursors = [position.cursor for one in epochs for _, position in one.positions.runs]
        for progress in (one.reader_progress for one in epochs if one.reader_progress is not None):
            self._check_countable(progress)
            cursors += [cursor for _, _, cursor in progress.deliveries]
        if any(len(cursor) != width for cursor in cursors):
            raise CheckpointMismatchError(
                f"The state is damaged: its cursors do not have {count('number', width)}. Load an earlier checkpoint."
            )
        if edits:
            state = with_edits(self, state, edits)
            log.warning("The run was edited since the checkpoint: %s. All others come exactly once.", changes[-1])
        elif changes:
            log.warning("The mixture resumes with changes: %s.", "; ".join(changes))
        return state

    def _check_countable(self, progress: ReaderProgress) -> None:
        """Raise if a reader's progress is counted in a way that this pipeline cannot follow."""
        if progress.reader is None and not self.counted:
            raise CheckpointMismatchError(
                f"The state counts the items that a worker delivered, and now the pipeline is not counted: "
                f"{self.why_not_counted()}. If it was surveyed when the state was saved, survey it again."
            )
        if progress.reader is not None and self.uniform:
            raise CheckpointMismatchError(
                "The state is damaged: what its reader delivered is counted as in another kind of pipeline. Load an "
                "earlier checkpoint."
            )

    def adoption(self, then: Any) -> AdoptedCheckpoint:
        """Accept a checkpoint with the fingerprint ``then``, or raise CheckpointMismatchError and say what differs."""
        if not isinstance(then, Mapping) or not {"data", "pipeline"} <= set(then):
            raise CheckpointMismatchError("The state is damaged: it has no fingerprint. Load an earlier checkpoint.")
        try:
            move, pipeline, changes, edits = self.source.adopt(then)
            difference = pipeline_difference(pipeline, self.fingerprint["pipeline"])
        except CheckpointMismatchError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
            raise CheckpointMismatchError(
                f"The state's fingerprint is damaged ({type(error).__name__}: {error}). Load an earlier checkpoint."
            ) from error
        if difference is not None:
            raise CheckpointMismatchError(
                f"The pipeline is not the one of the checkpoint: {difference}. "
                "Build it as it was, or start over without the state."
            )
        return AdoptedCheckpoint(None if move is None else partial(self._moved, move), pipeline, changes, edits)

    def _moved(self, move: MoveCursor, cursor: Cursor) -> Cursor:
        """A cursor whose source was moved. Raises if a stage is inside a group of the source's items."""
        groups = sum(stage.many_outputs for stage in self.stages)
        of_source, of_groups = cursor[: len(cursor) - groups], cursor[len(cursor) - groups :]
        if any(of_groups):
            raise CheckpointMismatchError(
                "The checkpoint was taken inside a group that a stage after the mixture makes, such as a window of "
                "packs, and a changed mixture would make another group. Resume with the mixture as it was, or use "
                "that stage on each part before mixing them."
            )
        return (*move(of_source), *of_groups)

    def context(self, epoch: int) -> Context:
        """What the stages may know in an epoch."""
        rows_until = next(
            (number for number, stage in enumerate(self.stages, start=1) if stage.many_outputs or stage.group_size > 1),
            len(self.stages) + 1,
        )
        source = self.source
        return Context(
            seed=source.seed, epoch=epoch, rows_until=rows_until if source.has_rows else 0, locate=source.locate
        )


def _with_moved_cursors(state: State, move: MoveCursor) -> State:
    """A complete state of a mixture that has changed."""
    if not state.positions.in_step:
        raise CheckpointMismatchError(
            "In the checkpoint some readers of a lane were ahead of others, so the mixture cannot be changed "
            "there. Resume with the mixture as it was, and change it at a later checkpoint."
        )
    moved = ((lanes, LanePosition(move(position.cursor))) for lanes, position in state.positions.runs)
    return replace(state, positions=LanePositions.pack(moved), history=())


class Lanes:
    """The lanes of one epoch of a pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        epoch: int,
        lanes: int,
        mode: Mode,
        appended: AppendedFiles = (),
        windows: Windows = "blocks",
        edits: int = 0,
    ) -> None:
        self.pipeline, self._epoch, self.count = pipeline, epoch, lanes
        late: dict[str, Any] = {"edits": edits} if edits else {}
        self.cut_by = {"epoch": epoch, "lanes": lanes, "mode": mode, "appended": appended, "windows": windows, **late}
        """What lanes of the same pipeline have in common if they are the same."""
        self.source = pipeline.source.cut(
            epoch=epoch, lanes=lanes, mode=mode, appended=appended, windows=windows, **late
        )

    @classmethod
    def of(cls, pipeline: Pipeline, state: State) -> "Lanes":
        """The lanes of a state's epoch, which has begun."""
        return cls(
            pipeline,
            epoch=state.epoch,
            lanes=len(state.positions),
            mode=state.mode,
            appended=state.appended,
            windows=state.windows,
            edits=state.edits,
        )

    def size(self, lane: int) -> int:
        """The number of rows of a lane, for sources that know it."""
        return self.source.size(lane)

    def open(
        self, opened: Any, lane: int, position: LanePosition, skip: int, stride: int, *, deferred: bool = False
    ) -> Flow:
        """The items of a lane from its position on: without the first ``skip``, then every ``stride``-th."""
        if self.pipeline.uniform and not position.delivered_ahead:
            row_stride = RowStride(self.pipeline.item_rows, skip, stride)
            return self.flow(opened, lane, position.cursor, row_stride, deferred=deferred)
        flow = self.flow(opened, lane, position.cursor)
        if not position.delivered_ahead and (skip, stride) == (0, 1):
            return flow
        delivered_ahead = set(position.delivered_ahead)
        items = (single for number, single in enumerate(flow.as_single_items()) if number not in delivered_ahead)
        return flow.with_single_items(islice(items, skip, None, stride))

    def counted(self, lane: int, cursor: Cursor) -> CountedItems:
        """The items of a lane from a cursor on, counted without reading."""
        return self._counted(lane, cursor, self.pipeline.stages)

    def windows(self, lane: int, cursor: Cursor) -> PlannedWindows | None:
        """The windows of the stage that packs documents, from a cursor of that stage on; None if there is none."""
        for number, stage in enumerate(self.pipeline.stages, start=1):
            if stage.makes_windows:
                windows = self._counted(lane, cursor, self.pipeline.stages[:number])
                assert isinstance(windows, PlannedWindows)
                return windows
        return None

    def _counted(self, lane: int, cursor: Cursor, stages: Sequence[Stage]) -> CountedItems:
        width = len(self.pipeline.source.begin)
        items = self.source.counted(lane, cursor[:width], self.pipeline.known_survey)
        context = replace(self.pipeline.context(self._epoch), output_counts=partial(self.output_counts, lane))
        filters = [number for number, stage in enumerate(stages) if stage.needs_survey and stage.keeps_rows]
        if not filters:
            items = without_others(items, "read(filters=...)", context.name)
        for number, stage in enumerate(stages):
            width += stage.many_outputs
            items = stage.counted(items, cursor[:width], context)
            if filters and number == filters[-1]:
                items = without_others(items, stage.name, context.name)
        return items

    def output_counts(self, lane: int) -> LaneCounts:
        """How many packs the windows of a lane have, as far as any process knows."""
        return self._output_counts.of_lane(lane)

    @cached_property
    def _output_counts(self) -> GroupCounts:
        stages, survey = self.pipeline.stages, self.pipeline.known_survey
        last = next(number for number, stage in enumerate(stages, start=1) if stage.makes_windows)
        path = None
        if survey is not None and survey.folder is not None:
            described = self.pipeline.source.describe(), [stage.describe() for stage in stages[:last]]
            key = [COUNTS_FORMAT, survey.digest, self.pipeline.source.fingerprint, described, self.cut_by]
            path = counts_path(survey.folder, digest(json.dumps(key, sort_keys=True).encode(), size=16).hex())
        size = stages[last - 1].group_size
        return GroupCounts(path, lanes=self.count, lane_rows=self.source.size(0), size=size)

    def flow(
        self, opened: Any, lane: int, cursor: Cursor, stride: RowStride = ALL_ROWS, *, deferred: bool = False
    ) -> Flow:
        """The items of a lane from a cursor on. Each stage gets the cursor's numbers up to its own."""
        width = len(self.pipeline.source.begin)
        flow = replace(self.source.flow(opened, lane, cursor[:width], stride), deferred=deferred)
        context = self.pipeline.context(self._epoch)
        for stage in self.pipeline.stages:
            width += stage.many_outputs
            flow = stage.flow(flow, cursor[:width], context)
        return flow


def with_edits(pipeline: Pipeline, state: State, edits: int) -> State:
    """A state of the pipeline before its last ``edits`` edits, as one of the edited pipeline.

    An epoch under way keeps its lanes, and rows are left out of them. A cursor moves back by the rows before it that
    are left out: these are delivered already.
    """
    rows = pipeline.source
    assert isinstance(rows, FileRows)
    before = replace(pipeline, source=replace(rows, steps=rows.steps[: len(rows.steps) - edits]))
    later = tuple(_edited_epoch(pipeline, before, one, edits) for one in state.later)
    return replace(_edited_epoch(pipeline, before, state, edits), later=later, history=())


def _edited_epoch(pipeline: Pipeline, before: Pipeline, state: State, edits: int) -> State:
    if state.lanes is None:
        return state
    cursors = [position.cursor for _, position in state.positions.runs]
    reason = None
    if state.reader_progress is not None or state.earlier:
        reason = "it holds what one of several readers delivered: merge the states of all ranks with merge_states"
    elif not state.positions.in_step:
        reason = "some readers of a lane were ahead of others: resume without the edit, and edit at a later checkpoint"
    elif any(any(cursor[1:]) for cursor in cursors):
        reason = (
            "it was taken inside a group of rows, such as a window of packs, whose layout would change: resume without "
            "the edit, and edit at the next checkpoint that is between two windows, or in the next epoch"
        )
    elif state.appended:
        reason = "files were appended to its epoch: edit in the next epoch"
    if reason is not None:
        raise CheckpointMismatchError(f"Rows cannot be left out of the run from this checkpoint on, because {reason}.")
    old = Lanes.of(before, state).source
    steps = pipeline.source.steps[-edits:]  # type: ignore[attr-defined]
    positions = []
    for lane, position in enumerate(state.positions.expand()):
        order = old.order(lane)  # type: ignore[attr-defined]
        cursor = min(position.cursor[0], order.size)
        for step in steps:
            gone = step.positions(order)
            cursor -= int(np.searchsorted(gone, cursor))
            order = step.apply(order)
        positions.append((1, LanePosition((cursor, *position.cursor[1:]))))
    return replace(state, edits=state.edits + edits, positions=LanePositions.pack(positions))
