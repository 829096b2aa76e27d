"""Loops over epochs make the same passes with and without interruptions, also at the last item of an epoch.

A pass is what one loop yields. A run is interrupted after some of its items, and a new one continues from its state.
What was left of the interrupted pass, which is nothing after its last item, comes first, then the next passes.
"""

import copy
import json
import logging
import tempfile
import threading
from itertools import count
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

import midepoch as me
from chats import Chat, process, write_parquet
from midepoch import distributed
from worlds import ids, is_kept, worlds, write_files

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]
few = settings(max_examples=6)

PASSES = 3
LOOPS = ("without set_epoch", "set_epoch", "set_epoch, but not for the resumed epoch")


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Door:
    """What a training script iterates over, and what it saves."""

    def __init__(self, batches, dataset=None):
        self.batches, self.dataset = batches, batches if dataset is None else dataset

    def __iter__(self):
        return iter(self.batches)

    def set_epoch(self, epoch):
        self.dataset.set_epoch(epoch)

    def save(self):
        return json.loads(json.dumps(self.batches.state_dict()))

    def load(self, state):
        self.batches.load_state_dict(state)


class InStep(Door):
    def __iter__(self):
        return distributed.in_step(self.batches)


class Stateful(Door):
    def __init__(self, dataset, workers):
        super().__init__(
            StatefulDataLoader(dataset, batch_size=None, num_workers=workers, collate_fn=as_it_is), dataset
        )

    def save(self):
        return copy.deepcopy(self.batches.state_dict())


def as_it_is(item):
    return item


def loop(door, how, state, first, stop, *, after_loop=False):
    """The passes of a training script from its checkpoint on, until ``stop`` items; the next state and its pass.

    ``after_loop`` saves after a loop has ended, if it ends there, rather than inside of it at its last item.
    """
    if state is not None:
        door.load(state)
    passes, received = [], 0
    for number in range(first, PASSES):
        if how == "set_epoch" or (how != "without set_epoch" and (number > first or state is None)):
            door.set_epoch(number)
        passes.append([])
        for item in door:
            passes[-1].append(ids([item]))
            received += 1
            if received == stop and not after_loop:
                return passes, door.save(), number
        if received == stop:
            return passes, door.save(), number + 1
    return passes, door.save(), PASSES


def joined(parts):
    """The passes of several runs: each continues the last pass of the one before, or is after it."""
    passes = {}
    for first, part in parts:
        for number, one in enumerate(part, start=first):
            passes[number] = passes.get(number, []) + one
    return [passes[number] for number in range(len(passes))]


@st.composite
def interruptions(draw, passes):
    """Numbers of items after which a run is stopped, often at the end of an epoch, and if after its loop."""
    total = sum(map(len, passes))
    ends = [sum(map(len, passes[: number + 1])) for number in range(len(passes))]
    stops = st.one_of(st.sampled_from(ends), st.integers(1, max(1, total)))
    chosen = sorted(draw(st.sets(stops, min_size=1, max_size=4)))
    return [(stop, draw(st.booleans()) and stop in ends) for stop in chosen if stop]


def check(data, build, how, *, saves_after_loops=True):
    whole, _, _ = loop(build(), how, None, 0, 10**9)
    assert len(whole) == PASSES
    assume(any(whole))
    state, first, done, parts = None, 0, 0, []
    for stop, after_loop in data.draw(interruptions(whole)):
        part, state, number = loop(build(), how, state, first, stop - done, after_loop=after_loop and saves_after_loops)
        parts.append((first, part))
        first, done = number, stop
    parts.append((first, loop(build(), how, state, first, 10**9)[0]))
    assert joined(parts) == whole


IN_PROCESS = {
    "dataset": Door,
    "Loader": lambda dataset: Door(me.Loader(dataset)),
    "in_step": lambda dataset: InStep(me.Loader(dataset)),
    "StatefulDataLoader": lambda dataset: Stateful(dataset, 0),
}


@pytest.mark.parametrize("door", IN_PROCESS)
@given(data=st.data(), world=worlds(), how=st.sampled_from(LOOPS), epochs=st.sampled_from([1, 1, 2]))
def test_doors_of_any_pipeline(door, data, world, how, epochs):
    """The end of an epoch inside a pass of two is no end of the pass; that of its last epoch is."""
    how = how if epochs == 1 else "without set_epoch"
    with tempfile.TemporaryDirectory() as folder:
        world.write(Path(folder))
        check(data, lambda: IN_PROCESS[door](world.build(Path(folder)).repeat(epochs)), how)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("world"), [5, 0, 7], ["stream"])


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("world"), [5, 7], ["parquet"])


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    path = tmp_path_factory.mktemp("chats") / "chats.parquet"
    write_parquet(path, [Chat(words=number % 4 + 1, images=number % 2, broken=number == 3) for number in range(11)])
    return path


def hugging_face(folder):
    return Door(me.SimpleArrowIterableDataset(sorted(map(str, folder.iterdir()))).shuffle(seed=3))


def structured(table, workers=0):
    loader, dataset = me.StructuredDataset.create_dataloader(
        table, "parquet", batch_size=3, shuffle=True, shuffle_seed=5, num_workers=workers, rank=0, num_ranks=1
    )
    return Door(loader, dataset)


def multimodal(chats, **options):
    options = {"processor": process, "on_error": "skip", "max_skipped": 1.0, "packing": False, **options}
    return me.MultiModalIterableDataset(chats, **options)


def filtered(folder):
    return me.read(folder).shuffle(1, window=20).lanes(2).filter(is_kept)


def in_batches(folder):
    return me.read(folder).shuffle(1, window=20).lanes(2).batch(3)


OTHERS = {
    "Hugging Face": lambda folder, table, chats: hugging_face(folder),
    "Hugging Face, StatefulDataLoader": lambda folder, table, chats: Stateful(hugging_face(folder).dataset, 0),
    "Structured": lambda folder, table, chats: structured(table),
    "multi-modal": lambda folder, table, chats: Door(multimodal(chats)),
    "multi-modal, Loader": lambda folder, table, chats: Door(me.Loader(multimodal(chats))),
}


@pytest.mark.parametrize("door", OTHERS)
@settings(max_examples=20)
@given(data=st.data(), how=st.sampled_from(LOOPS))
def test_other_doors(door, folder, table, chats, data, how):
    check(data, lambda: OTHERS[door](folder, table, chats), how)


WITH_WORKERS = {
    "Loader": lambda dataset, workers: Door(me.Loader(dataset, num_workers=workers)),
    "StatefulDataLoader": Stateful,
}


@pytest.mark.parametrize(("pipeline", "workers"), [(filtered, 2), (in_batches, 1)])
@pytest.mark.parametrize("door", WITH_WORKERS)
@few
@given(data=st.data(), how=st.sampled_from(LOOPS))
def test_workers(door, workers, pipeline, folder, data, how):
    # Under a foreign DataLoader with workers, only set_epoch says that a state was taken after the end of a loop.
    after_loops = door == "Loader" or how == "set_epoch"
    build = lambda: WITH_WORKERS[door](pipeline(folder), workers)  # noqa: E731
    check(data, build, how, saves_after_loops=after_loops)


class Ranks:
    """Ranks that take their steps together, each in its own thread, as processes with a group do."""

    def __init__(self, loaders, iterate, state=None):
        self.loaders, self.iterate = loaders, iterate
        self.barrier, self.values = threading.Barrier(len(loaders)), [False] * len(loaders)
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(state)

    def any_rank(self, value):
        rank = int(threading.current_thread().name)
        self.barrier.wait()
        self.values[rank] = value
        self.barrier.wait()
        return any(self.values)

    def run(self, first, stop):
        """The passes of each rank, until each has had this number of items; with the state of all ranks."""
        got, states, failed = [[] for _ in self.loaders], {}, []

        def train(rank):
            try:
                steps = count(1)
                for _ in range(first, PASSES):
                    got[rank].append([])
                    for batch in self.iterate(self.loaders[rank]):
                        got[rank][-1].append((ids([batch]), self.loaders[rank].is_padding))
                        if next(steps) == stop:
                            states[rank] = distributed.own_state(self.loaders[rank])
                            return
            except BaseException as error:
                failed.append(error)
                self.barrier.abort()

        with patch("midepoch.distributed._any_rank", self.any_rank):
            threads = [threading.Thread(target=train, args=(rank,), name=str(rank)) for rank in range(len(got))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if failed:
            raise failed[0]
        return got, me.merge_states(states.values()) if states else None


def check_ranks(data, build, iterate):
    """Stop ranks at steps, often at the last one of an epoch, and resume any number of them from one state."""

    def run(state, first, stop, ranks):
        return Ranks([build(ranks, rank) for rank in range(ranks)], iterate, state).run(first, stop)

    def rows(part):
        """The rows of each pass, over all ranks, without those that keep ranks even."""
        return [
            sorted(row for steps in one for batch, is_padding in steps if not is_padding for row in batch)
            for one in zip(*part, strict=True)
        ]

    whole = rows(run(None, 0, 10**9, 1)[0])
    state, first, parts = None, 0, []
    for _ in range(data.draw(st.integers(1, 3))):
        ranks = data.draw(st.integers(1, 3))
        left, _ = run(state, first, 10**9, ranks)
        steps = [len(one) for one in left[0]]
        assert [[len(one) for one in passes] for passes in left] == [steps] * ranks
        assume(any(steps))
        ends = {sum(steps[: number + 1]) for number in range(len(steps))} - {0}
        stop = data.draw(st.one_of(st.sampled_from(sorted(ends)), st.integers(1, sum(steps))))
        part, state = run(state, first, stop, ranks)
        parts.append((first, rows(part)))
        first += len(part[0]) - 1
    parts.append((first, rows(run(state, first, 10**9, data.draw(st.integers(1, 3)))[0])))
    assert [sorted(one) for one in joined(parts)] == whole


@settings(max_examples=20)
@given(data=st.data(), batch_size=st.integers(1, 2))
def test_ranks_in_step_with_merged_states(folder, data, batch_size):
    def build(ranks, rank):
        return me.Loader(filtered(folder).shard(ranks, rank), batch_size)

    check_ranks(data, build, distributed.in_step)


@given(data=st.data(), batch_size=st.integers(1, 5), lanes=st.integers(1, 6))
def test_ranks_that_are_padded(folder, data, batch_size, lanes):
    def build(ranks, rank):
        return me.Loader(me.read(folder).shuffle(2, window=5).lanes(lanes).shard(ranks, rank), batch_size, even="pad")

    check_ranks(data, build, iter)
