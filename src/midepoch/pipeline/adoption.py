"""Accepting a checkpoint: is it of this pipeline, and which of its positions must be moved?"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from midepoch._common.text import count
from midepoch.checkpoint.fingerprint import pipeline_difference, rows_of
from midepoch.checkpoint.lanes import Cursor, LanePosition
from midepoch.checkpoint.state import Edits, LanePositions, ReaderProgress, State, check_scale
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.edits import with_edits
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.source import AdoptedCheckpoint, MoveCursor
from midepoch.stages.stage import cursor_numbers

log = logging.getLogger("midepoch")


def adopt(pipeline: Pipeline, state: State, then: Any) -> State:
    """A state with the fingerprint ``then``, as a state of ``pipeline``. Raises if it is of another."""
    move, _, changes, edits, move_edits = adoption(pipeline, then)
    check_scale(state, rows_of(pipeline.fingerprint["data"]))
    width = len(pipeline.begin)
    if move is not None:
        if state.reader_progress is not None:
            raise CheckpointMismatchError(
                "The checkpoint holds what one of several readers delivered. To change a mixture, first join the "
                "states of all ranks with merge_states, or those of a StatefulDataLoader's workers with "
                "from_stateful_dataloader. Then load the result into the mixture as it was, and save its state."
            )
        later = tuple(_with_moved_cursors(one, move, move_edits) for one in state.later)
        state = replace(_with_moved_cursors(state, move, move_edits), earlier=(), later=later)
    epochs = (*state.earlier, state, *state.later)
    cursors = [position.cursor for one in epochs for _, position in one.positions.runs]
    for progress in (one.reader_progress for one in epochs if one.reader_progress is not None):
        _check_countable(pipeline, progress)
        cursors += [cursor for _, _, cursor in progress.deliveries]
    if any(len(cursor) != width for cursor in cursors):
        raise CheckpointMismatchError(
            f"The state is damaged: its cursors do not have {count('number', width)}. Load an earlier checkpoint."
        )
    if edits:
        state = with_edits(pipeline, state, edits)
        log.warning("The run was edited since the checkpoint: %s. All others come exactly once.", "; ".join(changes))
    elif changes:
        log.warning("The mixture resumes with changes: %s.", "; ".join(changes))
    return state


def _check_countable(pipeline: Pipeline, progress: ReaderProgress) -> None:
    """Raise if a reader's progress is counted in a way that the pipeline cannot follow."""
    if progress.reader is None and not pipeline.counted:
        raise CheckpointMismatchError(
            f"The state counts the items that a worker delivered, and now the pipeline is not counted: "
            f"{pipeline.why_not_counted()}. If it was surveyed when the state was saved, survey it again."
        )
    if progress.reader is not None and pipeline.uniform:
        raise CheckpointMismatchError(
            "The state is damaged: what its reader delivered is counted as in another kind of pipeline. Load an "
            "earlier checkpoint."
        )


def adoption(pipeline: Pipeline, then: Any) -> AdoptedCheckpoint:
    """Accept a checkpoint with the fingerprint ``then``, or raise CheckpointMismatchError and say what differs."""
    if not isinstance(then, Mapping) or not {"data", "pipeline"} <= set(then):
        raise CheckpointMismatchError("The state is damaged: it has no fingerprint. Load an earlier checkpoint.")
    try:
        move, described, changes, edits, move_edits = pipeline.source.adopt(then)
        difference = pipeline_difference(described, pipeline.fingerprint["pipeline"])
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
    move = None if move is None else partial(_moved, pipeline, move)
    return AdoptedCheckpoint(move, described, changes, edits, move_edits)


def _moved(pipeline: Pipeline, move: MoveCursor, cursor: Cursor) -> Cursor:
    """A cursor whose source was moved. Raises if a stage is inside a group of the source's items."""
    groups = sum(cursor_numbers(pipeline.stages))
    of_source, of_groups = cursor[: len(cursor) - groups], cursor[len(cursor) - groups :]
    if any(of_groups):
        raise CheckpointMismatchError(
            "The checkpoint was taken inside a group that a stage after the mixture makes, such as a window of "
            "packs, and a changed mixture would make another group. Resume with the mixture as it was, or use "
            "that stage on each part before mixing them."
        )
    return (*move(of_source), *of_groups)


def _with_moved_cursors(state: State, move: MoveCursor, move_edits: Callable[[Edits], Edits] | None) -> State:
    """A complete state of a mixture that has changed."""
    if not state.positions.in_step:
        raise CheckpointMismatchError(
            "In the checkpoint some readers of a lane were ahead of others, so the mixture cannot be changed "
            "there. Resume with the mixture as it was, and change it at a later checkpoint."
        )
    moved = ((lanes, LanePosition(move(position.cursor))) for lanes, position in state.positions.runs)
    if move_edits is not None:
        state = replace(state, edits=move_edits(state.edits))
    return replace(state, positions=LanePositions.pack(moved), history=())
