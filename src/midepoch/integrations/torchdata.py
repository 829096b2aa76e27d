"""Checkpoints of torchdata's StatefulDataLoader, converted to states from which any readers can resume."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from midepoch._common.checks import check_integer, count
from midepoch.checkpoint.merge import merge_states
from midepoch.checkpoint.state import State, checked_state
from midepoch.errors import CheckpointMismatchError

MOST_STEPS = 1 << 53
"""More steps than any run takes between two snapshots."""


def from_stateful_dataloader(*checkpoints: Mapping[str, Any], batch_size: int | None = None) -> dict[str, Any]:
    """The state in a StatefulDataLoader's ``state_dict()``, independent of its number of workers.

        loader.load_state_dict(midepoch.from_stateful_dataloader(stateful_dataloader.state_dict()))

    Each of ``checkpoints`` is what ``state_dict()`` of one rank's StatefulDataLoader returned. Load the result into a
    :class:`midepoch.Loader`, or into the dataset that is passed to a StatefulDataLoader with another number of workers.
    A uniform pipeline needs the checkpoint of one rank; filtering and packing pipelines need those of all ranks. A
    checkpoint that was taken between two snapshots (``snapshot_every_n_steps`` other than 1) needs ``batch_size``, the
    StatefulDataLoader's own (1 for None), a uniform pipeline, and at least two workers that have all delivered
    something.
    """
    if not checkpoints:
        raise ValueError("Pass the state_dict() of a StatefulDataLoader.")
    if batch_size is not None:
        batch_size = check_integer("batch_size", batch_size, least=1)
    per_rank = [_rank_states(_worker_states(checkpoint, batch_size)) for checkpoint in checkpoints]
    if all(_is_of_all_ranks(state) for states in per_rank for state in states):
        per_rank = [states[:1] for states in per_rank]
    return merge_states([state for states in per_rank for state in states])


def _worker_states(checkpoint: Mapping[str, Any], batch_size: int | None) -> list[dict[str, Any]]:
    """The states that the workers' copies of the dataset saved, moved by what was delivered since."""
    if isinstance(checkpoint, Mapping) and "version" in checkpoint and "fingerprint" in checkpoint:
        raise CheckpointMismatchError(
            "This is a state of a midepoch dataset or Loader, not of a StatefulDataLoader. Load it as it is: "
            "loader.load_state_dict(state)."
        )
    try:
        if not isinstance(checkpoint, Mapping):  # looking for a key in a loader would iterate over it
            raise TypeError(f"it is a {type(checkpoint).__name__}")
        if "_snapshot" not in checkpoint:
            states, last = [checkpoint["dataset_state"]], 0
        else:
            workers = checkpoint["_snapshot"]["_worker_snapshots"]
            states = [workers[f"worker_{number}"]["dataset_state"] for number in range(len(workers))]
            last = checkpoint["_snapshot"].get("_last_yielded_worker_id", 0)
        if not states or any(not isinstance(state, Mapping) or "version" not in state for state in states):
            raise ValueError("a worker has no state")
        steps = check_integer("_steps_since_snapshot", checkpoint.get("_steps_since_snapshot", 0), most=MOST_STEPS)
        if steps:
            check_integer("_last_yielded_worker_id", last, most=len(states) - 1)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise CheckpointMismatchError(
            "This is not the checkpoint of a StatefulDataLoader of a midepoch dataset, or it is damaged "
            f"({type(error).__name__}: {error}). Pass the dict that its state_dict() returned, or those of all ranks: "
            "from_stateful_dataloader(*checkpoints)."
        ) from error
    upgraded = [checked_state(state) for state in states]
    return _moved(upgraded, steps, last, batch_size) if steps else upgraded


def _moved(states: list[dict[str, Any]], steps: int, last: int, batch_size: int | None) -> list[dict[str, Any]]:
    """The states after more steps, which the workers took in turn after worker ``last``."""
    moved = []
    for worker, values in enumerate(states):
        state = State.from_dict(values)
        progress = state.reader_progress
        if batch_size is None or progress is None or progress.reader is not None or state.mode != "example":
            raise CheckpointMismatchError(
                f"The checkpoint was taken {count('step', steps)} after its last snapshot, and does not contain what "
                "was delivered since. Take it with snapshot_every_n_steps=1. For a pipeline without filters, sharded "
                "by example, with several workers that have all delivered something, it is enough to pass batch_size= "
                "(the StatefulDataLoader's, 1 for None)."
            )
        own_steps = len(range((worker - last - 1) % len(states), steps, len(states)))
        items = (progress.items[0] + own_steps * batch_size,)
        moved.append(replace(state, reader_progress=replace(progress, items=items)).to_dict(values["fingerprint"]))
    return moved


def _rank_states(states: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The states of one rank's workers: merged into one if the pipeline is uniform, else one for each worker."""
    read = [State.from_dict(state) for state in states]
    first = next((number for number, state in enumerate(read) if state.reader_progress is not None), None)
    if first is None:
        return [dict(state) for state in (states if any(state.earlier for state in read) else states[:1])]
    start, progress = read[first], read[first].reader_progress
    if progress is None or progress.readers % len(states) or (progress.reader is None and not _fits(read)):
        raise CheckpointMismatchError(
            f"The states of {count('worker', len(states))} are not those of one rank's workers: the checkpoint is "
            "damaged. Load an earlier one."
        )
    if progress.reader is not None:
        return [dict(state) for state in states]
    if any(not _is_of_session(state, start) for state in read):
        raise CheckpointMismatchError(
            "The workers' states are of different epochs or starts, so it is unknown what was delivered. The "
            "checkpoint was taken before every worker had begun the loop: take it a few steps later."
        )
    items = tuple(state.reader_progress.items[0] if state.reader_progress is not None else 0 for state in read)
    return [replace(start, reader_progress=replace(progress, items=items)).to_dict(states[first]["fingerprint"])]


def _fits(states: Sequence[State]) -> bool:
    """True if each state of a uniform pipeline is that of one of this number of workers."""
    return all(
        state.reader_progress is None
        or (state.reader_progress.workers == len(states) and len(state.reader_progress.items) == 1)
        for state in states
    )


def _is_of_session(state: State, start: State) -> bool:
    """True if a worker's state is of the session that began at ``start``: after that, or at the epoch's beginning."""
    if state.reader_progress is None and state.lanes is None:
        return (state.epoch, start.turn) == (start.epoch, 0)
    return replace(state, reader_progress=None) == replace(start, reader_progress=None)


def _is_of_all_ranks(values: Mapping[str, Any]) -> bool:
    """True if one rank's state is enough for all ranks, as for uniform pipelines."""
    state = State.from_dict(values)
    return not state.earlier and (state.reader_progress is None or state.reader_progress.reader is None)
