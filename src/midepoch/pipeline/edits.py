"""Leaving rows out of a run under way: the state before an edit, as a state after it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from midepoch._common.hashing import hash_keys
from midepoch.checkpoint.edits import Edits, add_edits, edits_of_part, join_edits
from midepoch.checkpoint.lanes import Cursor, LanePosition
from midepoch.checkpoint.row_digest import CHANGED, RowDigest, added
from midepoch.checkpoint.state import LanePositions, State
from midepoch.errors import CheckpointMismatchError
from midepoch.order.without import Without
from midepoch.pipeline.draws import PartPosition, join_positions
from midepoch.pipeline.lanes import cut_of
from midepoch.pipeline.masking import masked_edits
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.file_lanes import FileRowsLanes
from midepoch.sources.files import FileRows
from midepoch.sources.source import EpochCut


class Parts(Protocol):
    """What is known of a mixture."""

    @property
    def parts(self) -> Sequence[Pipeline]:
        """The pipelines."""

    def part_epoch(self, epoch: int, times_ended: int) -> int:
        """The epoch of a pass over a part."""

    def part_positions(self, cursor: Cursor) -> list[PartPosition]:
        """The position in each part that a cursor of the mixture holds."""


def with_edits(pipeline: Pipeline, state: State, edits: Edits) -> State:
    """A state of the pipeline before its last ``edits`` edits, as one of the edited pipeline.

    An epoch under way keeps its lanes, and rows are left out of them. A cursor moves back by the rows before it that
    are left out: these are delivered already. Where a window of packs is under way, its layout must stay. So the rest
    of the epoch keeps its windows as they are, and the rows are left out of the packs.
    """
    later = tuple(_edited_epoch(pipeline, one, edits) for one in state.later)
    return replace(_edited_epoch(pipeline, state, edits), later=later, history=())


def _edited_epoch(pipeline: Pipeline, state: State, edits: Edits) -> State:
    if state.lanes is None:
        return state
    reason = None
    if state.reader_progress is not None or state.earlier:
        reason = "it holds what one of several readers delivered: merge the states of all ranks with merge_states"
    elif not state.positions.in_step:
        reason = "some readers of a lane were ahead of others: resume without the edit, and edit at a later checkpoint"
    elif state.appended:
        reason = "files were appended to its epoch: edit in the next epoch"
    if reason is not None:
        raise CheckpointMismatchError(f"Rows cannot be left out of the run from this checkpoint on, because {reason}.")
    masked = masked_edits(pipeline, [position.cursor for _, position in state.positions.runs], edits, state.masked)
    cursors = EditedCursors(pipeline, cut_of(state), _without_masked(edits, masked))
    moved = [cursors.move(lane, position.cursor) for lane, position in enumerate(state.positions.expand())]
    digest = state.digest and RowDigest(unknown=CHANGED)
    if pipeline.uniform:
        digest = _edited_digest(state.digest, [lost for _, lost in moved])
    return replace(
        state,
        edits=add_edits(state.edits, edits),
        masked=add_edits(state.masked, masked),
        positions=LanePositions.pack((1, LanePosition(cursor)) for cursor, _ in moved),
        digest=digest,
    )


def _without_masked(edits: Edits, masked: Edits) -> Edits:
    """The edits that move cursors. The new edits of a source are all of one kind."""
    if not masked:
        return edits
    if isinstance(edits, int) or isinstance(masked, int):
        return 0
    return join_edits([_without_masked(*both) for both in zip(edits, masked, strict=True)])


class EditedCursors:
    """How the cursors of the lanes of an epoch move when the last edits of a pipeline leave rows out."""

    def __init__(self, pipeline: Pipeline, cut: EpochCut, edits: Edits) -> None:
        self._pipeline, self._cut, self._edits = pipeline, cut, edits
        self._width = len(pipeline.source.begin)
        self._before: FileRowsLanes | None = None
        self._steps: list[Without] = []
        self._parts: dict[tuple[int, int], EditedCursors] = {}
        if isinstance(rows := pipeline.source, FileRows) and isinstance(edits, int) and edits:
            self._before = replace(rows, steps=rows.steps[:-edits]).cut(cut)
            self._steps = [step for step in rows.steps[-edits:] if isinstance(step, Without)]

    def move(self, lane: int, cursor: Cursor) -> tuple[Cursor, int]:
        """The cursor after the edits, and the sum of the hashes of the rows before it that are left out."""
        if not self._edits:
            return cursor, 0
        if self._before is None:
            return self._of_parts(lane, cursor), 0
        order = self._before.order(lane)
        position, lost = min(cursor[0], order.size), 0
        for step in self._steps:
            gone = step.positions(order)
            before = gone[: np.searchsorted(gone, position)]
            lost += int(hash_keys(order.rows(before)).sum(dtype=np.uint64))
            position -= len(before)
            order = step.apply(order)
        return (position, *cursor[1:]), lost

    def _of_parts(self, lane: int, cursor: Cursor) -> Cursor:
        mixture: Any = self._pipeline.source
        moved = []
        for number, position in enumerate(mixture.part_positions(cursor[: self._width])):
            epoch = mixture.part_epoch(self._cut.epoch, position.times_ended)
            of_part, _ = self._part(mixture, number, epoch).move(lane, position.cursor)
            moved.append(position._replace(cursor=of_part))
        return (*join_positions(moved), *cursor[self._width :])

    def _part(self, mixture: Parts, number: int, epoch: int) -> "EditedCursors":
        if (number, epoch) not in self._parts:
            late, masked = edits_of_part(self._cut.edits, number), edits_of_part(self._cut.masked, number)
            cut = replace(self._cut, epoch=epoch, edits=late, masked=masked)
            edits = edits_of_part(self._edits, number)
            self._parts[number, epoch] = EditedCursors(mixture.parts[number], cut, edits)
        return self._parts[number, epoch]


def _edited_digest(digest: RowDigest | None, delivered: list[int]) -> RowDigest | None:
    """A digest without the rows that each lane had delivered, and that the epoch does not have any more."""
    if digest is None or digest.unknown is not None or not digest.sums:
        return digest
    return replace(digest, sums=added(digest.sums, tuple(-lost for lost in delivered)))
