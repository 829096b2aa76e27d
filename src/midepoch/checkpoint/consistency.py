"""What must agree within a state, and how large it can be. Checked before anything is made of its numbers."""

from typing import TYPE_CHECKING

from midepoch._common.text import count
from midepoch.checkpoint.lanes import LaneAssignment
from midepoch.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from midepoch.checkpoint.state import ReaderProgress, State

MOST_STEPS = 1 << 22
"""The most turns that readers take before they repeat, and the most items delivered ahead, over all lanes."""
ALWAYS_POSSIBLE = 1 << 14
"""Up to this number of lanes and readers any number of rows is possible. More, and more than rows, are damage."""


def check_consistent(state: "State") -> None:
    """Raise ``ValueError`` if parts of a state contradict each other, or no computer could resume from it."""
    if state.lanes is None:
        if state.turn or state.positions.runs or state.reader_progress is not None or state.appended or state.edits:
            raise ValueError("it has no lanes, but says that something of them was delivered")
        return
    runs = state.positions.runs
    if len(state.positions) != state.lanes:
        raise ValueError(f"{count('cursor', len(state.positions))} for {count('lane', state.lanes)}")
    if len({len(position.cursor) for _, position in runs}) > 1:
        raise ValueError("its cursors have different lengths")
    if sum(lanes * len(position.delivered_ahead) for lanes, position in runs) > MOST_STEPS:
        raise ValueError(f"more than {MOST_STEPS:,} items were delivered ahead of others")
    first = runs[0][1].cursor
    if state.turn == 0 and any(first):
        raise ValueError(f"no turn was taken, but the first lane is at {list(first)}")
    if state.appended and state.mode != "example":
        raise ValueError("files were appended to an epoch that is sharded by file")
    if state.reader_progress is not None:
        _check_progress(
            LaneAssignment(lanes=state.lanes, turn=state.turn, readers=state.reader_progress.readers),
            state.reader_progress,
        )


def check_neighbours(state: "State") -> None:
    """Raise ``ValueError`` unless the other epochs of a state are the ones before and after it, by the same reader."""
    epochs = [one.epoch for one in (*state.earlier, state, *state.later)]
    if epochs != list(range(state.epoch - len(state.earlier), state.epoch + len(state.later) + 1)):
        raise ValueError(f"its epochs are {epochs}")
    parts = [one.reader_progress for one in state.earlier]
    if state.earlier and state.reader_progress is not None:
        parts.append(state.reader_progress)
    readers = {None if part is None or part.reader is None else (part.reader, part.readers) for part in parts}
    if len(readers) > 1 or None in readers:
        raise ValueError("it does not say for one reader what was delivered of the epochs before")
    if any(one.lanes is None or one.reader_progress is not None for one in state.later):
        raise ValueError("it does not say for all readers what was delivered of the epochs after")


def _check_progress(assignment: LaneAssignment, progress: "ReaderProgress") -> None:
    """Raise ``ValueError`` unless a reader can have delivered what its progress says."""
    if assignment.readers * assignment.period > MOST_STEPS:
        raise ValueError(f"{count('reader', assignment.readers)} of {count('lane', assignment.lanes)}")
    if progress.reader is None:
        if len(progress.items) not in (1, progress.workers) or assignment.readers % progress.workers:
            raise ValueError(
                f"items of {count('worker', len(progress.items))}, of {count('reader', assignment.readers)} in ranks "
                f"of {progress.workers}"
            )
        return
    if progress.reader >= assignment.readers:
        raise ValueError(f"reader {progress.reader} of {assignment.readers}")
    slots = {lane: slot for slot, lane in enumerate(assignment.rotation(progress.reader))}
    for lane, end, _ in progress.deliveries:
        slot = slots.pop(lane, None)
        if slot is None:
            raise ValueError(f"reader {progress.reader} of {assignment.readers} delivered of lane {lane}, twice or not")
        before, off = divmod(end - 1 - assignment.phase(progress.reader, slot), assignment.stride)
        if off or not 0 <= before < assignment.turns_at(slot, progress.turns_taken):
            raise ValueError(
                f"reader {progress.reader} of {assignment.readers} delivered up to item {end} of lane {lane} in "
                f"{count('turn', progress.turns_taken)}"
            )


def check_scale(state: "State", rows: int) -> None:
    """Raise if a state has far more lanes or readers than its data has rows: they would only take memory and time."""
    epochs = (*state.earlier, state, *state.later)
    lanes = max(one.lanes or 1 for one in epochs)
    readers = max(1 if one.reader_progress is None else one.reader_progress.readers for one in epochs)
    for noun, number in (("lane", lanes), ("reader", readers)):
        if number > max(rows, ALWAYS_POSSIBLE):
            raise CheckpointMismatchError(
                f"The state is damaged: it has {count(noun, number)} for {count('row', rows)}. Load an earlier "
                "checkpoint."
            )
