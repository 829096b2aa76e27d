"""Plans: which reader a process is, and when a loop ends."""

from dataclasses import replace
from itertools import product

import pytest

from midepoch.checkpoint.state import State
from midepoch.delivery import plan as plans
from midepoch.delivery.plan import Plan
from simulation import MemoryWorld

WORLD = MemoryWorld(sizes=(4, 4, 4, 4, 4, 4))


def plan(**options):
    return Plan(pipeline=WORLD.pipeline(), **options)


@pytest.mark.parametrize(
    ("options", "worker", "reader", "readers", "workers"),
    [
        ({}, None, 0, 1, 1),
        ({"ranks": 3, "rank": 2}, None, 2, 3, 1),
        ({}, (1, 2), 1, 2, 2),
        ({"ranks": 3, "rank": 2}, (1, 2), 5, 6, 2),
        ({"ranks": 3, "rank": 1}, (0, 2), 1, 6, 2),
    ],
)
def test_worker_w_of_rank_r_is_reader_r_plus_ranks_times_w(monkeypatch, options, worker, reader, readers, workers):
    monkeypatch.setattr(plans, "torch_worker", lambda: worker)
    progress = plan(**options).begin(State())
    assert (progress.reader, progress.session.readers, progress.workers) == (reader, readers, workers)
    assert progress.session.start.lanes == readers


def test_an_epoch_gets_the_lanes_and_mode_of_the_plan():
    start = plan(lanes=6, mode="file").begin(State(epoch=2)).session.start
    assert (start.epoch, start.lanes, start.mode) == (2, 6, "file")


def ends(epochs_per_loop, *, epoch=0, begun=True, empty=False):
    start = replace(WORLD.start(), epoch=epoch) if begun else State(epoch=epoch)
    return plan(epochs_per_loop=epochs_per_loop).ends_pass(start, empty=empty)


@pytest.mark.parametrize(("begun", "empty"), [*product([True, False], repeat=2)])
def test_a_loop_of_one_epoch_ends_with_it_even_if_nothing_was_left(begun, empty):
    assert ends(1, begun=begun, empty=empty)


def test_a_dataset_without_items_ends_its_loop():
    for epochs_per_loop in (1, 3, None):
        assert ends(epochs_per_loop, begun=False, empty=True)


@pytest.mark.parametrize("empty", [False, True])
def test_a_loop_of_several_epochs_ends_after_the_last_of_them(empty):
    assert [ends(3, epoch=epoch, empty=empty) for epoch in range(6)] == [False, False, True, False, False, True]
    assert not any(ends(None, epoch=epoch, empty=empty) for epoch in range(6))
