"""Workers that make batches in place of slower ones: the batches, their order and every state stay the same."""

import multiprocessing
import os
import random
import signal
import time
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest
from torch.utils.data import get_worker_info

import midepoch as me
from files import plain as as_python
from midepoch.workers import taking
from worlds import ids, write_files

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]
ROWS = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("stealing") / "data", [50, 0, 7, 63], ["stream", "file"])


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


MADE_BY_OTHERS = multiprocessing.get_context("fork").Value("i", 0)
PATIENCE_SECONDS = 60


def patient(row):
    """In the first of three workers it waits until the others have made more rows than their own."""
    info = get_worker_info()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while info is not None and info.id == 0 and MADE_BY_OTHERS.value <= ROWS * 3 // 4 and time.monotonic() < deadline:
        time.sleep(0.001)
    if info is not None and info.id:
        time.sleep(0.001)
        with MADE_BY_OTHERS.get_lock():
            MADE_BY_OTHERS.value += 1
    return {"by": -1 if info is None else info.id}


def patiently_augmented(row, rng):
    return {**patient(row), "noise": int(rng.integers(1 << 30))}


@pytest.fixture
def nobody_waited(monkeypatch):
    """On a busy machine to open rows may take long, and then less is stolen."""
    monkeypatch.setattr(taking, "OPENING_PART", 1000)
    MADE_BY_OTHERS.value = 0


def stolen(batches, workers):
    """The turns that were not made by the worker to which they belong."""
    return [number for number, batch in enumerate(batches) if batch["by"][0] != number % workers]


def values(batches):
    return [{name: as_python(value) for name, value in batch.items() if name != "by"} for batch in batches]


def test_a_slow_worker_makes_fewer_batches_and_the_order_is_the_same(folder, nobody_waited):
    dataset = me.read(folder).shuffle(1).lanes(3).map(patient)
    plain = list(me.Loader(dataset, batch_size=4))
    batches = list(me.Loader(dataset, batch_size=4, num_workers=3, work_stealing=True))
    assert values(batches) == values(plain)
    assert len(stolen(batches, 3)) >= ROWS // 4 // 12
    fixed = list(me.Loader(dataset, batch_size=4, num_workers=3))
    assert values(fixed) == values(plain)
    assert stolen(fixed, 3) == [], "by default a function of the user is called by the same worker every time"


@pytest.mark.parametrize("together", [0, 20])
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_stopped_at_any_batch_it_continues_there_on_other_workers(folder, lanes, workers, together):
    options = {"batched": True, "batch_size": together, "one_to_one": True} if together else {}
    dataset = me.read(folder).shuffle(3).lanes(lanes).map(unequal_batch if together else unequal, **options)
    plain = values(me.Loader(dataset, batch_size=8))
    for cut in range(0, len(plain), 4):
        loader = me.Loader(dataset, batch_size=8, num_workers=workers, work_stealing=True, digest=True)
        batches = iter(loader)
        first = values(islice(batches, cut))
        state = loader.state_dict()
        del batches
        resumed = me.Loader(dataset, batch_size=8, num_workers=5 - workers, work_stealing=True, digest=True)
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
        me.Loader(dataset, batch_size=3, num_workers=3, work_stealing=True),
    )
    for _ in range(2):
        expected, batches = values(plain), list(loader)
        assert [ids([batch]) for batch in values(batches)] == [ids([batch]) for batch in expected]
        if kind == "rng":
            assert values(batches) == expected
    assert loader.state_dict() == plain.state_dict()


CALLS = multiprocessing.get_context("fork").Value("i", 0)
TIMES_MADE = multiprocessing.get_context("fork").Array("i", ROWS)


def patient_batch(rows):
    """The same as ``patient`` for many rows, with any number of workers. It counts how often each row is processed."""
    info = get_worker_info()
    with CALLS.get_lock():
        CALLS.value += 1
        for row in rows["id"]:
            TIMES_MADE[row] += 1
    deadline = time.monotonic() + PATIENCE_SECONDS
    while info.id == 0 and MADE_BY_OTHERS.value <= share_of_others(info) and time.monotonic() < deadline:
        time.sleep(0.001)
    if info.id:
        time.sleep(0.001 * len(rows["id"]))
        with MADE_BY_OTHERS.get_lock():
            MADE_BY_OTHERS.value += len(rows["id"])
    return {"tokens": [[int(row)] * (3 + row % 5) for row in rows["id"]]}


def share_of_others(info):
    return ROWS - ROWS // info.num_workers


def surveyed_batch(rows):
    return {"tokens": [[1] * (3 + row % 5) for row in rows["id"]]} if get_worker_info() is None else patient_batch(rows)


def unchanged(row):
    return {}


def unchanged_batch(rows):
    return {}


def together(rows, size, function=patient_batch):
    return rows.map(function, batched=True, batch_size=size, one_to_one=True)


TOGETHER = {
    "python": lambda rows: together(rows, 8),
    "python, one by one after it": lambda rows: together(rows, 8).map(unchanged),
    "numpy": lambda rows: together(rows.with_format("numpy"), 8),
    "two functions": lambda rows: together(together(rows, 8), 3, unchanged_batch),
    "surveyed filter": lambda rows: together(rows.filter(is_any), 8).survey(),
    "sizes that do not fit": lambda rows: together(rows, 10).map(unchanged),
    "mixture": lambda rows: me.mix([together(rows.take(60), 4), together(rows.skip(60), 4)], [1, 1], stop="all"),
    "packs": lambda rows: together(rows, 8, surveyed_batch).pack(8, column="tokens", window=30).survey(),
    "stream": lambda rows: together(rows, 8, surveyed_batch).pack(8, column="tokens", strategy="concat").survey(),
}


def is_any(row):
    return True


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("kind", TOGETHER)
def test_rows_that_are_processed_together_are_processed_once(folder, tmp_path, nobody_waited, kind, workers, lanes):
    dataset = TOGETHER[kind](me.read(folder, index_dir=tmp_path).shuffle(1)).lanes(lanes)
    calls, times_made, batches = [], [], []
    for work_stealing in (False, True):
        CALLS.value, TIMES_MADE[:] = 0, [0] * ROWS
        MADE_BY_OTHERS.value = 0 if work_stealing else ROWS
        loader = me.Loader(dataset, batch_size=4, num_workers=workers, work_stealing=work_stealing)
        batches.append(list(map(repr, loader)))
        calls.append(CALLS.value)
        times_made.append(TIMES_MADE[:])
    assert batches[0] == batches[1]
    assert MADE_BY_OTHERS.value > ROWS - ROWS // workers, "others have made rows of the first worker"
    if kind != "stream":
        assert times_made == [[1] * ROWS] * 2
    else:  # two workers need a document that is in two packs
        assert sum(times_made[1]) <= sum(times_made[0]) + lanes * calls[1]
    if kind in ("python", "python, one by one after it", "numpy", "two functions", "surveyed filter"):
        assert calls[0] == calls[1]
    elif kind == "sizes that do not fit":
        assert calls[1] <= calls[0] * 10 // 8 + lanes * workers


def test_it_is_on_by_default_where_no_function_can_notice(folder, nobody_waited):
    rows = me.read(folder).shuffle(1).lanes(3)
    rng = me.Loader(rows.map(patiently_augmented, with_rng=True), batch_size=4, num_workers=3)
    plain = list(me.Loader(rows.map(patiently_augmented, with_rng=True), batch_size=4))
    batches = list(rng)
    assert values(batches) == values(plain)
    assert stolen(batches, 3)
    off = list(
        me.Loader(rows.map(patiently_augmented, with_rng=True), batch_size=4, num_workers=3, work_stealing=False)
    )
    assert (values(off), stolen(off, 3)) == (values(plain), [])


def test_it_needs_a_pipeline_that_is_counted(folder):
    with pytest.raises(ValueError, match=r"work_stealing=True needs.*known\. .*survey"):
        me.Loader(me.read(folder).filter(is_odd), num_workers=2, work_stealing=True)
    assert len(list(me.Loader(me.read(folder).filter(is_odd), num_workers=2))) == ROWS // 2
    with pytest.raises(ValueError, match="work_stealing is 'auto'; it can be True, False or None"):
        me.Loader(me.read(folder), work_stealing="auto")


def fails_late(row):
    if row["id"] == 90:
        raise ValueError("row 90 is broken")
    return unequal(row)


@pytest.mark.parametrize("prefetch", [None, 1, 3])
def test_an_error_comes_in_its_turn(folder, prefetch):
    dataset = me.read(folder).lanes(1).map(fails_late)
    loader = me.Loader(dataset, batch_size=4, num_workers=3, work_stealing=True, prefetch_factor=prefetch)
    got = []
    with pytest.raises(ValueError, match="row 90 is broken"):
        got.extend(ids([batch]) for batch in loader)
    assert [one for batch in got for one in batch] == list(range(88))


class Unreadable:
    def __reduce__(self):
        return unreadable, ()


def unreadable():
    raise ValueError("row 90 cannot be read")


def unreadable_late(row):
    return {"value": Unreadable() if row["id"] == 90 else 0}


@pytest.mark.parametrize("work_stealing", [False, True])
def test_an_item_that_cannot_be_read_raises_in_its_turn(folder, work_stealing):
    dataset = me.read(folder).lanes(1).map(unreadable_late)
    loader = me.Loader(dataset, batch_size=4, num_workers=3, work_stealing=work_stealing)
    got = []
    with pytest.raises(ValueError, match="row 90 cannot be read"):
        got.extend(ids([batch]) for batch in loader)
    assert [one for batch in got for one in batch] == list(range(88))
    assert loader.state_dict()["turn"] == len(got)


def broken_start(worker):
    if worker == 1:
        raise ValueError("worker 1 cannot start")


def test_a_worker_that_cannot_start_is_not_passed_over(folder):
    dataset = me.read(folder).map(unequal)
    loader = me.Loader(dataset, batch_size=4, num_workers=3, work_stealing=True, worker_init_fn=broken_start)
    with pytest.raises(ValueError, match="worker 1 cannot start"):
        list(loader)


def kills_one(row):
    if row["id"] == 60:
        os.kill(os.getpid(), signal.SIGKILL)
    return unequal(row)


def test_after_a_killed_worker_the_run_continues_from_the_state(folder):
    rows = me.read(folder).lanes(2)
    loader, got = me.Loader(rows.map(kills_one), batch_size=4, num_workers=3, work_stealing=True), []
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        got.extend(ids([batch]) for batch in loader)
    assert len(got) < ROWS // 4
    state = loader.state_dict()
    resumed = me.Loader(rows.map(kills_one), batch_size=4)
    resumed.load_state_dict(state)
    plain = [ids([batch]) for batch in me.Loader(rows, batch_size=4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "kill", lambda *_: None)
        assert got + [ids([batch]) for batch in resumed] == plain


def test_workers_that_stay_and_loops_that_are_left(folder):
    dataset = me.read(folder).shuffle(4).lanes(3).map(unequal)
    loader = me.Loader(dataset, batch_size=4, num_workers=3, work_stealing=True, persistent_workers=True)
    plain = me.Loader(dataset, batch_size=4)
    for epoch in range(3):
        plain.set_epoch(epoch)
        expected = values(plain)
        for cut in (1, 5):
            loader.set_epoch(epoch)
            batches = iter(loader)
            assert values(islice(batches, cut)) == expected[:cut]
            del batches
            loader.load_state_dict(loader.state_dict())
            assert values(loader) == expected[cut:]
    loader.close()


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"prefetch_factor": 1}, {"multiprocessing_context": "spawn"}])
def test_however_batches_are_sent(folder, options):
    dataset = me.read(folder).with_format("torch").shuffle(4).lanes(3).map(unequal)
    plain = [ids([batch]) for batch in me.Loader(dataset, batch_size=4)]
    loader = me.Loader(dataset, batch_size=4, num_workers=2, work_stealing=True, **options)
    assert [ids([batch]) for batch in loader] == plain


def noisy(row):
    return {"pixels": np.random.default_rng(row["id"]).integers(0, 255, 400_000, np.uint8), **unequal(row)}


def test_large_batches_of_which_few_fit_do_not_block_each_other(folder):
    dataset = me.read(folder).shuffle(1).lanes(2).map(noisy)
    plain = me.Loader(dataset, batch_size=40)
    loader = me.Loader(dataset, batch_size=40, num_workers=4, work_stealing=True)
    for mine, theirs in zip(loader, plain, strict=True):
        assert mine["id"].equal(theirs["id"])
        assert all(map(np.array_equal, mine["pixels"], theirs["pixels"]))


@pytest.mark.parametrize("begins_with_arrow", [False, True])
def test_parquet_is_decoded_by_the_worker_to_which_it_belongs(tmp_path, begins_with_arrow):
    table = pa.table({"id": range(ROWS)})
    pa.parquet.write_table(table.slice(9), tmp_path / "rows.parquet", row_group_size=10)
    if begins_with_arrow:
        with pa.ipc.new_stream(tmp_path / "first.arrow", table.schema) as stream:
            stream.write_table(table.slice(0, 9))
    batches = list(me.Loader(me.read(tmp_path).map(unequal), batch_size=4, num_workers=2, work_stealing=True))
    assert sorted(ids(batches)) == list(range(0 if begins_with_arrow else 9, ROWS))
    assert stolen(batches, 2) == []


def test_random_pipelines_against_one_process(folder):
    rng = random.Random(5)
    for _ in range(12):
        lanes, size, workers = rng.randint(1, 6), rng.randint(1, 9), rng.randint(2, 4)
        dataset = me.read(folder).shuffle(rng.randint(0, 9), level=rng.choice(["block", "row"])).lanes(lanes)
        together = rng.choice([0, 0, 2, 5, 12, 30])
        options = {"batched": True, "batch_size": together, "one_to_one": True} if together else {}
        dataset = dataset.map(unequal_batch if together else unequal, **options)
        drop = rng.random() < 0.5
        plain = values(me.Loader(dataset, batch_size=size, drop_last=drop))
        shards = [dataset.shard(2, rank) for rank in range(2)]
        loaders = [
            me.Loader(shard, batch_size=size, drop_last=drop, num_workers=workers, work_stealing=True, even=None)
            for shard in shards
        ]
        of_ranks = [values(loader) for loader in loaders]
        assert [of_ranks[number % 2][number // 2] for number in range(len(plain))] == plain


def joined(items):
    return items


@pytest.mark.parametrize(
    ("dataset", "options", "steals"),
    [
        (lambda rows: rows, {}, False),
        (lambda rows: rows.map(unequal), {}, False),
        (lambda rows: rows.map(augmented, with_rng=True), {}, True),
        (lambda rows: rows.map(augmented, with_rng=True), {"collate_fn": joined}, False),
        (lambda rows: rows.map(augmented, with_rng=True).map(unequal), {}, False),
        (lambda rows: rows.map(augmented, with_rng=True).filter(is_odd), {}, False),
        (lambda rows: me.mix([rows, rows.map(augmented, with_rng=True)], weights=[1, 1]), {}, True),
        (lambda rows: me.mix([rows.map(unequal), rows.map(augmented, with_rng=True)], weights=[1, 1]), {}, False),
        (lambda rows: rows.map(unequal), {"work_stealing": True}, True),
        (lambda rows: rows.map(augmented, with_rng=True), {"work_stealing": False}, False),
    ],
)
def test_who_steals_unless_the_user_says(folder, dataset, options, steals):
    loader = me.Loader(dataset(me.read(folder)), batch_size=4, num_workers=2, **options)
    assert loader._steals_work is steals
