"""Ranks of pipelines without known counts run at their own speeds, epochs apart, and merge: each row once an epoch."""

import json
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from midepoch.checkpoint import merge
from midepoch.checkpoint.state import MOST_APART, LanePositions, State
from midepoch.delivery.reader import take_turns
from midepoch.delivery.uncounted import ReportedProgress
from midepoch.testing import _interleaved
from worlds import ids, is_kept, keep_even, spread, write_files

ALL = 1 << 30


def is_low(row):
    return row["id"] < 9


def is_nothing(row):
    return False


def is_odd(row):
    return row["id"] % 2 == 1


def mixed(rows, stop):
    return me.mix({"odd": rows.filter(is_odd), "low": rows.filter(is_low)}, [2, 1], stop=stop)


PIPELINES = {
    "filter": lambda rows: rows.filter(is_kept),
    "shuffle, filter": lambda rows: rows.shuffle(1, window=12).filter(is_kept),
    "low rows": lambda rows: rows.filter(is_low),
    "no rows": lambda rows: rows.filter(is_nothing),
    "batched filter": lambda rows: rows.shuffle(3, level="row").filter(keep_even, batched=True),
    "batched map": lambda rows: rows.map(
        spread, batched=True, batch_size=5, remove_columns=["text", "tokens", "maybe"]
    ),
    "packs": lambda rows: rows.shuffle(2, window=12).pack(9, column="tokens", window=8),
    "stream": lambda rows: rows.pack(5, column="tokens", strategy="concat"),
    "mix until first": lambda rows: mixed(rows, "first"),
    "mix until all": lambda rows: mixed(rows, "all"),
}
ROWS_OF_ANY_LANES = ("filter", "shuffle, filter", "low rows", "no rows", "batched filter")
"""The pipelines that make the same rows whatever the lanes are."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("merge")
    return me.read(write_files(folder / "data", [13, 0, 10, 20]), index_dir=folder / "index")


def units(item):
    """What must come once: the ids of rows, or a pack."""
    return [np.asarray(item["tokens"]).tobytes()] if "cu_seqlens" in item else ids([item])


class RankLoader(me.Loader):
    """A Loader whose workers take their turns in this process."""

    workers = 1

    def _turns(self, progress):
        turns = [take_turns(progress, worker, self.workers) for worker in range(self.workers)]
        return _interleaved(turns, until_first_ends=progress.session.counted)


@dataclass
class Rank:
    """One rank that loops over epochs, and what it delivers of each: ``(epoch, unit)``."""

    loader: me.Loader
    repeats: bool
    sets_epoch: bool
    iterator: Any = None
    delivered: list[tuple[int, Any]] = field(default_factory=list)

    def deliver(self, items, last_epoch):
        """Up to ``items`` items, until one is of an epoch after the last one."""
        while items > 0 and self.loader.epoch <= last_epoch:
            if self.iterator is None:
                if self.sets_epoch:
                    self.loader.set_epoch(self.loader.epoch)
                self.iterator = iter(self.loader)
            item = next(self.iterator, None)
            if item is None:
                self.iterator = None
            else:
                items -= 1
                self.delivered += [(self.loader.epoch, unit) for unit in units(item)]

    def state(self):
        return json.loads(json.dumps(self.loader.state_dict()))


@dataclass
class Run:
    """A run of several sessions, each with other ranks, workers, speeds and, for rows, batch sizes."""

    pipeline: Any
    lanes: int | None
    batches: bool
    style: str
    rng: random.Random
    delivered: list[tuple[int, Any]] = field(default_factory=list)
    most_apart: int = 0
    skewed: int = 0
    in_order: bool = True
    """False once a lane was shared by readers, which deliver its items at different times."""

    def rank(self, rank, ranks, workers, batch, states):
        dataset = self.pipeline.shard(ranks, rank)
        dataset = dataset if self.lanes is None else dataset.lanes(self.lanes)
        repeats = self.style == "repeat"
        dataset = dataset.repeat() if repeats else dataset
        loader = RankLoader(dataset, batch_size=batch if self.batches else None, even=None)
        loader.workers = workers
        if states is not None:
            loader.load_state_dict(states[rank % len(states)])
        return Rank(loader, repeats, self.style == "set epoch")

    def session(self, ranks, workers, batch, states, last_epoch=None):
        """Every rank takes a number of items of its own; to the end of the last epoch, if there is one."""
        runs = [self.rank(rank, ranks, workers, batch, states) for rank in range(ranks)]
        self.in_order = self.in_order and self.lanes is not None and self.lanes % ranks == 0
        first = min(run.loader.epoch for run in runs)
        for run in runs:
            if last_epoch is not None:
                run.deliver(ALL, last_epoch)
            else:
                run.deliver(self.rng.randint(0, self.rng.choice([0, 1, 5, 20, 60])), first + MOST_APART - 1)
        epochs = [run.loader.epoch for run in runs]
        for run in runs:  # an empty epoch takes no item, so a rank may be further than that
            run.deliver(ALL, max(epochs) - MOST_APART - 1)
            self.delivered += run.delivered
        epochs = [run.loader.epoch for run in runs]
        if last_epoch is None:
            self.most_apart = max(self.most_apart, max(epochs) - min(epochs))
            self.skewed += max(epochs) > min(epochs)
        return [run.state() for run in runs]

    def run(self, sessions=3):
        """Some sessions, whose states are merged or loaded by their own ranks; then the rest of every epoch begun."""
        rng, states, layout, batch = self.rng, None, (1, 1), 1
        for _ in range(sessions):
            if states is None or rng.random() < 0.75:
                if states is not None:
                    states = [json.loads(json.dumps(me.merge_states(rng.sample(states, len(states)))))]
                layout, size = (rng.randint(1, 4), rng.randint(1, 3)), rng.choice([batch, 1, 2, 3])
            else:  # readers that share lanes cannot change the batch size before their states are merged
                alone = self.lanes is not None and self.lanes % layout[0] == 0
                size = rng.choice([1, 2, 3]) if alone else batch
            states, batch = self.with_batch_size(size, batch, layout, states)
        last_epoch = max((epoch for epoch, _ in self.delivered), default=0)
        merged = [me.merge_states(states)]
        self.session(rng.randint(1, 4), rng.randint(1, 3), batch, merged, last_epoch)
        return last_epoch

    def with_batch_size(self, size, old, layout, states):
        """A session with a batch size, or with the old one where a state counts batches of that."""
        before = len(self.delivered)
        try:
            return self.session(*layout, size, states), size
        except me.CheckpointMismatchError as error:
            if "counts items of" not in str(error):
                raise
            del self.delivered[before:]
            return self.session(*layout, old, states), old


def epoch_by_lane(pipeline, lanes, epoch):
    """What each lane of an epoch holds, read by a reader of its own."""
    per_lane = []
    for lane in range(lanes):
        dataset = pipeline.lanes(lanes).shard(lanes, lane)
        dataset.set_epoch(epoch)
        per_lane.append([unit for item in dataset for unit in units(item)])
    return per_lane


def check(rows, rng):
    """One random run. Returns it."""
    name = rng.choice(list(PIPELINES))
    pipeline = PIPELINES[name](rows)
    lanes = None if name in ROWS_OF_ANY_LANES and rng.random() < 0.4 else rng.randint(1, 6)
    batches = name in ROWS_OF_ANY_LANES and rng.random() < 0.5
    run = Run(pipeline, lanes, batches, rng.choice(["loops", "set epoch", "repeat"]), rng)
    last_epoch = run.run()
    for epoch in range(last_epoch + 1):
        got = [unit for number, unit in run.delivered if number == epoch]
        per_lane = epoch_by_lane(pipeline, lanes or 1, epoch)
        whole = Counter(unit for lane in per_lane for unit in lane)
        lost, more = whole - Counter(got), Counter(got) - whole
        assert (lost, more) == (Counter(), Counter()), f"epoch {epoch} of {name!r}: lost {lost}, {more} too often"
        if run.in_order and max(whole.values(), default=1) == 1:
            for lane in per_lane:
                assert [unit for unit in got if unit in set(lane)] == lane
    return run


def check_many(rows, cases):
    for seed in range(cases):
        check(rows, random.Random(seed))


@settings(max_examples=50)
@given(rng=st.randoms(use_true_random=False))
def test_ranks_at_any_distance_merge_and_lose_or_repeat_nothing(rows, rng):
    check(rows, rng)


def without_earlier(monkeypatch):
    monkeypatch.setattr(ReportedProgress, "following", lambda self: self.session.start.following())


def without_the_last_delivery(monkeypatch):
    right = ReportedProgress.following

    def wrong(self):
        state = right(self)
        if not state.earlier or not state.earlier[-1].reader_progress.deliveries:
            return state
        *others, finished = state.earlier
        part = replace(finished.reader_progress, deliveries=finished.reader_progress.deliveries[:-1])
        return replace(state, earlier=(*others, replace(finished, reader_progress=part)))

    monkeypatch.setattr(ReportedProgress, "following", wrong)


def with_later_epochs_from_their_start(monkeypatch):
    monkeypatch.setattr(State, "start_of", lambda self, epoch: State(epoch=epoch))


def with_one_later_epoch(monkeypatch):
    right = merge._merged
    monkeypatch.setattr(
        merge, "_merged", lambda states: (state := right(states)) and replace(state, later=state.later[:1])
    )


def with_the_next_epoch_of_one_rank(monkeypatch):
    """What the other ranks delivered there is forgotten."""
    right = merge._of_all_readers

    def wrong(per_state):
        first, *others = right(per_state)
        forgets = any(one is None for one in per_state) and first.deliveries
        return [first, *(replace(one, deliveries=()) if forgets else one for one in others)]

    monkeypatch.setattr(merge, "_of_all_readers", wrong)


def without_items_delivered_ahead(monkeypatch):
    right = merge._merged

    def in_step(state):
        runs = tuple((lanes, replace_ahead(position)) for lanes, position in state.positions.runs)
        return replace(state, positions=LanePositions(runs))

    def replace_ahead(position):
        return position._replace(delivered_ahead=())

    def wrong(states):
        state = right(states)
        return replace(state, later=tuple(map(in_step, state.later)))

    monkeypatch.setattr(merge, "_merged", wrong)


@pytest.mark.parametrize(
    "plant",
    [
        without_earlier,
        without_the_last_delivery,
        with_later_epochs_from_their_start,
        with_one_later_epoch,
        with_the_next_epoch_of_one_rank,
        without_items_delivered_ahead,
    ],
)
def test_planted_mistakes_are_found(rows, monkeypatch, plant):
    plant(monkeypatch)
    with pytest.raises((AssertionError, me.CheckpointMismatchError), match=r"too often|does not hold what"):
        check_many(rows, 200)
