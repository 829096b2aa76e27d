"""What a loop waits for is measured, and nothing about its batches changes."""

import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from counted import write_files
from files import plain, write_numbers
from midepoch.delivery.metrics import Meter
from objects import put


class Clock:
    """A clock that moves only when a test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def dataset(tmp_path):
    return me.read([write_numbers(tmp_path / f"{number}.arrow", number * 20, number * 20 + 20) for number in range(3)])


def slow(batches, clock):
    """Batches that take two seconds each to make."""
    for batch in batches:
        clock.now += 2
        yield batch


def test_waiting_is_told_from_training(dataset):
    clock, loader = Clock(), me.Loader(dataset, batch_size=10)
    run = loader.position.begin(loader.plan)
    meter = Meter(run, clock)
    assert meter.metrics()["seconds"] == 0
    for bulk in meter.timed(slow(loader._batches(run), clock)):
        for _ in bulk:
            clock.now += 3
    figures = meter.metrics()
    assert figures["batches"] == 6
    assert figures["seconds"] == figures["waited"] + 6 * 3
    assert figures["waited_share"] == figures["waited"] / figures["seconds"]
    assert figures["batches_per_second"] == 6 / figures["seconds"]
    assert figures["rows_per_second"] == 60 / figures["seconds"]
    clock.now += 1000
    assert meter.metrics() == figures, "time after the end does not count"


def test_a_loader_counts_the_batches_of_its_last_loop(dataset):
    loader = me.Loader(dataset, batch_size=7)
    assert loader.metrics() == {}
    for number, _ in enumerate(loader, start=1):
        assert loader.metrics()["batches"] == number
    assert loader.metrics()["batches"] == 9
    batches = iter(loader)
    next(batches)
    loader.load_state_dict(loader.state_dict())
    assert sum(1 for _ in loader) == 8
    assert loader.metrics()["batches"] == 8
    assert pickle.loads(pickle.dumps(loader)).metrics() == {}


def half(row):
    return {"x": row["x"] // 2}


@pytest.mark.parametrize("workers", [0, 2])
def test_what_all_processes_did_is_counted(dataset, workers):
    loader = me.Loader(dataset.map(half), batch_size=10, num_workers=workers)
    assert len(list(loader)) == 6
    figures = loader.metrics()
    assert figures["rows_read"] == 60
    assert figures["read"] > 0
    assert figures["processed"] > figures["functions"] > 0
    assert (figures["transported"] > 0) == (workers > 0)
    assert (figures["transported"] > figures["received"] > 0) == (workers > 0)
    assert figures["received"] <= figures["waited"]
    assert figures["retries"] == figures["cache_hits"] == figures["cache_misses"] == 0
    assert all(isinstance(value, int | float) for value in figures.values())


@pytest.mark.parametrize("strategy", ["best_fit", "concat"])
@pytest.mark.parametrize("surveyed", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_packs_have_tokens_and_a_fill(tmp_path, surveyed, workers, strategy):
    write_files(tmp_path)
    dataset = me.read(tmp_path).pack(16, window=8, pad=0, strategy=strategy)
    loader = me.Loader(dataset.survey() if surveyed else dataset, num_workers=workers)
    packs = list(loader)
    figures = loader.metrics()
    tokens = sum(int(pack["cu_seqlens"][-1]) for pack in packs)
    assert figures["pack_fill"] == tokens / (16 * len(packs))
    assert figures["tokens_per_second"] == pytest.approx(tokens / figures["seconds"])


@pytest.mark.parametrize("counted", [False, True])
def test_mixtures_have_the_share_of_each_part(dataset, counted):
    parts = {"a": dataset, "b": dataset if counted else dataset.filter(lambda row: True)}
    loader = me.Loader(me.mix(parts, weights=[3, 1], stop="first", seed=1), batch_size=4)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    figures = loader.metrics()
    assert figures["share_a"] == 0.75
    assert figures["share_b"] == 0.25


def test_fetching_is_told_from_decoding(tmp_path, dataset):
    table = pa.table({"x": range(1000)})
    pq.write_table(table, tmp_path / "0.parquet", row_group_size=100)
    local = me.Loader(me.read(tmp_path / "0.parquet"), batch_size=10)
    list(local)
    assert local.metrics()["decoded"] > 0
    assert local.metrics()["fetched"] == 0
    put("metrics/0.parquet", (tmp_path / "0.parquet").read_bytes())
    stored = me.Loader(me.read("memory://metrics/0.parquet", index_dir=tmp_path / "index"), batch_size=10)
    assert [plain(batch["x"]) for batch in stored] == [plain(batch["x"]) for batch in local]
    assert stored.metrics()["decoded"] > 0
    assert stored.metrics()["fetched"] > 0
