"""The start point, and passes that are independent of each other."""

import gc
import weakref
from dataclasses import replace
from itertools import islice

import pytest

from midepoch.checkpoint.lanes import LanePosition
from midepoch.checkpoint.state import State, signed
from midepoch.delivery import passes
from midepoch.delivery import plan as plans
from midepoch.delivery import position as start_points
from midepoch.delivery.passes import PassIterator
from midepoch.delivery.plan import Plan
from midepoch.delivery.position import Position, SharedWithWorkers
from midepoch.delivery.reader import take_turns
from midepoch.errors import CheckpointMismatchError, StaleIteratorError, UnknownStateError
from simulation import MemoryWorld

ROWS = [(0, 0), (0, 1), (0, 2), (0, 3)]


def plan(sizes=(4,), dropped=None, **options):
    return Plan(pipeline=MemoryWorld(sizes=sizes, dropped=dropped).pipeline(), **options)


def read(run):
    with run:
        for progress in run.epochs():
            yield from run.deliver(take_turns(progress))


def describe(run):
    return run.state().to_dict(run.plan.pipeline.fingerprint)


def start(start_point, plan):
    """An iterator, as datasets and Loaders make it."""
    run = start_point.begin(plan)
    return PassIterator.over(run, read(run), describe)


def state_of(start_point, plan):
    start_point.check_known()
    return describe(start_point.latest(plan))


def at(start_point, plan):
    """The epoch and the turn of the state."""
    state = state_of(start_point, plan)
    return state["epoch"], state["turn"]


@pytest.fixture
def start_point():
    return Position(State())


@pytest.fixture(params=[None, frozenset()], ids=["uniform", "filter"])
def one(request):
    return plan(dropped=request.param)


@pytest.fixture
def in_worker(monkeypatch):
    """What runs after a call of this is run as by a worker, or, with None, in the main process."""

    def enter(worker=(0, 1)):
        for module in (start_points, plans, passes):
            monkeypatch.setattr(module, "torch_worker", lambda: worker)

    return enter


def test_the_state_moves_with_the_items_that_the_loop_receives(start_point, one):
    turns = [at(start_point, one) for _ in start(start_point, one)]
    assert turns == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert start_point.latest(one).state() == State(epoch=1)


def test_a_pass_that_is_left_early_does_not_move_the_start_point(start_point, one, caplog):
    for items in (1, 3, 2):
        assert list(islice(start(start_point, one), items)) == ROWS[:items]
        assert at(start_point, one) == (0, items)
    assert list(start(start_point, one)) == ROWS
    assert start_point.epoch == 1
    assert [record.message for record in caplog.records if "starts again at the same point" in record.message] != []
    assert len(caplog.records) == 1


@pytest.mark.parametrize("order", ["abab", "abba", "baaa", "aabab"])
def test_the_state_is_that_of_the_open_iterator_that_delivered_last(start_point, one, order):
    iterators = {"a": start(start_point, one), "b": start(start_point, one)}
    counts = {"a": 0, "b": 0}
    for name in order:
        assert next(iterators[name]) == ROWS[counts[name]]
        counts[name] += 1
        assert at(start_point, one) == (0, counts[name])
        assert {name: iterators[name].state_dict()["turn"] for name in counts} == counts
    del iterators[order[-1]]
    other = "ab".replace(order[-1], "")
    assert at(start_point, one) == (0, counts[other])


@pytest.mark.parametrize("order", ["aba", "abaabb"])
def test_items_that_were_ready_before_another_iterator_began_are_delivered_in_between(start_point, order):
    """Nobody asks in between, and the first iterator hands over what it has without a note of each item."""
    in_bulk = Plan(pipeline=MemoryWorld(sizes=(16,), dropped=frozenset()).pipeline(bulk=8))
    iterators = {name: start(start_point, in_bulk) for name in "ab"}
    for name in order:
        next(iterators[name])
    assert at(start_point, in_bulk) == (0, order.count(order[-1]))


def test_without_an_open_iterator_the_state_is_that_of_the_one_that_delivered_last(start_point, one):
    first, second = start(start_point, one), start(start_point, one)
    next(first)
    next(second)
    next(second)
    del second
    assert at(start_point, one) == (0, 1)
    del first
    assert at(start_point, one) == (0, 1)


def test_an_iterator_starts_from_where_the_start_point_was_when_it_was_made(start_point, one):
    early = start(start_point, one)
    list(start(start_point, one))
    assert start_point.epoch == 1
    assert early.state_dict()["epoch"] == 0
    assert list(early) == ROWS


def test_an_old_iterator_raises_after_a_state_was_loaded(start_point, one):
    state = state_of(start_point, one)
    waiting, running = start(start_point, one), start(start_point, one)
    next(running)
    start_point.load_state_dict(one, state)
    for iterator in (running, waiting):
        with pytest.raises(StaleIteratorError, match=r"a state was loaded after it was started\. Call iter\(\) again"):
            next(iterator)
    assert state_of(start_point, one) == state
    assert list(start(start_point, one)) == ROWS
    assert start_point.epoch == 1


def test_an_old_iterator_holds_nothing_after_it_raised(start_point, one):
    """Workers and blocks end with the generator that holds them, without waiting for the garbage collector."""

    class Held:
        pass

    def read_with(run, held):
        yield from read(run)
        del held

    held = Held()
    is_held = weakref.ref(held)
    run = start_point.begin(one)
    items = PassIterator.over(run, read_with(run, held), describe)
    del held
    next(items)
    start_point.set_epoch(4)
    gc.disable()
    try:
        with pytest.raises(StaleIteratorError):
            next(items)
        del items
        assert is_held() is None
    finally:
        gc.enable()


def test_a_pass_that_expires_while_its_items_are_made_delivers_none_of_them(start_point, one):
    state = state_of(start_point, one)
    run = start_point.begin(one)

    def slow(progress):
        for turns in take_turns(progress):
            start_point.load_state_dict(one, state)  # as another thread may
            yield turns

    def read_slowly():
        with run:
            for progress in run.epochs():
                yield from run.deliver(slow(progress))

    with pytest.raises(StaleIteratorError, match="a state was loaded"):
        next(PassIterator.over(run, read_slowly(), describe))
    assert state_of(start_point, one) == state


def test_a_pass_that_ends_is_later_than_an_iterator_that_is_kept(start_point, one):
    kept = start(start_point, one)
    next(kept)
    assert list(start(start_point, one)) == ROWS
    assert at(start_point, one) == (1, 0)
    assert start_point.epoch == 1
    next(kept)
    assert at(start_point, one) == (0, 2)


def test_an_iterator_that_is_never_used_does_not_take_the_epoch_that_was_set(start_point, one):
    list(islice(start(start_point, one), 4))
    start_point.load_state_dict(one, state_of(start_point, one))
    got, kept = [], []
    for epoch in range(3):
        start_point.set_epoch(epoch)
        kept.append(start(start_point, one))
        got.append(list(start(start_point, one)))
    assert got == [[], ROWS, ROWS]


def test_set_epoch_to_the_present_epoch_changes_nothing(start_point, one):
    items = start(start_point, one)
    next(items)
    start_point.set_epoch(0)
    assert at(start_point, one) == (0, 1)
    assert list(items) == ROWS[1:]
    assert start_point.epoch == 1
    start_point.set_epoch(1)
    assert list(start(start_point, one)) == ROWS
    assert start_point.epoch == 2


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 99},
        {"cursors": [[1, 5]]},
        {"part": {"readers": 2, "workers": 2, "items": 1}},
    ],
    ids=str,
)
def test_a_state_that_does_not_fit_changes_nothing(start_point, damage):
    one = plan()
    items = start(start_point, one)
    list(islice(items, 2))
    state = state_of(start_point, one)
    with pytest.raises(CheckpointMismatchError):
        start_point.load_state_dict(one, signed({**state, **damage}))
    assert state_of(start_point, one) == state
    assert list(items) == ROWS[2:]


class TestLoaders:
    def test_set_epoch_reaches_the_loaders(self, start_point, one):
        loaders = [start_point.for_loader(), start_point.for_loader()]
        start_point.set_epoch(4)
        assert [loader.epoch for loader in loaders] == [4, 4]
        loaders[0].set_epoch(1)
        assert (start_point.epoch, loaders[1].epoch) == (4, 4)

    def test_a_state_is_loaded_into_the_loader(self, start_point, one):
        state = state_of(start_point, one)
        loader = start_point.for_loader()
        with pytest.raises(CheckpointMismatchError, match=r"Call the Loader's load_state_dict\(\)"):
            start_point.load_state_dict(one, state)
        loader.load_state_dict(one, state)
        del loader
        start_point.load_state_dict(one, state)


class TestWorkers:
    def test_while_this_process_reads_too_the_state_is_its_own(self, start_point, one, in_worker):
        start_point.workers = SharedWithWorkers()
        in_worker()
        start_point.begin(one)
        in_worker(None)
        items = start(start_point, one)
        list(islice(items, 2))
        assert at(start_point, one) == (0, 2)
        del items
        with pytest.raises(UnknownStateError):
            state_of(start_point, one)

    def test_a_worker_begins_its_epoch_again_in_every_loop(self, start_point, one, in_worker):
        in_worker()
        for _ in range(2):
            assert list(islice(start(start_point, one), 3)) == ROWS[:3]
            assert at(start_point, one) == (0, 3)
        assert list(start(start_point, one)) == ROWS
        assert start_point.epoch == 0
        assert list(start(start_point, one)) == ROWS


def merged_ahead(one):
    """A state in epoch 0 of which nothing is delivered, and in epoch 1 three of four rows."""
    later = MemoryWorld(sizes=(4,)).start([LanePosition((3,))], turn=3)
    return State(later=(replace(later, epoch=1),)).to_dict(one.pipeline.fingerprint)


def test_E4_set_epoch_to_an_epoch_where_ranks_were_already(start_point):
    one = plan(dropped=frozenset())
    start_point.load_state_dict(one, merged_ahead(one))
    start_point.set_epoch(1)
    assert list(start(start_point, one)) == ROWS[3:]
    start_point.set_epoch(2)
    assert list(start(start_point, one)) == ROWS


def test_E4_a_later_epoch_must_fit_too(start_point):
    one = plan(dropped=frozenset())
    state = merged_ahead(one)
    state["later"][0]["cursors"] = [[1, 7]]
    with pytest.raises(CheckpointMismatchError, match=r"cursor \[7\] of lane 0 of 1 is after the lane's end"):
        start_point.load_state_dict(one, signed(state))
