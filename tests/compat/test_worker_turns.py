"""Workers that take unequally long: the batches, their order, their errors and every state are those of one process."""

import random
import time
from itertools import islice

import numpy as np
import pytest
from torch.utils.data import get_worker_info

import midepoch as me
from files import plain as as_python
from worlds import ids, write_files

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("turns") / "data", [50, 0, 7, 63], ["stream", "file"])


def unequal(row):
    """Takes 1 ms, and much longer in the first worker. It says who made the row."""
    info = get_worker_info()
    if info is not None:
        time.sleep(0.012 if info.id == 0 else 0.001)
    return {"by": -1 if info is None else info.id}


def unequal_batch(rows):
    return {"by": [unequal({})["by"] for _ in rows["id"]]}


def augmented(row, rng):
    return {**unequal(row), "noise": int(rng.integers(1 << 30))}


def is_odd(row):
    return row["id"] % 2 == 1


def values(batches):
    return [{name: as_python(value) for name, value in batch.items() if name != "by"} for batch in batches]


@pytest.mark.parametrize(("lanes", "workers", "together"), [(1, 2, 0), (2, 3, 20), (5, 2, 0)])
def test_stopped_at_any_batch_it_continues_there_on_other_workers(folder, lanes, workers, together):
    options = {"batched": True, "batch_size": together, "one_to_one": True} if together else {}
    dataset = me.read(folder).shuffle(3).lanes(lanes).map(unequal_batch if together else unequal, **options)
    plain = values(me.Loader(dataset, batch_size=8))
    for cut in range(0, len(plain), 6):
        loader = me.Loader(dataset, batch_size=8, num_workers=workers, digest=True)
        batches = iter(loader)
        first = values(islice(batches, cut))
        state = loader.state_dict()
        del batches
        resumed = me.Loader(dataset, batch_size=8, num_workers=5 - workers, digest=True)
        resumed.load_state_dict(state)
        assert first + values(resumed) == plain
        resumed.check_digest()


PIPELINES = {
    "batched map": lambda rows: rows.map(unequal_batch, batched=True, batch_size=7, one_to_one=True),
    "whole lane": lambda rows: rows.map(unequal_batch, batched=True, batch_size=None, one_to_one=True),
    "rng": lambda rows: rows.map(augmented, with_rng=True),
    "surveyed filter": lambda rows: rows.filter(is_odd).map(unequal).survey(),
    "mixture": lambda rows: me.mix([rows.map(unequal), rows.map(unequal)], weights=[2, 1], seed=1),
    "numpy": lambda rows: rows.with_format("numpy").map(unequal),
}


@pytest.mark.parametrize("kind", PIPELINES)
def test_counted_pipelines_of_all_kinds(folder, tmp_path, kind):
    dataset = PIPELINES[kind](me.read(folder, index_dir=tmp_path).shuffle(2)).lanes(2)
    plain, loader = (
        me.Loader(dataset, batch_size=3),
        me.Loader(dataset, batch_size=3, num_workers=3),
    )
    for _ in range(2):
        expected, batches = values(plain), list(loader)
        assert [ids([batch]) for batch in values(batches)] == [ids([batch]) for batch in expected]
        if kind == "rng":
            assert values(batches) == expected
    assert loader.state_dict() == plain.state_dict()


def fails_late(row):
    if row["id"] == 90:
        raise ValueError("row 90 is broken")
    return unequal(row)


@pytest.mark.parametrize("prefetch", [None, 1])
def test_an_error_comes_in_its_turn(folder, prefetch):
    dataset = me.read(folder).lanes(1).map(fails_late)
    loader = me.Loader(dataset, batch_size=4, num_workers=3, prefetch_factor=prefetch)
    got = []
    with pytest.raises(ValueError, match="row 90 is broken"):
        got.extend(ids([batch]) for batch in loader)
    assert [one for batch in got for one in batch] == list(range(88))


def broken_start(worker):
    if worker == 1:
        raise ValueError("worker 1 cannot start")


def test_a_worker_that_cannot_start_is_not_passed_over(folder):
    dataset = me.read(folder).map(unequal)
    loader = me.Loader(dataset, batch_size=4, num_workers=3, worker_init_fn=broken_start)
    with pytest.raises(ValueError, match="worker 1 cannot start"):
        list(loader)


def noisy(row):
    return {"pixels": np.random.default_rng(row["id"]).integers(0, 255, 400_000, np.uint8), **unequal(row)}


def test_large_batches_of_which_few_fit_do_not_block_each_other(folder):
    dataset = me.read(folder).shuffle(1).lanes(2).map(noisy)
    plain = me.Loader(dataset, batch_size=40)
    loader = me.Loader(dataset, batch_size=40, num_workers=4)
    for mine, theirs in zip(loader, plain, strict=True):
        assert mine["id"].equal(theirs["id"])
        assert all(map(np.array_equal, mine["pixels"], theirs["pixels"]))


def test_random_pipelines_against_one_process(folder):
    rng = random.Random(5)
    for _ in range(5):
        lanes, size, workers = rng.randint(1, 6), rng.randint(1, 9), rng.randint(2, 4)
        dataset = me.read(folder).shuffle(rng.randint(0, 9), level=rng.choice(["block", "row"])).lanes(lanes)
        together = rng.choice([0, 0, 2, 5, 12, 30])
        options = {"batched": True, "batch_size": together, "one_to_one": True} if together else {}
        dataset = dataset.map(unequal_batch if together else unequal, **options)
        drop = rng.random() < 0.5
        plain = values(me.Loader(dataset, batch_size=size, drop_last=drop))
        shards = [dataset.shard(2, rank) for rank in range(2)]
        loaders = [
            me.Loader(shard, batch_size=size, drop_last=drop, num_workers=workers, even=None) for shard in shards
        ]
        of_ranks = [values(loader) for loader in loaders]
        assert [of_ranks[number % 2][number // 2] for number in range(len(plain))] == plain
