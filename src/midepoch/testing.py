"""Proofs for your own pipelines: that stopping and resuming, on the same readers or on others, changes nothing.

    from midepoch.testing import assert_elastic, assert_resumes

    assert_resumes(dataset.take(100))
    assert_elastic(dataset.take(100).lanes(4), [(2, 2), (3, 1), (1, 3)])

Both leave the data set as it was, read one epoch of it many times over, and say which item differed.
"""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from midepoch.checkpoint.merge import merge_states
from midepoch.checkpoint.state import State
from midepoch.dataset import Dataset
from midepoch.delivery.plan import Plan
from midepoch.delivery.progress import EMPTY, Turns
from midepoch.delivery.reader import take_turns, turn_by_turn

Layout = tuple[int, int]
"""How many ranks there are, and how many workers each has."""


def assert_resumes(dataset: Dataset, *, every: int = 1) -> None:
    """Stop after every item (or every ``every``-th), resume, stop after one more, resume again: nothing changes."""
    epoch = dataset.epoch
    whole = list(_pass(_fresh(dataset, epoch), epoch))
    for cut in range(0, len(whole), every):
        first = _fresh(dataset, epoch)
        got = list(islice(iter(first), cut))
        second = _resumed(dataset, first.state_dict(), f"after item {cut}")
        got += list(islice(iter(second), 1))
        third = _resumed(dataset, second.state_dict(), f"after item {cut + 1}")
        if cut + 1 < len(whole):
            got += _pass(third, epoch)
        _assert_same(got, whole, f"stopped after item {cut} and again after item {cut + 1}")


def assert_elastic(dataset: Dataset, layouts: Sequence[Layout], *, steps: int | None = None) -> None:
    """Run through ``layouts`` of (ranks, workers) one after the other in one epoch: every item comes once.

    Each layout but the last delivers ``steps`` items a rank, by default an even part of the epoch. The items of all
    ranks together must be those of one process, in its order, as long as no lane runs out before the others.
    """
    plan, epoch = dataset.plan, dataset.epoch
    lanes = plan.lanes or layouts[0][0] * layouts[0][1]
    alone = Dataset(_with(plan, ranks=1, rank=0, lanes=lanes))
    whole = list(_pass(_fresh(alone, epoch), epoch))
    got: list[Any] = []
    state: Mapping[str, Any] = Dataset(_with(plan, ranks=1, rank=0, lanes=lanes)).state_dict() | {"epoch": epoch}
    in_step = True
    for number, (ranks, workers) in enumerate(layouts):
        last = number == len(layouts) - 1
        share = None if last else steps if steps is not None else len(whole) // (len(layouts) * ranks)
        runs = [
            RankRun(Dataset(_with(plan, ranks=ranks, rank=rank, lanes=lanes)), state, workers) for rank in range(ranks)
        ]
        delivered = [list(run.deliver(share)) for run in runs]
        got += [item for _, item in sorted(chain.from_iterable(delivered), key=lambda pair: pair[0])]
        in_step = in_step and (last or not any(run.passed_empty for run in runs))
        if not last:
            states = [json.loads(json.dumps(run.state_dict())) for run in runs]
            if plan.pipeline.uniform:  # ranks that have run out have left the loop; those still in it speak for all
                most = max(map(len, delivered))
                states = [one for one, items in zip(states, delivered, strict=True) if len(items) == most]
            state = merge_states(states)
    how = " → ".join(f"{ranks}×{workers}" for ranks, workers in layouts)
    if in_step:
        _assert_same(got, whole, f"run as {how} (ranks×workers)")
    else:
        _assert_same(sorted(got, key=_text), sorted(whole, key=_text), f"run as {how}, both sorted")


class RankRun:
    """A rank whose workers are run side by side in this process, as a loader would run them."""

    def __init__(self, dataset: Dataset, state: Mapping[str, Any], workers: int) -> None:
        dataset.load_state_dict(state)
        self._dataset = dataset
        self._progress = dataset.plan.begin(State.from_dict(state))
        self._steps = _side_by_side([take_turns(self._progress, worker, workers) for worker in range(workers)])

    def deliver(self, items: int | None) -> Iterator[tuple[int, Any]]:
        """Hand over some items, each with its turn."""
        assignment, progress = self._progress.session.assignment, self._progress
        for item in islice(chain.from_iterable(progress.follow(self._steps)), items):
            yield assignment.turn + progress.reader + assignment.readers * (progress.turns_taken - 1), item

    @property
    def passed_empty(self) -> bool:
        """Whether some turn found its lane run out."""
        return self._progress.items < self._progress.turns_taken

    def state_dict(self) -> dict[str, Any]:
        """The rank's state."""
        return self._progress.state().to_dict(self._dataset.plan.pipeline.fingerprint)


def _side_by_side(workers: list[Iterator[Turns]]) -> Iterator[Turns]:
    """One turn of each worker in turn; a worker that has ended has only empty turns."""
    turns = [turn_by_turn(worker) for worker in workers]
    alive = [True] * len(workers)
    while any(alive):
        for number, worker in enumerate(turns):
            turn = next(worker, None)
            alive[number] = turn is not None
            cursor, item = turn or (None, None)
            yield Turns((EMPTY,), ((),)) if cursor is None else Turns((item,), ((cursor,),))


def _fresh(dataset: Dataset, epoch: int) -> Dataset:
    fresh = copy.copy(dataset)
    fresh.position.start_epoch(epoch)
    return fresh


def _resumed(dataset: Dataset, state: Mapping[str, Any], when: str) -> Dataset:
    """A new data set at a state that has been through JSON, which it must give back unchanged."""
    resumed = _fresh(dataset, 0)
    carried = json.loads(json.dumps(state))
    resumed.load_state_dict(carried)
    if resumed.state_dict() != carried:
        raise AssertionError(f"The state {when} changed by loading and saving it: {carried} → {resumed.state_dict()}")
    return resumed


def _pass(dataset: Dataset, epoch: int) -> Iterator[Any]:
    """What is left of an epoch."""
    for item in dataset:
        if dataset.epoch != epoch:
            return
        yield item


def _with(plan: Plan, **changes: Any) -> Plan:
    return Plan(**{**{name: getattr(plan, name) for name in Plan.__dataclass_fields__}, **changes})


def _assert_same(got: Sequence[Any], whole: Sequence[Any], how: str) -> None:
    for number, (one, other) in enumerate(zip(got, whole, strict=False)):
        if not same(one, other):
            raise AssertionError(
                f"Item {number} differs from the uninterrupted run's when {how}:\n"
                f"  expected {_text(other)}\n  got      {_text(one)}"
            )
    if len(got) != len(whole):
        raise AssertionError(f"{len(got)} items instead of {len(whole)} when {how}.")


def same(one: Any, other: Any) -> bool:
    """Whether two items are equal, arrays and tensors included. NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, pa.RecordBatch):
        return bool(one.equals(other))
    if hasattr(one, "numpy"):
        return same(one.numpy(), other.numpy())
    if isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return same(one.tolist(), other.tolist())
    return bool(one == other or (one != one and other != other))


def _text(item: Any) -> str:
    text = str(item.to_pydict()) if isinstance(item, pa.RecordBatch) else repr(item)
    return text if len(text) <= 300 else text[:297] + "..."
