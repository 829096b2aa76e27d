"""Checkpoints of torchdata's StatefulDataLoader, turned into states that any readers can go on from."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from midepoch.checkpoint.merge import merge_states
from midepoch.checkpoint.state import ReaderProgress, State
from midepoch.errors import CheckpointMismatchError


def from_stateful_dataloader(*checkpoints: Mapping[str, Any], batch_size: int | None = None) -> dict[str, Any]:
    """The state that a StatefulDataLoader's ``state_dict()`` stands for, free of its number of workers.

    Load it into a :class:`midepoch.Loader`, or into the data set that is given to a StatefulDataLoader with another
    number of workers. A uniform pipeline needs the checkpoint of one rank; filtering and packing pipelines need
    those of all ranks. A checkpoint that was taken between two snapshots (``snapshot_every_n_steps`` other than 1)
    needs ``batch_size``, the StatefulDataLoader's own (1 for None), a uniform pipeline, and at least two workers
    which have all delivered something.
    """
    if not checkpoints:
        raise ValueError("Pass the state_dict() of a StatefulDataLoader.")
    ranks = [_worker_states(checkpoint, batch_size) for checkpoint in checkpoints]
    if all(len(states) == 1 for states in ranks):
        return merge_states([states[0] for states in ranks])
    merged = [_ranks_state(states) for states in ranks]
    if all("items" in (state["part"] or {"items": 0}) for states in merged for state in states):
        return merge_states([states[0] for states in merged])
    return merge_states([state for states in merged for state in states])


def _worker_states(checkpoint: Mapping[str, Any], batch_size: int | None) -> list[dict[str, Any]]:
    """What each worker's copy of the data set saved, moved by what was delivered since."""
    states: list[Any] = []
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        if "_snapshot" in checkpoint:
            workers = checkpoint["_snapshot"]["_worker_snapshots"]
            states = [workers[f"worker_{number}"]["dataset_state"] for number in range(len(workers))]
        else:
            states = [checkpoint["dataset_state"]]
    if not states or any(not isinstance(state, Mapping) or "version" not in state for state in states):
        raise CheckpointMismatchError(
            "This is not the checkpoint of a StatefulDataLoader over a midepoch data set. "
            "Pass what its state_dict() returned."
        )
    found = [dict(state) for state in states]
    since = checkpoint.get("_steps_since_snapshot", 0)
    return _moved(found, since, checkpoint["_snapshot"]["_last_yielded_worker_id"], batch_size) if since else found


def _moved(states: list[dict[str, Any]], steps: int, last: int, batch_size: int | None) -> list[dict[str, Any]]:
    """The states after so many more steps, which the workers took in turn."""
    read = [State.from_dict(state) for state in states]
    known = all(
        state.reader_progress is not None and state.reader_progress.reader is None and state.mode == "example"
        for state in read
    )
    if batch_size is None or not known:
        raise CheckpointMismatchError(
            f"The checkpoint was taken {steps} steps after its last snapshot, and what those steps delivered is not in "
            "it. Take it with snapshot_every_n_steps=1. For a pipeline without filters and several workers that have "
            "all delivered something, cut evenly, batch_size= (the StatefulDataLoader's, 1 for None) is enough."
        )
    moved = [dict(state) for state in states]
    for step in range(1, steps + 1):
        worker = (last + step) % len(states)
        progress = moved[worker]["part"]
        moved[worker]["part"] = {**progress, "items": progress["items"] + batch_size}
    return moved


def _is_of_leg(state: State, start: State) -> bool:
    """Whether a worker's state is of the leg that began at a start: behind it, or at its beginning."""
    if state.reader_progress is None and state.lanes is None:
        return (state.epoch, start.turn) == (start.epoch, 0)
    return replace(state, reader_progress=None) == replace(start, reader_progress=None)


def _ranks_state(states: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The states of one rank's workers, as one where the pipeline is uniform, else with none of them left out."""
    read = [State.from_dict(state) for state in states]
    begun = next((number for number, state in enumerate(read) if state.reader_progress is not None), None)
    if begun is None:
        return [dict(states[0])]
    start, progress = read[begun], read[begun].reader_progress
    assert progress is not None
    if any(not _is_of_leg(state, start) for state in read):
        raise CheckpointMismatchError(
            "The workers' states are of different epochs or starts, so nobody knows what was delivered. The checkpoint "
            "was taken before every worker had begun the loop: take it a few steps later."
        )
    fingerprint = states[begun]["fingerprint"]
    if progress.reader is None:
        items = tuple(state.reader_progress.items[0] if state.reader_progress is not None else 0 for state in read)
        return [replace(start, reader_progress=replace(progress, items=items)).to_dict(fingerprint)]
    ranks = progress.readers // len(states)
    progresses = [
        state.reader_progress
        or ReaderProgress(readers=progress.readers, reader=progress.reader % ranks + ranks * worker)
        for worker, state in enumerate(read)
    ]
    return [replace(start, reader_progress=one).to_dict(fingerprint) for one in progresses]
