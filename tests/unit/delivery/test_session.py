"""Sessions: what each reader takes and what is left after it, against a simulation of every turn."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midepoch.checkpoint.lanes import LanePosition
from midepoch.checkpoint.state import ReaderProgress, State
from midepoch.delivery.session import Session
from midepoch.errors import CheckpointMismatchError
from simulation import MemoryWorld, Simulation, memory_worlds, starts

quick = settings(max_examples=100, deadline=None)


@st.composite
def sessions(draw):
    """A world, a session of it, and the simulation of that."""
    world = draw(memory_worlds(uniform=True))
    start, readers = draw(starts(world)), draw(st.integers(1, 6))
    return world, Session(world.pipeline(), start, readers), Simulation(world.waiting(start), start.turn, readers)


@quick
@given(sessions())
def test_items_left_are_those_that_wait_in_the_lane(drawn):
    _, session, simulation = drawn
    assert [session.items_left(lane) for lane in range(len(simulation.waiting))] == [*map(len, simulation.waiting)]
    assert session.is_over() == (not any(simulation.waiting))


@quick
@given(sessions())
def test_each_reader_takes_the_items_of_its_turns(drawn):
    _, session, simulation = drawn
    for reader in range(simulation.readers):
        taken = [
            sum(item is not None for _, item in simulation.turns[reader][slot :: session.assignment.period])
            for slot in range(session.assignment.period)
        ]
        assert session.reader_items(reader) == taken


@quick
@given(sessions())
def test_the_first_empty_turn_is_the_first_without_an_item(drawn):
    _, session, simulation = drawn
    empty = [
        simulation.turn + reader + simulation.readers * number
        for reader, turns in enumerate(simulation.turns)
        for number, (_, item) in enumerate(turns)
        if item is None
    ]
    assert session.first_empty_turn == min(empty)


@quick
@given(sessions())
def test_the_state_after_any_number_of_items_leaves_what_was_not_delivered(drawn):
    world, session, simulation = drawn
    for items in range(2 + max(len(simulation.items_of(reader)) for reader in range(simulation.readers))):
        state = session.after(items)
        turns_taken = [simulation.turns_for(reader, items) for reader in range(simulation.readers)]
        assert (state.turn, world.waiting(state)) == simulation.left(turns_taken)


@quick
@given(sessions(), st.data())
def test_the_state_after_workers_that_are_at_different_items(drawn, data):
    """Each rank has the same workers, and worker w of all ranks delivered the same number of items."""
    world, session, simulation = drawn
    workers = data.draw(st.sampled_from([n for n in range(1, 7) if simulation.readers % n == 0]))
    items = data.draw(st.lists(st.integers(0, 6), min_size=workers, max_size=workers))
    ranks = simulation.readers // workers
    state = session.after_each(items)
    turns_taken = [simulation.turns_for(reader, items[reader // ranks]) for reader in range(simulation.readers)]
    assert (state.turn, world.waiting(state)) == simulation.left(turns_taken)
    assert state.reader_progress is None


def test_worker_w_of_all_ranks_delivered_the_same():
    """Two ranks of two workers: readers 0 and 1 are the first workers, readers 2 and 3 the second ones."""
    world = MemoryWorld(sizes=(4, 4, 4, 4))
    state = Session(world.pipeline(), world.start(), 4).after_each([2, 1])
    assert [position.cursor for position in state.positions.expand()] == [(2,), (2,), (1,), (1,)]
    assert state.turn == 6


@quick
@given(sessions())
def test_states_of_lanes_in_step_stay_small_until_one_runs_out(drawn):
    _, session, simulation = drawn
    if not session.start.positions.in_step:
        return
    runs = len(session.start.positions.runs)
    for items in range(1 + (session.first_empty_turn - simulation.turn) // simulation.readers):
        assert len(session.after(items).positions.runs) <= runs + 2


def test_the_end_of_a_delivery_is_after_its_last_ordinal():
    """Two lanes and four readers: reader 1 shares lane 1 with reader 3, so it takes the ordinals 0, 2, 4."""
    session = Session(MemoryWorld(sizes=(9, 9)).pipeline(), MemoryWorld(sizes=(9, 9)).start(), 4)
    assert [session.end(1, 0, delivered) for delivered in range(4)] == [0, 1, 3, 5]
    assert [session.end(3, 0, delivered) for delivered in range(4)] == [0, 2, 4, 6]


def test_another_batch_size_counts_the_items_of_the_states_own():
    """A state of batches of 3, in a pipeline of batches of 2, still counts batches of 3, the short last one too."""
    then = MemoryWorld(sizes=(8,), batch=3)
    session = Session(MemoryWorld(sizes=(8,), batch=2).pipeline(), then.start([LanePosition((1,))]), 1)
    assert session.items_left(0) == 3
    assert session.after(2).positions.expand() == [LanePosition((7,))]


@pytest.mark.parametrize(
    ("position", "batch", "message"),
    [
        (LanePosition((5,)), 1, None),
        (LanePosition((6,)), 1, r"the cursor \[6\] of lane 1 of 2 is after the lane's end"),
        (LanePosition((6,)), 2, None),
        (LanePosition((7,)), 2, r"the cursor \[7\] of lane 1 of 2"),
        (LanePosition((0,), (1, 5)), 1, None),
        (LanePosition((0,), (1, 6)), 1, "of lane 1 of 2"),
    ],
    ids=str,
)
def test_positions_that_no_run_can_have_reached_are_refused(position, batch, message):
    world = MemoryWorld(sizes=(3, 5), batch=batch)
    session = Session(world.pipeline(), world.start([LanePosition((0,)), position]), 1)
    if message is None:
        session.check()
        return
    with pytest.raises(CheckpointMismatchError, match=message):
        session.check()


def test_a_session_starts_from_complete_states_of_begun_epochs_only():
    world = MemoryWorld(sizes=(3,))
    partial = replace(world.start(), reader_progress=ReaderProgress(readers=2))
    for start in (State(), partial):
        with pytest.raises(CheckpointMismatchError, match="not the complete state"):
            Session(world.pipeline(), start, 1)
