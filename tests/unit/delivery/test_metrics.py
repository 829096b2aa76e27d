"""What a loop waits for is measured, and nothing about its batches changes."""

import gc
import pickle

import pytest

import midepoch as me
from files import write_numbers
from midepoch.delivery.metrics import Meter


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
    run = loader.start_point.begin(loader.plan)
    meter = Meter(run, clock)
    assert meter.metrics()["seconds"] == 0
    for bulk in meter.timed(slow(loader.batches(run), clock)):
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


def test_epochs_of_one_loop_add_up_and_rows_are_unknown_where_they_vary(dataset):
    loader = me.Loader(dataset.filter(lambda row: row["x"] % 2 == 0).repeat(2), batch_size=7)
    assert sum(1 for _ in loader) == 10
    assert loader.metrics()["batches"] == 10
    assert "rows_per_second" not in loader.metrics()


def test_a_loop_that_is_left_is_closed_as_before(dataset):
    loader = me.Loader(dataset, batch_size=7)
    batches = iter(loader)
    next(batches)
    del batches
    gc.collect()
    seconds = loader.metrics()["seconds"]
    assert loader.metrics()["seconds"] == seconds
    assert loader.state_dict()["turn"] == 1
