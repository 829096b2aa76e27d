"""Where a reader goes on from a state that some readers, maybe others, have reached."""

from dataclasses import replace
from typing import Literal

from midepoch.checkpoint.lanes import LanePosition
from midepoch.checkpoint.state import LanePositions, ReaderProgress, State
from midepoch.delivery.progress import Progress
from midepoch.delivery.session import Session
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.pipeline import Lanes, Pipeline


def begin(
    pipeline: Pipeline,
    state: State,
    *,
    reader: int,
    readers: int,
    workers: int,
    lanes: int | None,
    mode: Literal["file", "example"],
) -> Progress:
    """Where a reader goes on from a state that some readers, maybe others, have reached."""
    delivered = state.reader_progress
    if state.lanes is None:
        return Progress(
            Session(pipeline, _dealt(pipeline, state, lanes or readers, mode), readers), reader, workers=workers
        )
    whole = replace(state, reader_progress=None)
    if delivered is None:
        return Progress(Session(pipeline, _regrouped(pipeline, whole), readers), reader, workers=workers)
    if delivered.reader is None and len(delivered.items) == delivered.workers:
        reached = Session(pipeline, whole, delivered.readers).after_each(delivered.items)
        return Progress(Session(pipeline, _regrouped(pipeline, reached), readers), reader, workers=workers)
    _check_reader_progress(delivered, reader=reader, readers=readers, workers=workers)
    if state.item_rows != pipeline.item_rows and (
        delivered.reader is None or Session(pipeline, whole, readers).assignment.stride > 1
    ):
        raise _other_batches(state.item_rows, pipeline.item_rows)
    return Progress(Session(pipeline, whole, readers), reader, workers=workers, delivered=delivered)


def _check_reader_progress(delivered: ReaderProgress, *, reader: int, readers: int, workers: int) -> None:
    """Raise unless a partial state is this reader's own."""
    if delivered.readers != readers or (delivered.reader is None and delivered.workers != workers):
        raise CheckpointMismatchError(
            f"The state holds what one of {delivered.readers} readers delivered; now there are {readers}. "
            "To go on with another number of ranks or workers, join the states of all ranks with merge_states, "
            "or those of a StatefulDataLoader's workers with from_stateful_dataloader, and load the result."
        )
    if delivered.reader is not None and delivered.reader != reader:
        raise CheckpointMismatchError(
            f"The state is that of reader {delivered.reader} of {readers} and was given to reader {reader}. A "
            "filtering or packing pipeline's state holds its own rank's part only: give each rank its own, or all the "
            "merged one."
        )


def _dealt(pipeline: Pipeline, state: State, lanes: int, mode: Literal["file", "example"]) -> State:
    """The beginning of an epoch, with its lanes dealt."""
    positions = LanePositions(((lanes, LanePosition(pipeline.begin)),))
    return replace(state, lanes=lanes, mode=mode, turn=0, item_rows=pipeline.item_rows, positions=positions)


def _regrouped(pipeline: Pipeline, state: State) -> State:
    """A complete state, gone on from with the batch size of now."""
    if state.item_rows != pipeline.item_rows and not state.positions.in_step:
        raise _other_batches(state.item_rows, pipeline.item_rows)
    if state.item_rows == pipeline.item_rows:
        return state
    if not pipeline.uniform:
        return replace(state, item_rows=pipeline.item_rows)
    lanes = Lanes(pipeline, epoch=state.epoch, lanes=len(state.positions), mode=state.mode, appended=state.appended)
    within = [
        (1, LanePosition((min(position.cursor[0], lanes.size(lane)), *position.cursor[1:])))
        for lane, position in enumerate(state.positions.expand())
    ]
    return replace(state, item_rows=pipeline.item_rows, positions=LanePositions.pack(within))


def _other_batches(then: int, now: int) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"The state was taken at the end of an epoch, or by one of several readers, with {then} rows an item, and "
        f"counts whole items; with {now} rows an item it cannot be gone on from. Resume with the old batch size until "
        "the next epoch or a merged checkpoint, then change it."
    )
