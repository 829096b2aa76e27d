"""Leaving rows out of a run under way: the state before an edit, as a state after it.

From the next epoch on an edit is a step of the order. The epoch under way keeps its order, lanes and cursors: the rows
are passed over when they are due. Packs keep their layout, and the rows' places in them stay empty.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from midepoch._common.hashing import hash_keys
from midepoch.checkpoint.lanes import Cursor
from midepoch.checkpoint.row_digest import CHANGED, RowDigest, added
from midepoch.checkpoint.state import Edits, State, add_edits, edits_of_part
from midepoch.errors import CheckpointMismatchError
from midepoch.order.without import Without
from midepoch.pipeline.lanes import cut_of
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.files import FileRows


def with_edits(pipeline: Pipeline, state: State, edits: Edits) -> State:
    """A state of the pipeline before its last ``edits`` edits, as one of the edited pipeline."""
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
    _check_no_group(pipeline, [position.cursor for _, position in state.positions.runs], edits)
    digest = state.digest and RowDigest(unknown=CHANGED)
    if pipeline.uniform and state.digest is not None and state.digest.unknown is None and state.digest.sums:
        digest = replace(state.digest, sums=added(state.digest.sums, _lost(pipeline, state, edits)))
    return replace(state, edits=add_edits(state.edits, edits), digest=digest)


def _check_no_group(pipeline: Pipeline, cursors: Sequence[Cursor], edits: Edits) -> None:
    """Raise if a cursor is inside a group of rows that would be another one without the rows."""
    width = len(pipeline.source.begin)
    if edits and any(any(cursor[width:]) for cursor in cursors) and not pipeline.masks(edits):
        raise CheckpointMismatchError(
            "Rows cannot be left out of the run from this checkpoint on, because it was taken inside a group of rows "
            "that map(batched=True) makes, which would change: resume without the edit, and edit at the next "
            "checkpoint that is between two groups, or in the next epoch."
        )
    mixture: Any = pipeline.source
    for number, part in enumerate(pipeline.parts):
        of_part = [mixture.part_positions(cursor[:width])[number].cursor for cursor in cursors]
        _check_no_group(part, of_part, edits_of_part(edits, number))


def _lost(pipeline: Pipeline, state: State, edits: Edits) -> tuple[int, ...]:
    """For each lane of a uniform pipeline, what its digest loses: the rows that were delivered and are left out now."""
    source = pipeline.source
    assert isinstance(source, FileRows)
    assert isinstance(edits, int)
    lanes = replace(source, steps=source.steps[:-edits]).cut(cut_of(state))
    rows = [step.rows for step in source.steps[-edits:] if isinstance(step, Without)]
    lost = []
    for lane, position in enumerate(state.positions.expand()):
        order = lanes.order(lane)
        gone = order.positions(np.unique(np.concatenate(rows)))
        delivered = gone[gone < position.cursor[0]]
        lost.append(-int(hash_keys(order.rows(delivered)).sum(dtype=np.uint64)))
    return tuple(lost)
