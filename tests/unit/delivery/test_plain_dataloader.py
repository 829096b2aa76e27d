"""What a dataset and its copies in workers know of each other. A copy of the object stands for a started worker."""

import copy

import pytest

from midepoch.checkpoint.state import State
from midepoch.delivery.position import SharedWithWorkers
from midepoch.errors import CheckpointMismatchError


@pytest.fixture
def shared():
    return SharedWithWorkers()


def test_a_worker_gets_no_epoch_if_none_was_set(shared):
    assert copy.copy(shared).enter() is None


def test_an_epoch_set_before_a_worker_starts_is_in_its_copy_already(shared):
    shared.set_epoch(3)
    assert copy.copy(shared).enter() is None


def test_running_workers_get_an_epoch_once_each(shared):
    workers = [copy.copy(shared) for _ in range(2)]
    shared.set_epoch(3)
    assert [worker.enter() for worker in workers] == [3, 3]
    assert [worker.enter() for worker in workers] == [None, None]
    shared.set_epoch(0)
    shared.set_epoch(7)
    assert [worker.enter() for worker in workers] == [7, 7]


def test_the_same_epoch_set_again_is_sent_again(shared):
    worker = copy.copy(shared)
    shared.set_epoch(3)
    worker.enter()
    shared.set_epoch(3)
    assert worker.enter() == 3


def test_the_main_process_knows_whether_workers_have_read(shared):
    worker = copy.copy(shared)
    assert not shared.have_read
    worker.enter()
    assert shared.have_read
    shared.set_epoch(1)
    assert not shared.have_read
    worker.enter()
    assert shared.have_read
    shared.state_loaded()
    assert not shared.have_read


def test_a_state_does_not_reach_running_workers_which_refuse_to_read(shared):
    running = copy.copy(shared)
    running.enter()
    shared.state_loaded()
    started_later = copy.copy(shared)
    assert started_later.enter() is None
    for _ in range(2):
        with pytest.raises(CheckpointMismatchError, match=r"persistent workers.*use midepoch\.Loader"):
            running.enter()


def test_a_state_and_then_an_epoch_do_not_reach_running_workers_either(shared):
    running = copy.copy(shared)
    shared.state_loaded()
    shared.set_epoch(5)
    with pytest.raises(CheckpointMismatchError):
        running.enter()


def test_a_repeated_start_is_found_once(shared):
    worker = copy.copy(shared)
    assert not worker.is_first_repeat(State())
    worker.finished(State())
    assert not worker.is_first_repeat(State(epoch=1))
    assert copy.copy(shared).is_first_repeat(State())
    assert not worker.is_first_repeat(State())


@pytest.mark.parametrize("choose", [lambda shared: shared.set_epoch(0), lambda shared: shared.state_loaded()])
def test_a_start_that_was_chosen_is_no_repeat(shared, choose):
    shared.finished(State())
    choose(shared)
    assert not shared.is_first_repeat(State())
