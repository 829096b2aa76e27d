"""The states of several readers, merged into one complete state."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from midepoch._common.text import count
from midepoch.checkpoint.checksum import signed
from midepoch.checkpoint.consistency import check_scale
from midepoch.checkpoint.fingerprint import rows_of
from midepoch.checkpoint.lanes import LaneAssignment, LaneDelivery, join
from midepoch.checkpoint.migrations import shortened, upgrade
from midepoch.checkpoint.state import LanePositions, ReaderProgress, State
from midepoch.errors import CheckpointMismatchError


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the states that all ranks saved at the same step into one, from which any number of ranks can resume.

    The state of a uniform pipeline (only 1:1 stages and ``batch``) is complete on every rank, and merging only checks
    that the ranks agree. Filtering and packing pipelines need the states of all ranks, in any order.
    """
    dicts = [upgrade(values) for values in states]
    if not dicts:
        raise ValueError("merge_states got no states; pass one for each rank.")
    read = [State.from_dict(values) for values in dicts]
    check_scale(read[0], rows_of(dicts[0]["fingerprint"]["data"]))
    _check_all_have_begun(read)
    for values, state in zip(dicts, read, strict=True):
        _check_same_session(dicts[0], read[0], values, state)
    per_state = [state.reader_progress for state in read]
    if all(progress is None or progress.reader is None for progress in per_state):
        if any(progress != per_state[0] for progress in per_state):
            raise CheckpointMismatchError(
                "The states were taken after different numbers of items. Save all ranks at the same step; for the "
                "workers of a StatefulDataLoader use from_stateful_dataloader."
            )
        return signed(dicts[0])
    return _merged(read[0], _of_all_readers(per_state)).to_dict(dicts[0]["fingerprint"])


def _check_all_have_begun(states: Sequence[State]) -> None:
    """Raise if some states are of an epoch that was not begun, which has no lanes yet, and others are inside it."""
    not_begun = [number for number, state in enumerate(states) if state.lanes is None]
    if not_begun and len(not_begun) < len(states):
        raise CheckpointMismatchError(
            f"{count('state', len(not_begun))} of {len(states)} (the first is number {not_begun[0]}, from 0) had not "
            "begun its epoch when it was saved, and others had: a rank saved its state before its loop asked for the "
            "first item. Save all ranks at the same step."
        )


def _check_same_session(first_dict: Mapping[str, Any], first: State, values: Mapping[str, Any], state: State) -> None:
    """Refuse to merge states of different data, pipelines, epochs or starts."""
    if first_dict.get("fingerprint") != values.get("fingerprint"):
        raise CheckpointMismatchError(
            "The states are of different data or pipelines and cannot be merged. Merge the states that the ranks of "
            "one run saved."
        )
    for name in ("epoch", "lanes", "mode", "turn", "item_rows", "positions", "appended", "windows"):
        if getattr(first, name) != getattr(state, name):
            raise CheckpointMismatchError(
                f"The states cannot be merged: {name} is {shortened(getattr(first, name))} in the first and "
                f"{shortened(getattr(state, name))} in another. Merge states that all ranks saved at the same step, in "
                "the same epoch."
            )


def _of_all_readers(per_state: Sequence[ReaderProgress | None]) -> list[ReaderProgress]:
    """The progress of each reader, in their order. Raises if one is missing, or there are two of one reader."""
    known: dict[int | None, ReaderProgress] = {}
    for progress in per_state:
        if progress is not None and known.setdefault(progress.reader, progress) != progress:
            raise CheckpointMismatchError(
                f"There are two different states of reader {progress.reader}. Merge one state of each rank, all saved "
                "at the same step."
            )
    readers = next(progress.readers for progress in per_state if progress is not None)
    if any(progress is None or progress.readers != readers for progress in per_state):
        raise CheckpointMismatchError(
            "The states are of runs with different numbers of readers. Merge the states that the ranks of one run "
            "saved at the same step."
        )
    missing = [reader for reader in range(readers) if reader not in known]
    if missing:
        raise CheckpointMismatchError(
            f"The state of reader {missing[0]} of {readers} is missing ({len(missing)} missing in all). "
            "merge_states needs one state from every rank."
        )
    return [known[reader] for reader in range(readers)]


def _merged(start: State, per_reader: Sequence[ReaderProgress]) -> State:
    """The complete state after every reader delivered what its progress says."""
    lanes = len(start.positions)
    assignment = LaneAssignment(lanes=lanes, turn=start.turn, readers=len(per_reader))
    deliveries: list[list[LaneDelivery]] = [[] for _ in range(lanes)]
    for reader, progress in enumerate(per_reader):
        delivered = {lane: (end, cursor) for lane, end, cursor in progress.deliveries}
        for slot, lane in enumerate(assignment.rotation(reader)):
            deliveries[lane].append(LaneDelivery(assignment.phase(reader, slot), *delivered.get(lane, (0, ()))))
    return state_after(start, assignment, deliveries, [progress.turns_taken for progress in per_reader])


def state_after(
    start: State, assignment: LaneAssignment, deliveries: Sequence[Sequence[LaneDelivery]], turns_taken: Sequence[int]
) -> State:
    """The complete state, from the deliveries of each lane and the number of turns that each reader took."""
    positions = LanePositions.pack(
        (1, join(position, assignment.stride, deliveries[lane]))
        for lane, position in enumerate(start.positions.expand())
    )
    turn = min(assignment.turn + reader + assignment.readers * taken for reader, taken in enumerate(turns_taken))
    return replace(start, turn=turn, positions=positions, reader_progress=None)
