"""Plans: which reader a process is, and when a loop ends."""

from dataclasses import replace
from itertools import product

import pytest

from midepoch.checkpoint.state import State
from midepoch.delivery import plan as plans
from midepoch.delivery.plan import Plan
from midepoch.delivery.session import Session
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
    assert (progress.reader, progress.session.assignment.readers, progress.workers) == (reader, readers, workers)
    assert progress.session.start.lanes == readers


def test_an_epoch_gets_the_lanes_and_mode_of_the_plan():
    start = plan(lanes=6, mode="file").begin(State(epoch=2)).session.start
    assert (start.epoch, start.lanes, start.mode) == (2, 6, "file")


def ends(epochs_per_loop, readers, *, epoch=0, begun=True, empty=False, over=False, requested=False):
    one = plan(epochs_per_loop=epochs_per_loop, ranks=readers, lanes=6)
    begun_at = Session(WORLD.pipeline(), WORLD.start(), 1)
    reached = begun_at.after(sum(begun_at.reader_items(0))) if over else WORLD.start()
    start = replace(reached, epoch=epoch) if begun else State(epoch=epoch)
    return one.ends_pass(start, one.begin(start), empty=empty, requested=requested)


@pytest.mark.parametrize("readers", [1, 2])
def test_a_loop_of_one_epoch_ends_after_any_items(readers):
    for begun, requested in product([True, False], repeat=2):
        assert ends(1, readers, begun=begun, requested=requested)


def test_a_resumed_epoch_that_is_finished_for_all_readers_is_no_epoch():
    assert not ends(1, 1, empty=True)
    assert not ends(1, 2, empty=True, over=True)


def test_a_reader_that_has_nothing_left_waits_for_the_others():
    assert ends(1, 2, empty=True, over=False)


def test_an_epoch_that_was_requested_is_not_passed_over():
    assert ends(1, 1, empty=True, requested=True)
    assert ends(1, 2, empty=True, over=True, requested=True)


def test_a_dataset_without_items_ends_its_loop():
    for epochs_per_loop, readers in product([1, 3, None], [1, 2]):
        assert ends(epochs_per_loop, readers, begun=False, empty=True, over=True)


def test_a_loop_of_several_epochs_ends_after_the_last_of_them():
    assert [ends(3, 1, epoch=epoch) for epoch in range(6)] == [False, False, True, False, False, True]
    assert not any(ends(None, 1, epoch=epoch) for epoch in range(6))


def test_a_loop_of_several_epochs_continues_after_a_finished_one():
    for epochs_per_loop, readers in product([3, None], [1, 2]):
        assert not ends(epochs_per_loop, readers, epoch=1, empty=True)
        assert not ends(epochs_per_loop, readers, epoch=1, empty=True, requested=True)
