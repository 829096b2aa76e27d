"""Checks for your own pipelines: stopping and resuming, on the same readers or on others, must not change the items.

    from midepoch.testing import assert_elastic, assert_resumes

    assert_resumes(dataset.take(100))
    assert_elastic(dataset.take(100).lanes(4), [(2, 2), (3, 1), (1, 3)])

These two read one epoch many times, so pass a small dataset. They do not move it, and raise an AssertionError that
names the first item that differs. ``check_resume`` judges any loader that has a state.
"""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from midepoch._common.checks import check_integer, count
from midepoch.checkpoint.merge import merge_states
from midepoch.checkpoint.state import State
from midepoch.dataset import Dataset, plan_of
from midepoch.delivery.passes import Progress
from midepoch.delivery.reader import take_turns
from midepoch.delivery.turns import Turns, one_by_one
from midepoch.resume_check import check_resume as check_resume
from midepoch.resume_check import plain_values

Layout = tuple[int, int]
"""The number of ranks, and the number of workers of each rank."""


def assert_resumes(dataset: Dataset, *, every: int = 1) -> None:
    """Check that a resume after any item continues with exactly the items of an uninterrupted run.

    ``dataset`` stays as it is, and its present epoch is checked. Stops after every item, or after every ``every``-th
    one, resumes from the state, stops after one more item, and resumes again. Also checks that a state survives JSON,
    and that loading and saving it returns the same state.

        assert_resumes(me.read("data/*.parquet").shuffle(seed=1).map(tokenize).take(100), every=10)
    """
    check_integer("every", every, least=1)
    epoch = dataset.epoch
    expected = list(_rest_of(_fresh(dataset, epoch), epoch))
    for stop in range(0, len(expected), every):
        first = _fresh(dataset, epoch)
        got = list(islice(iter(first), stop))
        second = _resumed(dataset, first.state_dict(), stop)
        got += list(islice(iter(second), 1))
        third = _resumed(dataset, second.state_dict(), stop + 1)
        got += _rest_of(third, epoch)
        _assert_same(got, expected, f"a run that stopped after {count('item', stop)} and again after {stop + 1}")


def assert_elastic(dataset: Dataset, layouts: Sequence[Layout], *, steps: int | None = None) -> None:
    """Check that an epoch stays the same when the numbers of ranks and workers change in the middle of it.

    ``dataset`` stays as it is, and its present epoch is checked. Runs through ``layouts`` of (ranks, workers), one
    after the other, and passes the state from each to the next. Each layout but the last delivers ``steps`` items per
    rank, by default an even share of the epoch. All items must be those of one process, each once, and in its order as
    long as no lane runs out before the others.

        assert_elastic(dataset.take(100).lanes(4), [(2, 2), (3, 1), (1, 3)])
    """
    if not layouts:
        raise ValueError("assert_elastic needs at least one layout, such as [(2, 2), (3, 1)].")
    plan, epoch = plan_of(dataset), dataset.epoch
    lanes = plan.lanes or layouts[0][0] * layouts[0][1]
    alone = Dataset(replace(plan, ranks=1, rank=0, lanes=lanes))
    expected = list(_rest_of(_fresh(alone, epoch), epoch))
    got: list[Any] = []
    state: Mapping[str, Any] = _fresh(alone, epoch).state_dict()
    in_order = True
    for number, (ranks, workers) in enumerate(layouts):
        last = number == len(layouts) - 1
        share = None if last else steps if steps is not None else len(expected) // (len(layouts) * ranks)
        runs = [
            RankRun(Dataset(replace(plan, ranks=ranks, rank=rank, lanes=lanes)), state, workers)
            for rank in range(ranks)
        ]
        delivered = [list(run.deliver(share)) for run in runs]
        got += [item for _, item in sorted(chain.from_iterable(delivered), key=lambda pair: pair[0])]
        in_order = in_order and (last or not any(run.passed_empty for run in runs))
        if not last:
            states = [json.loads(json.dumps(run.state_dict())) for run in runs]
            if plan.counted:  # ranks without items left have ended their loop; the others have the state
                longest = max(map(len, delivered))
                states = [state for state, items in zip(states, delivered, strict=True) if len(items) == longest]
            state = merge_states(states)
    how = "a run on " + ", then ".join(f"{count('rank', r)} of {count('worker', w)}" for r, w in layouts)
    if in_order:
        _assert_same(got, expected, how)
    else:
        _assert_same(sorted(got, key=_sort_key), sorted(expected, key=_sort_key), f"{how} (both runs sorted)")


class RankRun:
    """One rank, whose workers run interleaved in this process, as a loader would run them in others."""

    def __init__(self, dataset: Dataset, state: Mapping[str, Any], workers: int) -> None:
        dataset.load_state_dict(state)
        self._dataset = dataset
        self._progress = plan_of(dataset).begin(State.from_dict(state))
        turns = [take_turns(self._progress, worker, workers) for worker in range(workers)]
        self._steps = _interleaved(turns, until_first_ends=self._progress.session.counted)

    def deliver(self, items: int | None) -> Iterator[tuple[int, Any]]:
        """Deliver up to ``items`` items, or all that are left, each with its turn."""
        session, progress = self._progress.session, self._progress
        first = 0 if session.counted else session.start.turn
        for item in islice(chain.from_iterable(progress.follow(self._steps)), items):
            yield first + progress.reader + session.readers * (progress.turns_taken - 1), item

    @property
    def passed_empty(self) -> bool:
        """True if a turn was empty, because its lane had run out."""
        return self._progress.items < self._progress.turns_taken

    @property
    def progress(self) -> Progress:
        """What the rank has delivered."""
        return self._progress

    def state_dict(self) -> dict[str, Any]:
        """The state of the rank after what it has delivered."""
        return plan_of(self._dataset).pipeline.state_dict(self._progress.state())


def _interleaved(workers: Sequence[Iterator[Turns]], *, until_first_ends: bool) -> Iterator[Turns]:
    """One turn of each worker after the other. A worker that has ended has only empty turns, or ends the rank's."""
    turns = [*map(one_by_one, workers)]
    alive = [True] * len(workers)
    while any(alive):
        for number, worker in enumerate(turns):
            turn = next(worker, None)
            alive[number] = turn is not None
            if turn is None and until_first_ends:
                return
            yield turn or Turns((), empty=1)


def _fresh(dataset: Dataset, epoch: int) -> Dataset:
    fresh = copy.copy(dataset)
    fresh.set_epoch(epoch)
    return fresh


def _resumed(dataset: Dataset, state: Mapping[str, Any], items: int) -> Dataset:
    """A new dataset that resumes from a state, which went through JSON and must come back unchanged."""
    resumed = _fresh(dataset, 0)
    loaded = json.loads(json.dumps(state))
    resumed.load_state_dict(loaded)
    saved = json.loads(json.dumps(resumed.state_dict()))
    if saved != loaded:
        raise AssertionError(
            f"The state after {count('item', items)} changed when it was loaded and saved again:\n"
            f"  loaded {loaded}\n  saved  {saved}"
        )
    return resumed


def _rest_of(dataset: Dataset, epoch: int) -> Iterator[Any]:
    """What is left of an epoch."""
    for item in dataset:
        if dataset.epoch != epoch:
            return
        yield item


def _assert_same(got: Sequence[Any], expected: Sequence[Any], how: str) -> None:
    for number, (item, other) in enumerate(zip(got, expected, strict=False)):
        if not same(item, other):
            raise AssertionError(
                f"Item {number} of {how} differs from the uninterrupted run{_differing_keys(item, other)}:\n"
                f"  expected {_text(other)}\n  got      {_text(item)}"
            )
    if len(got) != len(expected):
        number = min(len(got), len(expected))
        missing = len(got) < len(expected)
        raise AssertionError(
            f"Item {number} {'is missing from' if missing else 'is one too many in'} {how}, which has "
            f"{count('item', len(got))} instead of {len(expected):,}:\n"
            f"  {'expected' if missing else 'got     '} {_text((expected if missing else got)[number])}"
        )


def same(one: Any, other: Any) -> bool:
    """True if two items are equal in values, types and shapes, also of arrays and tensors. NaN equals NaN.

    same({"x": np.array([1.0, np.nan])}, {"x": np.array([1.0, np.nan])})  # True
    same({"x": np.array([1.0])}, {"x": [1.0]})  # False
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, pa.RecordBatch):
        return bool(one.equals(other)) or (one.schema == other.schema and same(one.to_pylist(), other.to_pylist()))
    if hasattr(one, "tolist") and hasattr(one, "dtype"):
        return one.dtype == other.dtype and one.shape == other.shape and same(one.tolist(), other.tolist())
    return bool(one == other or (one != one and other != other))


def _differing_keys(item: Any, other: Any) -> str:
    """Which keys differ, for items that are dicts with the same keys."""
    if not isinstance(item, Mapping) or not isinstance(other, Mapping) or list(item) != list(other):
        return ""
    return " in " + ", ".join(repr(key) for key in item if not same(item[key], other[key]))


def _sort_key(item: Any) -> str:
    """The whole item as text. ``repr`` of an array would leave out the middle of a long one."""
    return repr(plain_values(item))


def _text(item: Any) -> str:
    text = str(item.to_pydict()) if isinstance(item, pa.RecordBatch) else repr(item)
    return text if len(text) <= 300 else text[:297] + "..."
