"""The position of an iteration: where loops start, where they end, and what moves it."""

from itertools import islice

import pytest

from midepoch.checkpoint.state import State
from midepoch.delivery import plan as plans
from midepoch.delivery import position as positions
from midepoch.delivery.plan import Plan
from midepoch.delivery.position import Position
from midepoch.delivery.reader import take_turns
from midepoch.delivery.workers import SharedWithWorkers
from midepoch.errors import CheckpointMismatchError, UnknownStateError
from simulation import MemoryWorld

ROWS = [(0, 0), (0, 1), (0, 2), (0, 3)]


def plan(sizes=(4,), dropped=None, **options):
    return Plan(pipeline=MemoryWorld(sizes=sizes, dropped=dropped).pipeline(), **options)


def run(position, plan):
    return position.run(plan, lambda progress: progress.follow(take_turns(progress)))


@pytest.fixture
def position():
    return Position(State())


@pytest.fixture
def in_worker(monkeypatch):
    """What runs after a call of this is run as by a worker, or, with None, in the main process."""

    def enter(worker=(0, 1)):
        for module in (positions, plans):
            monkeypatch.setattr(module, "torch_worker", lambda: worker)

    return enter


@pytest.mark.parametrize("dropped", [None, frozenset()], ids=["uniform", "filter"])
def test_the_state_moves_with_the_items_that_the_loop_receives(position, dropped):
    turns = []
    for _ in run(position, plan(dropped=dropped)):
        turns.append((position.state().epoch, position.state().turn))
    assert turns == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert position.state() == State(epoch=1)


def test_a_loop_after_one_that_was_left_continues_it(position):
    one = plan()
    assert list(islice(run(position, one), 1)) == ROWS[:1]
    assert list(islice(run(position, one), 2)) == ROWS[1:3]
    assert list(run(position, one)) == ROWS[3:]
    assert list(run(position, one)) == ROWS


def test_a_reader_that_leaves_a_loop_alone_stays_in_its_session():
    """A state of reader 0 of 2 would else begin a session in which the other reader is as far as this one."""
    position, one = Position(State()), plan((4, 4), frozenset(), ranks=2, lanes=2)
    list(islice(run(position, one), 1))
    session = position.progress(one).session
    list(islice(run(position, one), 1))
    assert position.progress(one).session is session
    part = position.state().reader_progress
    assert part is not None
    assert part.turns_taken == 2


def test_another_pipeline_starts_a_session_of_its_own(position):
    list(islice(run(position, plan()), 1))
    assert list(run(position, plan())) == ROWS[1:]


def test_loops_of_several_epochs_end_after_the_last(position):
    assert list(run(position, plan(passes=2))) == ROWS * 2
    assert position.state() == State(epoch=2)
    assert list(islice(run(position, plan(passes=None)), 10)) == (ROWS * 3)[:10]
    assert position.state().epoch == 4


def test_a_loop_over_nothing_ends(position):
    for passes in (1, 2, None):
        assert list(run(position, plan(sizes=(0,), passes=passes))) == []


def test_a_loaded_state_with_nothing_left_starts_the_next_epoch(position):
    one = plan()
    list(islice(run(position, one), 4))
    state = position.state_dict(one)
    resumed = Position(State())
    resumed.load_state_dict(one, state)
    assert resumed.state_dict(one) == state
    assert list(run(resumed, one)) == ROWS
    assert resumed.state().epoch == 2


def test_an_epoch_that_was_set_is_read_to_its_end_and_no_further(position):
    one = plan()
    list(islice(run(position, one), 4))
    position.set_epoch(0)
    assert list(run(position, one)) == []
    assert list(run(position, one)) == ROWS
    assert position.state() == State(epoch=2)


def test_an_epoch_that_was_set_is_forgotten_after_its_loop(position):
    one = plan()
    list(islice(run(position, one), 4))
    finished = position.state_dict(one)
    position.set_epoch(0)
    list(run(position, one))
    position.load_state_dict(one, finished)
    assert list(run(position, one)) == ROWS


def test_set_epoch_moves_to_the_beginning_of_another_epoch_only(position):
    one = plan()
    list(islice(run(position, one), 1))
    position.set_epoch(0)
    assert list(islice(run(position, one), 1)) == ROWS[1:2]
    position.set_epoch(5)
    assert position.state() == State(epoch=5)
    assert list(run(position, one)) == ROWS
    for wrong, error in ((-1, ValueError), (1.5, TypeError), ("1", TypeError)):
        with pytest.raises(error, match="epoch"):
            position.set_epoch(wrong)


def test_a_loop_under_way_ends_when_the_position_is_moved(position):
    items = run(position, plan())
    next(items)
    position.set_epoch(3)
    assert list(items) == ROWS[1:]
    assert position.state() == State(epoch=3)


def test_a_state_is_not_loaded_while_a_loop_is_running(position):
    one = plan()
    state = position.state_dict(one)
    items = run(position, one)
    next(items)
    with pytest.raises(CheckpointMismatchError, match=r"too late.*Load the state before the loop"):
        position.load_state_dict(one, state)
    assert next(items) == ROWS[1]
    del items
    position.load_state_dict(one, state)
    assert list(run(position, one)) == ROWS


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 99},
        {"epoch": -1},
        {"fingerprint": None},
        {"cursors": [[1, 5]]},
        {"cursors": [[1, [1, 1]]]},
        {"part": {"readers": 2, "workers": 2, "items": 1}},
    ],
    ids=str,
)
def test_a_state_that_does_not_fit_changes_nothing(position, damage):
    one = plan()
    list(islice(run(position, one), 2))
    state = position.state_dict(one)
    with pytest.raises(CheckpointMismatchError):
        position.load_state_dict(one, {**state, **damage})
    assert position.state_dict(one) == state
    assert list(run(position, one)) == ROWS[2:]


def test_states_are_unknown_once_workers_have_read(position, in_worker):
    one = plan()
    state = position.state_dict(one)
    position.workers = SharedWithWorkers()
    in_worker()
    position.enter_worker()
    assert position.state_dict(one) == state
    in_worker(None)
    with pytest.raises(UnknownStateError, match=r"Use midepoch\.Loader"):
        position.state_dict(one)
    position.set_epoch(0)
    assert position.state_dict(one) == state


def test_a_worker_begins_its_epoch_again_in_every_loop(position, in_worker):
    one = plan()
    in_worker()
    for _ in range(2):
        position.enter_worker()
        assert list(islice(run(position, one), 3)) == ROWS[:3]
        assert position.state().turn == 3
    position.enter_worker()
    assert list(run(position, one)) == ROWS
    position.enter_worker()
    assert position.state().epoch == 0


def test_a_worker_goes_to_the_epoch_that_the_main_process_set(position, in_worker):
    position.workers = SharedWithWorkers()
    position.workers._numbers[:2] = [1, 6]  # as set_epoch(6) in the main process leaves it
    in_worker()
    position.enter_worker()
    assert (position.state(), position.requested_epoch) == (State(epoch=6), 6)


def test_a_loaded_state_reaches_a_worker_that_starts_later_only(position, in_worker):
    one = plan()
    list(islice(run(position, one), 2))
    state = position.state_dict(one)
    started_later, running = Position(State()), Position(State())
    started_later.load_state_dict(one, state)
    running.workers = SharedWithWorkers()
    running.workers._numbers[2] = 1  # as load_state_dict in the main process leaves it
    in_worker()
    started_later.enter_worker()
    assert list(run(started_later, one)) == ROWS[2:]
    running.enter_worker()
    with pytest.raises(CheckpointMismatchError, match="persistent workers"):
        next(run(running, one))


def test_the_main_process_is_no_worker(position):
    list(islice(run(position, plan()), 2))
    position.workers = SharedWithWorkers()
    position.enter_worker()
    assert position.state().turn == 2
    assert not position.workers.have_read
