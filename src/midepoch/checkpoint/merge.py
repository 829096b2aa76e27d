"""Joining the states of several readers into one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from midepoch.checkpoint.lanes import LaneAssignment, LaneDelivery, join
from midepoch.checkpoint.state import LanePositions, ReaderProgress, State, _short
from midepoch.errors import CheckpointMismatchError


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the states that the ranks saved at one step into a single one, from which any ranks can go on.

    A uniform pipeline's state (only 1:1 stages and ``batch``) is complete on every rank, and merging is
    just a check. Filtering and packing pipelines need the states of all ranks, in any order.
    """
    dicts = list(states)
    if not dicts:
        raise ValueError("merge_states got no states; pass one for each rank.")
    read = [State.from_dict(values) for values in dicts]
    for values, state in zip(dicts, read, strict=True):
        _check_same_session(dicts[0], read[0], values, state)
    progresses = [state.reader_progress for state in read]
    if all(progress is None or progress.reader is None for progress in progresses):
        if any(progress != progresses[0] for progress in progresses):
            raise CheckpointMismatchError(
                "The states were taken after different numbers of items. Save all ranks at the same step; for the "
                "workers of a StatefulDataLoader use from_stateful_dataloader."
            )
        return dict(dicts[0])
    return _joined(read[0], _all_readers(progresses)).to_dict(dicts[0]["fingerprint"])


def _check_same_session(first_dict: Mapping[str, Any], first: State, values: Mapping[str, Any], state: State) -> None:
    """Refuse to merge states of different data, epochs or starts."""
    then, now = replace(first, reader_progress=None), replace(state, reader_progress=None)
    if first_dict.get("fingerprint") != values.get("fingerprint"):
        raise CheckpointMismatchError("The states are of different data or pipelines and cannot be merged.")
    for name in ("epoch", "lanes", "mode", "turn", "item_rows", "positions", "appended"):
        if getattr(then, name) != getattr(now, name):
            raise CheckpointMismatchError(
                f"The states cannot be merged: {name} is {_short(getattr(then, name))} in the first and "
                f"{_short(getattr(now, name))} in another. Merge states that all ranks saved at the same step, in the "
                "same epoch."
            )


def _all_readers(progresses: Sequence[ReaderProgress | None]) -> list[ReaderProgress]:
    """The parts in the order of their readers, once it is sure that none is missing."""
    known: dict[int | None, ReaderProgress] = {}
    for progress in progresses:
        if progress is not None and known.setdefault(progress.reader, progress) != progress:
            raise CheckpointMismatchError(
                f"There are two different states of reader {progress.reader}. Merge one state of each rank, all saved "
                "at the same step."
            )
    readers = next(progress.readers for progress in progresses if progress is not None)
    if any(progress is None or progress.readers != readers for progress in progresses):
        raise CheckpointMismatchError("The states are of runs with different numbers of readers.")
    missing = [reader for reader in range(readers) if reader not in known]
    if missing:
        raise CheckpointMismatchError(
            f"The state of reader {missing[0]} of {readers} is missing ({len(missing)} missing in all). "
            "merge_states needs one state from every rank."
        )
    return [known[reader] for reader in range(readers)]


def _joined(start: State, progresses: Sequence[ReaderProgress]) -> State:
    """The complete state after every reader delivered its part."""
    assert start.lanes is not None
    assignment = LaneAssignment(lanes=start.lanes, turn=start.turn, readers=len(progresses))
    deliveries: list[list[LaneDelivery]] = [[] for _ in range(start.lanes)]
    for reader, progress in enumerate(progresses):
        delivered = {lane: (end, cursor) for lane, end, cursor in progress.deliveries}
        for slot, lane in enumerate(assignment.rotation(reader)):
            deliveries[lane].append(LaneDelivery(assignment.phase(reader, slot), *delivered.get(lane, (0, ()))))
    return joined_at(start, assignment, deliveries, [progress.turns for progress in progresses])


def joined_at(
    start: State, assignment: LaneAssignment, deliveries: Sequence[Sequence[LaneDelivery]], turns: Sequence[int]
) -> State:
    """The complete state, given each lane's shares and how many turns each reader took."""
    positions = LanePositions.pack(
        (1, join(position, assignment.stride, deliveries[lane]))
        for lane, position in enumerate(start.positions.expand())
    )
    turn = min(assignment.turn + reader + assignment.readers * taken for reader, taken in enumerate(turns))
    return replace(start, turn=turn, positions=positions, reader_progress=None)
