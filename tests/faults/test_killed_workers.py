"""A worker that is killed is named and takes nothing with it: the state resumes exactly, on any ranks and workers."""

import logging
import os
import re
import signal
from contextlib import suppress
from itertools import islice
from multiprocessing import active_children

import numpy as np
import pytest

import midepoch as me
from chats import Chat, process, write_parquet
from counted_pipelines import ids_of_packs, pipelines
from files import plain
from forking import children
from worlds import as_arrays, ids, is_kept, through_json, write_documents, write_files

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # torch reports the kill once more
]
NAMED = r"worker \d of 2 \(pid \d+, exit code -9, SIGKILL\) died. Nothing is lost"


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def kill_after(loader, items):
    """What a loop receives of which a worker is killed after so many items, and the error that ends it."""
    others, got = children(), []
    iterator = iter(loader)
    got += islice(iterator, items)
    inside = [cursor[-1] for _, cursor in loader.state_dict()["cursors"] if isinstance(cursor, list)]
    assert not inside or any(inside), "no lane stands inside a window: the test would prove nothing"
    os.kill(min(children() - others), signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"killed|exited") as caught:
        got.extend(iterator)
    return got, caught.value


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    # Documents of the first files are long, so that some lanes have many more packs than others.
    generator = np.random.default_rng(4)
    lengths = [*generator.integers(10, 30, 60), *generator.integers(0, 6, 90)]
    return write_documents(tmp_path_factory.mktemp("world") / "data", [int(each) for each in lengths], block=10)


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    rows = [Chat(words=number % 9 + 1, images=number % 3, broken=number % 13 == 7) for number in range(60)]
    return write_parquet(tmp_path_factory.mktemp("chats") / "data", rows, files=3, block=6)


def packed(documents, strategy):
    rows = me.read(documents).shuffle(1, window=20).map(as_arrays)
    return rows.pack(32, strategy=strategy, window=16, eos=7, pad=9).with_format("numpy")


def of_chats(chats):
    options = {"packing": True, "packing_length": 40, "packing_window": 8, "on_error": "skip"}
    return me.MultiModalIterableDataset(chats, processor=process, **options)


PIPELINES = {
    "filter": lambda documents, chats: me.read(documents).shuffle(1, window=20).filter(is_kept),
    "windows": lambda documents, chats: packed(documents, "best_fit"),
    "stream": lambda documents, chats: packed(documents, "concat"),
    "chats": lambda documents, chats: of_chats(chats),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_C1_C4_a_killed_worker_is_named_and_takes_nothing_with_it(documents, chats, name):
    def build():
        return PIPELINES[name](documents, chats).lanes(4)

    whole = plain(list(build()))
    loader = me.Loader(
        build(), num_workers=2, prefetch_factor=1, persistent_workers=name == "filter", worker_restarts=0
    )
    got, error = kill_after(loader, 5)
    assert re.search(NAMED, "\n".join([str(error), *error.__notes__]))
    state = through_json(loader.state_dict())
    resumed = me.Loader(build(), num_workers=3)
    for other in (resumed, loader):
        other.load_state_dict(state)
        assert plain(got + list(other)) == whole


@pytest.mark.parametrize("name", ["best_fit", "concat", "mixture"])
def test_E1_a_killed_worker_and_the_state_of_one_rank(documents, tmp_path, name):
    def build(ranks, rank, workers):
        dataset = pipelines(name, documents).survey(folder=tmp_path / "surveys").lanes(5).shard(ranks, rank)
        ahead = 1 if workers else None
        return me.Loader(
            dataset,
            num_workers=workers,
            prefetch_factor=ahead,
            even=None,
            collate_fn=ids_of_packs,
            worker_restarts=0,
        )

    whole = list(build(1, 0, 0))
    ranks = [build(2, rank, 2) for rank in range(2)]
    killed, _ = kill_after(ranks[1], 9)
    healthy = list(islice(ranks[0], len(killed)))
    got = [item for step in zip(healthy, killed, strict=True) for item in step]
    assert got == whole[: len(got)]
    assert len(got) < len(whole) - 6, "too little is left to prove anything"
    states = [through_json(loader.state_dict()) for loader in ranks]
    assert states[0] == states[1]
    items = []
    for loader in (build(3, rank, rank % 2) for rank in range(3)):
        loader.load_state_dict(states[1])
        items.append(list(loader))
    rest = [own[step] for step in range(max(map(len, items))) for own in items if step < len(own)]
    assert got + rest == whole
    ranks[1].load_state_dict(states[0])  # the loader whose worker was killed goes on too
    assert list(ranks[1]) == whole[len(got) + 1 :: 2]


def test_a_persistent_worker_that_died_between_two_loops_is_named(tmp_path):
    dataset = me.read(write_files(tmp_path, [20, 33])).shuffle(1)
    loader = me.Loader(dataset, num_workers=2, persistent_workers=True, worker_restarts=0)
    others, whole = set(active_children()), ids(loader)
    worker = next(iter(set(active_children()) - others))
    with suppress(RuntimeError):  # torch raises as soon as it notices
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    with pytest.raises(RuntimeError) as caught:
        list(loader)
    assert re.search(NAMED, caught.value.__notes__[0])
    assert loader.epoch == 1
    loader.set_epoch(0)
    assert ids(loader) == whole
