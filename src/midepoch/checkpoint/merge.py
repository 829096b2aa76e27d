"""The states of several readers, merged into one complete state."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from midepoch._common.checks import count, shortened
from midepoch.checkpoint.digest import merge_digests
from midepoch.checkpoint.fingerprint import rows_of
from midepoch.checkpoint.history import sessions_of
from midepoch.checkpoint.lanes import LaneDelivery, join
from midepoch.checkpoint.state import (
    MOST_APART,
    LanePositions,
    ReaderProgress,
    State,
    check_scale,
    checked_state,
    signed,
)
from midepoch.errors import CheckpointMismatchError


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the states that all ranks saved at the same step into one, from which any number of ranks can resume.

        state = midepoch.merge_states([loader.state_dict() for loader in loaders])  # those of all ranks

    ``states`` are what ``state_dict()`` returned on each rank. The state of a counted pipeline is complete on every
    rank, and merging only checks that the ranks agree. A rank that had nothing left may have stopped before the others.
    Filtering and packing pipelines need the states of all ranks, in any order. Such ranks may be at different points:
    some may have delivered nothing, others may have finished the epoch, or be up to four epochs ahead. The merged state
    is in the first epoch that a rank has not finished, and holds what was delivered of the next ones too.
    """
    dicts = [checked_state(values) for values in states]
    if not dicts:
        raise ValueError("merge_states got no states; pass one for each rank.")
    read = [State.from_dict(values) for values in dicts]
    for values, state in zip(dicts, read, strict=True):
        check_scale(state, rows_of(values["fingerprint"]["data"]))
        if values["fingerprint"] != dicts[0]["fingerprint"]:
            raise CheckpointMismatchError(
                "The states are of different data or pipelines and cannot be merged. Merge the states that the ranks "
                "of one run saved."
            )
    merged = _merged(read)
    if merged == replace(read[0], earlier=()):  # then the keys that others added to the first state hold for all
        digest = None if merged.digest is None else merged.digest.write()
        return signed({key: value for key, value in dicts[0].items() if key != "earlier"} | {"digest": digest})
    return merged.to_dict(dicts[0]["fingerprint"])


def _merged(states: Sequence[State]) -> State:
    """The complete state of the first epoch that a rank has not finished, with those of the next epochs."""
    epoch = min(state.epoch for state in states)
    everyone, states = states, _without_finished(states, epoch)
    in_epoch = [_in_epoch(states, number, epoch) for number in range(len(states))]
    finished = [state for state in everyone if state.epoch == epoch and not any(state is one for one in states)]
    digest = merge_digests([state.digest for state in (*in_epoch, *finished)])
    merged = replace(_merged_epoch(in_epoch, states), digest=digest)
    following = [state if state.epoch > epoch else state.following() for state in states]
    if any(state.lanes is not None or state.epoch > epoch + 1 for state in following):
        later = _merged(following)
        merged = replace(merged, later=(replace(later, later=()), *later.later))
    return merged


def _without_finished(states: Sequence[State], epoch: int) -> Sequence[State]:
    """The states without those of ranks that had nothing left of an epoch, where others say what all delivered.

    Each state that is left out must be that of another rank that had finished. Otherwise some rank was behind, and all
    states stay, which cannot be merged.
    """
    in_epoch = [state for state in states if state.epoch == epoch]
    if not all(map(_is_complete, in_epoch)):
        return states
    furthest = max(in_epoch, key=lambda state: state.turn)
    behind = sorted((state for state in in_epoch if state.turn < furthest.turn), key=lambda state: state.turn)
    ahead = [state for state in states if state.epoch > epoch and state == furthest.following()]
    if any(number > _finished_at(state, furthest) for number, state in enumerate(behind, start=1)):
        return states
    if ahead and len(behind) + len(ahead) > _finished_before(furthest):
        return states
    return [state for state in states if not any(state is one for one in (*behind, *ahead))]


def _is_complete(state: State) -> bool:
    return state.lanes is not None and state.reader_progress is None and not state.earlier


def _finished_at(state: State, furthest: State) -> int:
    """How many ranks had delivered all of their items at a state, by a later one of the same session.

    A complete state says what all ranks have delivered after as many steps. So a rank had finished if none of its lanes
    moved since; where ranks share lanes, as many had finished as got no item since.
    """
    same_session = replace(state, turn=0, positions=furthest.positions) == replace(furthest, turn=0)
    if not same_session or not furthest.history:
        return 0
    ranks = furthest.history[-1].ranks
    pairs = [*zip(state.positions.expand(), furthest.positions.expand(), strict=True)]
    if furthest.mode == "file" and len(pairs) % ranks == 0:
        return sum(all(one == last for one, last in pairs[rank::ranks]) for rank in range(ranks))
    if any(len(one.cursor) > 1 for one, _ in pairs):
        return ranks - (furthest.turn - state.turn)
    return ranks - sum(-(-(last.cursor[0] - one.cursor[0]) // state.item_rows) for one, last in pairs)


def _finished_before(furthest: State) -> int:
    """How many ranks must have delivered all of their items before a state, if one session read the epoch so far."""
    sessions = sessions_of(furthest.history, furthest.epoch) or []
    positions = furthest.positions.expand()
    of_rows = all(len(position.cursor) == 1 and not position.delivered_ahead for position in positions)
    if len(sessions) != 1 or sessions[0].item_rows != furthest.item_rows or not of_rows:
        return 0
    ranks, items = sessions[0].ranks, [-(-position.cursor[0] // furthest.item_rows) for position in positions]
    if furthest.mode == "file" and len(items) % ranks == 0:
        of_ranks = [sum(items[rank::ranks]) for rank in range(ranks)]
        return sum(one < max(of_ranks) for one in of_ranks)
    return -sum(items) % ranks


def _in_epoch(states: Sequence[State], number: int, epoch: int) -> State:
    """What a state holds about an epoch: its own, or one that its reader has finished."""
    state = states[number]
    for one in (replace(state, earlier=(), later=()), *state.earlier):
        if one.epoch == epoch:
            return one
    behind = next(number for number, state in enumerate(states) if state.epoch == epoch)
    kept = f" A state keeps the last {MOST_APART} epochs." if state.earlier else ""
    raise CheckpointMismatchError(
        f"State {behind} (from 0) is in epoch {epoch} and state {number} in epoch {state.epoch}, and the latter does "
        f"not hold what its rank delivered of epoch {epoch}.{kept} Merge states that all ranks saved at the same step. "
        "So that ranks begin their epochs together, iterate over midepoch.distributed.in_step(loader)."
    )


def _merged_epoch(in_epoch: Sequence[State], states: Sequence[State]) -> State:
    """The complete state of one epoch, from what each state holds about it."""
    begun = next((state for state in in_epoch if state.lanes is not None), in_epoch[0])
    first = next((state for state in in_epoch if state.reader_progress is not None), begun)
    of_one_reader = first.reader_progress is not None and first.reader_progress.reader is not None
    for number, state in enumerate(in_epoch):
        _check_same_session(first, state, number, may_be_idle=of_one_reader)
    if not of_one_reader:
        if any(state.reader_progress != first.reader_progress for state in in_epoch):
            raise CheckpointMismatchError(
                "The states were taken after different numbers of items. Save all ranks at the same step; for the "
                "workers of a StatefulDataLoader use from_stateful_dataloader."
            )
        return first
    per_state = [state.reader_progress for state in in_epoch]
    unfinished = {
        one.reader for one, state in zip(per_state, states, strict=True) if one and state.epoch == first.epoch
    }
    finished = {one.reader for one in per_state if one} - unfinished
    return _complete(first, _of_all_readers(per_state), finished)


def _check_same_session(first: State, state: State, number: int, *, may_be_idle: bool) -> None:
    """Raise unless a state is of the same session as the first.

    If every reader counts its own deliveries, a state may also be the session's start: its reader was idle.
    """
    if state.lanes is None and first.lanes is not None:
        if may_be_idle and _is_beginning(first):
            return
        cause = (
            "a rank did not load the state from which the others resumed. Load the same state on all ranks"
            if may_be_idle
            else "a rank saved its state before its loop asked for the first item, or did not load the state that the "
            "others loaded. Save all ranks at the same step"
        )
        raise CheckpointMismatchError(
            f"State {number} (from 0) had not begun epoch {state.epoch} when it was saved, and others had: {cause}."
        )
    names = ["lanes", "mode", "turn", "item_rows", "positions", "appended", "edits"]
    # An idle reader's state has the item_rows of the run before. A reader that shares no lane may have changed them.
    if may_be_idle and (state.reader_progress is None or not first.counts_items(state.reader_progress.readers)):
        names.remove("item_rows")
    for name in names:
        if getattr(first, name) != getattr(state, name):
            raise CheckpointMismatchError(
                f"The states cannot be merged: {name} is {shortened(getattr(first, name))} in one and "
                f"{shortened(getattr(state, name))} in state {number} (from 0). Merge states that all ranks saved at "
                "the same step, after they loaded the same state."
            )


def _is_beginning(state: State) -> bool:
    """True if a session began at the beginning of its epoch."""
    return not any(any(position.cursor) or position.delivered_ahead for _, position in state.positions.runs)


def _of_all_readers(per_state: Sequence[ReaderProgress | None]) -> list[ReaderProgress]:
    """The progress of each reader, in their order. States without progress are those of readers that have no other.

    Raises if a reader has no state, or two different ones.
    """
    given = [progress for progress in per_state if progress is not None]
    known, readers = {progress.reader: progress for progress in given}, given[0].readers
    idle, missing = len(per_state) - len(given), [reader for reader in range(readers) if reader not in known]
    problem = None
    if twice := [progress.reader for progress in given if progress != known[progress.reader]]:
        problem = f"there are two different states of reader {twice[0]}"
    elif any(progress.readers != readers for progress in given):
        problem = "they are of runs with different numbers of readers"
    elif len(missing) > idle:
        problem = f"the state of reader {missing[0]} of {readers} is missing ({len(missing) - idle} missing in all)"
    elif idle and not missing:
        problem = f"each of the {readers} readers has a state, and {count('state', idle)} more had delivered nothing"
    if problem is not None:
        raise CheckpointMismatchError(
            f"The states cannot be merged: {problem}. Merge one state of each rank, all saved at the same step."
        )
    return [known.get(reader) or ReaderProgress(readers=readers, reader=reader) for reader in range(readers)]


def _complete(start: State, per_reader: Sequence[ReaderProgress], finished: set[int | None]) -> State:
    """The complete state after every reader delivered what its progress says."""
    assignment = start.assigned_to(len(per_reader))
    deliveries: list[list[LaneDelivery]] = [[] for _ in range(assignment.lanes)]
    for reader, progress in enumerate(per_reader):
        delivered = {lane: (end, cursor) for lane, end, cursor in progress.deliveries}
        for slot, lane in enumerate(assignment.rotation(reader)):
            deliveries[lane].append(LaneDelivery(assignment.phase(reader, slot), *delivered.get(lane, (0, ()))))
    # All further turns of a reader that has finished are empty, so the next turn is that of another.
    turns_taken = {one.reader or 0: one.turns_taken for one in per_reader if one.reader not in finished}
    positions = LanePositions.pack(
        (1, join(position, assignment.stride, deliveries[lane]))
        for lane, position in enumerate(start.positions.expand())
    )
    turn = min(start.turn + reader + assignment.readers * taken for reader, taken in turns_taken.items())
    return replace(start, turn=turn, positions=positions, reader_progress=None)
