"""Leaving rows out of a run under way: the state before an edit, as a state after it."""

from dataclasses import replace

import numpy as np

from midepoch._common.hashing import hash_keys
from midepoch.checkpoint.lanes import LanePosition
from midepoch.checkpoint.row_digest import CHANGED, RowDigest, added
from midepoch.checkpoint.state import LanePositions, State
from midepoch.errors import CheckpointMismatchError
from midepoch.order.without import Without
from midepoch.pipeline.lanes import cut_of
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.files import FileRows


def with_edits(pipeline: Pipeline, state: State, edits: int) -> State:
    """A state of the pipeline before its last ``edits`` edits, as one of the edited pipeline.

    An epoch under way keeps its lanes, and rows are left out of them. A cursor moves back by the rows before it that
    are left out: these are delivered already.
    """
    rows = pipeline.source
    assert isinstance(rows, FileRows)
    later = tuple(_edited_epoch(rows, one, edits, uniform=pipeline.uniform) for one in state.later)
    return replace(_edited_epoch(rows, state, edits, uniform=pipeline.uniform), later=later, history=())


def _edited_epoch(rows: FileRows, state: State, edits: int, *, uniform: bool) -> State:
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
    old = replace(rows, steps=rows.steps[:-edits]).cut(cut_of(state))
    steps = [step for step in rows.steps[-edits:] if isinstance(step, Without)]
    positions, delivered = [], []
    for lane, position in enumerate(state.positions.expand()):
        order = old.order(lane)
        cursor = min(position.cursor[0], order.size)
        lost = 0
        for step in steps:
            gone = step.positions(order)
            before = gone[: np.searchsorted(gone, cursor)]
            lost += int(hash_keys(order.rows(before)).sum(dtype=np.uint64))
            cursor -= len(before)
            order = step.apply(order)
        delivered.append(lost)
        positions.append((1, LanePosition((cursor, *position.cursor[1:]))))
    digest = _edited_digest(state.digest, delivered) if uniform else state.digest and RowDigest(unknown=CHANGED)
    return replace(state, edits=state.edits + edits, positions=LanePositions.pack(positions), digest=digest)


def _edited_digest(digest: RowDigest | None, delivered: list[int]) -> RowDigest | None:
    """A digest without the rows that each lane had delivered, and that the epoch does not have any more."""
    if digest is None or digest.unknown is not None or not digest.sums:
        return digest
    return replace(digest, sums=added(digest.sums, tuple(-lost for lost in delivered)))
