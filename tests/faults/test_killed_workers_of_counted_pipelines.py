"""A worker that is killed inside a counted pipeline takes nothing with it, and the state of any rank restores all."""

import json
import logging
import os
import random
import signal
from itertools import islice

import numpy as np
import pytest
import torch.multiprocessing

import midepoch as me
from counted_pipelines import ids_of_packs, pipelines
from worlds import write_documents

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # torch reports the kill once more
]


@pytest.fixture
def build(tmp_path):
    # Documents of the first files are long, so that some lanes have many more packs than others.
    generator = np.random.default_rng(4)
    lengths = [*generator.integers(10, 30, 60), *generator.integers(0, 6, 90)]
    folder = write_documents(tmp_path / "data", [int(each) for each in lengths], block=10)
    return lambda name: pipelines(name, folder).survey(folder=tmp_path / "surveys").lanes(5)


def worker_pids():
    return {process.pid for process in torch.multiprocessing.active_children()}


@pytest.mark.parametrize("name", ["best_fit", "concat", "mixture"])
def test_E1_a_killed_worker_and_the_state_of_one_random_rank(build, name, monkeypatch):
    monkeypatch.setattr(logging.getLogger("midepoch"), "disabled", True)
    whole = list(me.Loader(build(name), collate_fn=ids_of_packs))
    options = {"even": None, "collate_fn": ids_of_packs}
    ranks = [me.Loader(build(name).shard(2, rank), num_workers=2, prefetch_factor=1, **options) for rank in range(2)]
    others = worker_pids()
    iterator = iter(ranks[1])
    killed = list(islice(iterator, 9))
    os.kill(min(worker_pids() - others), signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"killed|exited"):
        killed.extend(iterator)
    del iterator
    healthy = list(islice(ranks[0], len(killed)))
    got = [item for step in zip(healthy, killed, strict=True) for item in step]
    assert got == whole[: len(got)]
    assert len(got) < len(whole) - 6, "too little is left to prove anything"
    states = [json.loads(json.dumps(loader.state_dict())) for loader in ranks]
    assert states[0] == states[1]
    state = random.Random(name).choice(states)
    resumed = [me.Loader(build(name).shard(3, rank), num_workers=rank % 2, **options) for rank in range(3)]
    items = []
    for loader in resumed:
        loader.load_state_dict(state)
        items.append(list(loader))
    rest = [own[step] for step in range(max(map(len, items))) for own in items if step < len(own)]
    assert got + rest == whole
    ranks[1].load_state_dict(state)  # the loader whose worker was killed goes on too
    assert list(ranks[1]) == whole[len(got) + 1 :: 2]
