"""Progress: at every cut it is what was handed over, no more and no less, against a simulation of every turn."""

from dataclasses import replace
from itertools import chain, islice

from hypothesis import given, settings
from hypothesis import strategies as st

from inboxes import PartInbox
from midepoch.checkpoint.merge import merge_states
from midepoch.checkpoint.state import State
from midepoch.delivery.uncounted import ReportedProgress, UncountedSession
from midepoch.workers.pool import in_turn
from simulation import MemoryWorld, Simulation, memory_worlds, starts, turns_of

quick = settings(max_examples=100, deadline=None)
FINGERPRINT = {"data": {}, "pipeline": []}


@st.composite
def sessions(draw):
    """A world, a session of it, the simulation of that, and how many turns are read at a time."""
    world = draw(memory_worlds(uniform=False))
    start, readers = draw(starts(world)), draw(st.integers(1, 5))
    simulation = Simulation(world.waiting(start), start.turn, readers)
    return world, UncountedSession(world.pipeline(), start, readers), simulation, draw(st.sampled_from([0, 1, 2, 5]))


def deliver(progress, simulation, rounds, items=None):
    """Hand over items of the simulated turns from where the progress is; all by default."""
    period = progress.session.assignment.period if isinstance(progress, ReportedProgress) else 1
    turns = simulation.as_turns(progress.reader, period, progress.turns_taken, rounds)
    return list(islice(chain.from_iterable(progress.follow(turns)), items))


def cuts(simulation, reader):
    return range(len(simulation.items_of(reader)) + 1)


def inbox_of(turns, most):
    """Where every turn of a worker has arrived, several in a message."""
    items = [item for _, item in turns]
    return PartInbox([turns_of(items[begin : begin + most]) for begin in range(0, len(items), most)])


@quick
@given(
    sizes=st.lists(st.integers(2, 12), min_size=1, max_size=3),
    dropped=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 11)), max_size=4),
    readers=st.integers(1, 2),
    workers=st.integers(2, 4),
    most=st.integers(2, 5),
)
def test_at_every_cut_of_what_workers_send_the_state_is_that_of_single_turns(sizes, dropped, readers, workers, most):
    """Several turns that arrive together may be at one lane: then the last that was taken counts."""
    world = MemoryWorld(sizes=tuple(sizes), dropped=frozenset(dropped))
    session = UncountedSession(world.pipeline(), world.start(), readers)
    simulation = Simulation(world.waiting(world.start()), 0, readers)
    for reader in range(readers):
        singly, together = ReportedProgress(session, reader), ReportedProgress(session, reader)
        inboxes = [inbox_of(simulation.turns[reader][worker::workers], most) for worker in range(workers)]
        period = session.assignment.period
        arrived = filter(None, in_turn(inboxes))
        one_by_one = chain.from_iterable(singly.follow(simulation.as_turns(reader, period)))
        for item, other in zip(one_by_one, chain.from_iterable(together.follow(arrived)), strict=True):
            assert item == other
            assert together.state() == singly.state()


@quick
@given(sessions(), st.data())
def test_the_states_of_all_readers_of_a_filter_are_merged_into_what_they_delivered(drawn, data):
    world, session, simulation, rounds = drawn
    states, turns_taken = [], []
    for reader in range(simulation.readers):
        progress = ReportedProgress(session, reader)
        deliver(progress, simulation, rounds, data.draw(st.integers(0, 5)))
        states.append(progress.state().to_dict(FINGERPRINT))
        turns_taken.append(progress.turns_taken)
    merged = State.from_dict(merge_states(states))
    assert (merged.turn, world.waiting(merged)) == simulation.left(turns_taken)


@quick
@given(sessions())
def test_a_single_readers_state_of_a_filter_is_complete(drawn):
    world, session, _, rounds = drawn
    alone = UncountedSession(session.pipeline, session.start, 1)
    simulation = Simulation(world.waiting(session.start), session.start.turn, 1)
    for items in cuts(simulation, 0):
        progress = ReportedProgress(alone, 0)
        deliver(progress, simulation, rounds, items)
        state = progress.state()
        assert (state.turn, world.waiting(state)) == simulation.left([progress.turns_taken])


@quick
@given(sessions(), st.data())
def test_the_upcoming_row_of_a_filter_is_where_its_lane_is_read_on(drawn, data):
    """That is the row after the lane's last item, or the first, if the lane may have more for this reader."""
    world, session, simulation, rounds = drawn
    reader = data.draw(st.integers(0, simulation.readers - 1))
    progress = ReportedProgress(session, reader)
    deliver(progress, simulation, rounds, data.draw(st.integers(0, 6)))
    turns = simulation.turns[reader]
    expected = None
    for number in range(progress.turns_taken, progress.turns_taken + session.assignment.period):
        lane = turns[number][0]
        before = [item for at, item in turns[: progress.turns_taken] if at == lane]
        items = [item for item in before if item is not None]
        position = session.positions[lane].cursor[0]
        if items:
            position = (items[-1][-1] if isinstance(items[-1][-1], tuple) else items[-1])[1] + 1
        ran_out = simulation.readers > 1 and None in before
        if position < world.sizes[lane] and not ran_out:
            expected = (lane, (position,))
            break
    assert progress.upcoming() == expected


@quick
@given(sessions(), st.data())
def test_what_is_restored_is_what_was_saved_also_of_lanes_that_have_run_out(drawn, data):
    _, session, simulation, rounds = drawn
    reader = data.draw(st.integers(0, simulation.readers - 1))
    progress = ReportedProgress(session, reader)
    deliver(progress, simulation, rounds, data.draw(st.none() | st.integers(0, 6)))
    saved = progress.reader_progress()
    restored = ReportedProgress(session, reader, delivered=saved)
    assert restored.reader_progress() == saved
    assert (restored.items, restored.upcoming()) == (progress.items, progress.upcoming())


@quick
@given(sessions(), st.data())
def test_the_next_epoch_keeps_what_this_reader_delivered_while_others_may_be_in_this_one(drawn, data):
    _, session, simulation, rounds = drawn
    reader = data.draw(st.integers(0, simulation.readers - 1))
    progress = ReportedProgress(session, reader)
    deliver(progress, simulation, rounds)
    following = progress.following()
    if simulation.readers == 1:
        assert following == State(epoch=1)
    else:
        assert following == State(epoch=1, earlier=(progress.state(),))


def test_only_the_last_epochs_are_kept():
    world = MemoryWorld(sizes=(2, 2), dropped=frozenset())
    state = State()
    for epoch in range(9):
        assert [one.epoch for one in state.earlier] == list(range(max(0, epoch - 4), epoch))
        assert all(one.earlier == () for one in state.earlier)
        start = replace(world.start(), epoch=epoch, earlier=state.earlier)
        state = ReportedProgress(UncountedSession(world.pipeline(), start, 2), 1).following()
