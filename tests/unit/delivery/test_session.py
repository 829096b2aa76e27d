"""Sessions: what each reader takes and what is left after it, against a simulation of every turn."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from midepoch.checkpoint.lanes import LanePosition
from midepoch.checkpoint.state import State
from midepoch.delivery.plan import session_from
from midepoch.delivery.session import FileSession, Session
from midepoch.errors import CheckpointMismatchError
from simulation import MemoryWorld, memory_worlds, starts

quick = settings(max_examples=100, deadline=None)


@st.composite
def sessions(draw, mode="example"):
    """A world, a uniform session of it, and the items of each reader, one by one."""
    world = draw(memory_worlds(uniform=True))
    start, readers = draw(starts(world, ahead=mode == "example")), draw(st.integers(1, 6))
    if mode == "file":
        readers = draw(st.sampled_from([n for n in range(1, 6) if len(world.sizes) % n == 0]))
    start = replace(start, mode=mode)
    kind = FileSession if mode == "file" else Session
    return world, kind(world.pipeline(), start, readers), MODELS[mode](world, start, readers)


def in_turn(world, start, readers):
    """Readers take the items of all lanes in turn. The rounds begin at the lane whose turn it is."""
    waiting, lanes = world.waiting(start), len(world.sizes)
    order = [(start.turn + number) % lanes for number in range(lanes)]
    rounds = range(max(map(len, waiting)))
    items = [waiting[lane][number] for number in rounds for lane in order if number < len(waiting[lane])]
    return [items[reader::readers] for reader in range(readers)]


def by_file(world, start, readers):
    """Each reader takes the items of its own lanes, those first that are nearest to their lane's beginning."""
    waiting, cursors = world.waiting(start), [position.cursor[0] for position in start.positions.expand()]
    of_readers = []
    for reader in range(readers):
        items = [
            (-(-cursors[lane] // world.batch) + number, lane, item)
            for lane in range(reader, len(world.sizes), readers)
            for number, item in enumerate(waiting[lane])
        ]
        of_readers.append([item for _, _, item in sorted(items)])
    return of_readers


MODELS = {"example": in_turn, "file": by_file}
both = pytest.mark.parametrize("mode", MODELS)


def left_after(world, start, taken):
    """What is left of each lane after readers took these items."""
    done = {item for items in taken for item in items}
    return [[item for item in lane if item not in done] for lane in world.waiting(start)]


def places(run):
    """The lane and the ordinal of each turn of a run."""
    ordinals = {lane: iter(of_lane) for lane, of_lane in run.ordinals_of_lanes()}
    return [(lane, next(ordinals[lane])) for turn in range(run.turns) for lane in [run.lanes[turn % len(run.lanes)]]]


@both
@quick
@given(data=st.data())
def test_each_reader_takes_the_items_of_its_turns(mode, data):
    world, session, expected = data.draw(sessions(mode))
    waiting = world.waiting(session.start)
    for reader, items in enumerate(expected):
        found = [session.item(reader, number) for number in range(len(items) + 1)]
        assert [waiting[lane][ordinal] for lane, ordinal in found[:-1]] == items
        assert found[-1] is None
        assert session.reader_items(reader) == len(items)
        assert [place for run in session.runs(reader, range(len(items) + 5)) for place in places(run)] == found[:-1]
    for items in range(10):
        assert session.is_complete(items) == all(len(of_reader) <= items for of_reader in expected)


@both
@quick
@given(data=st.data())
def test_the_state_after_any_number_of_items_leaves_what_was_not_delivered(mode, data):
    """All readers have delivered as many; and each goes on from there where it was."""
    world, session, expected = data.draw(sessions(mode))
    for items in range(2 + max(map(len, expected))):
        state = session.after(items)
        state = State.from_dict(state.to_dict({"data": {}, "pipeline": []}))
        assert world.waiting(state) == left_after(world, session.start, [of_reader[:items] for of_reader in expected])
        assert MODELS[mode](world, state, len(expected)) == [of_reader[items:] for of_reader in expected]


@both
@quick
@given(data=st.data())
def test_the_state_after_workers_that_are_at_different_items(mode, data):
    """Each rank has the same workers, and worker w of all ranks delivered the same number of items."""
    world, session, expected = data.draw(sessions(mode))
    readers = len(expected)
    workers = data.draw(st.sampled_from([n for n in range(1, 7) if readers % n == 0]))
    items = data.draw(st.lists(st.integers(0, 6), min_size=workers, max_size=workers))
    try:
        state = session.after_each(items)
    except CheckpointMismatchError:  # workers of one of several ranks have run out of their files
        assume(mode == "example" or not 1 < workers < readers)
        raise
    taken = [of_reader[: items[reader // (readers // workers)]] for reader, of_reader in enumerate(expected)]
    assert world.waiting(state) == left_after(world, session.start, taken)
    assert state.reader_progress is None


@pytest.mark.parametrize(("readers", "ahead", "kind"), [(2, (), FileSession), (3, (), Session), (2, (1,), Session)])
def test_lanes_of_whole_files_have_owners_if_each_reader_has_as_many(readers, ahead, kind):
    world = MemoryWorld(sizes=(4, 4))
    start = replace(world.start([LanePosition((0,), ahead), LanePosition((0,))]), mode="file")
    assert type(session_from(world.pipeline(), start, readers)) is kind
