"""Turns that workers claim: whoever makes them, and however often they are cut, each is made once and is the same."""

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midepoch.delivery.progress import Progress, Turns
from midepoch.delivery.reader import turn_by_turn
from midepoch.delivery.uniform import UniformSession
from midepoch.workers import taking
from midepoch.workers.claims import ClaimTable, SharedTurns
from midepoch.workers.taking import OwnTurns, TurnTaker
from simulation import MemoryWorld, Simulation, memory_worlds, starts


@st.composite
def counted_sessions(draw):
    world = replace(draw(memory_worlds()), dropped=None)
    pipeline = world.pipeline(bulk=draw(st.sampled_from([0, 1, 3])), items_together=draw(st.integers(0, 2)))
    return world, UniformSession(pipeline, draw(starts(world)), draw(st.integers(1, 3)))


def expected_turns(world, session, reader):
    """All turns of a reader that have an item, by their numbers."""
    simulation = Simulation(world.waiting(session.start), session.start.turn, 1)
    return {turn: ((), item) for turn, item in enumerate(simulation.items_of(0)[reader :: session.assignment.readers])}


def made_by(taker):
    """What a worker makes, step by step: the number and the content of some turns, or of the end."""
    while (claim := taker.claim()) is not None:
        turn = claim.start
        yield turn, []  # another worker may claim what follows, before these are made
        for turns in taker.make(claim):
            if turns is None:
                yield turn, None
                continue
            yield turn, list(turn_by_turn(iter((turns,))))
            turn += taker._workers * len(turns.items)
    taker.close()


def without_empty(turns):
    return {turn: pair for turn, pair in turns.items() if pair != (None, None)}


@settings(max_examples=300, deadline=None)
@given(counted_sessions(), st.integers(1, 4), st.data())
def test_workers_that_steal_make_each_turn_once(drawn, workers, data):
    world, session = drawn
    reader = data.draw(st.integers(0, session.assignment.readers - 1))
    table, made, ends = ClaimTable(workers), {}, {}
    table.start(1)
    takers = [TurnTaker(Progress(session, reader), SharedTurns(table, 1, number), workers) for number in range(workers)]
    running = [made_by(taker) for taker in takers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TurnTaker, "_may_steal", lambda self: True)
        patch.setattr(TurnTaker, "_wanted", lambda self: data.draw(st.integers(1, 3)) * max(1, self._group))
        while running:
            one = data.draw(st.sampled_from(running))
            step = next(one, None)
            if step is None:
                running.remove(one)
                continue
            first, turns = step
            if turns is None:
                ends[first % workers] = min(first, ends.get(first % workers, first))
                continue
            for number, pair in enumerate(turns):
                assert first + workers * number not in made, "a turn was made twice"
                made[first + workers * number] = pair
    table.free()
    assert without_empty(made) == expected_turns(world, session, reader)
    assert sorted(ends) == list(range(workers)), "the end of each worker's turns is known"
    for turn in without_empty(made):
        assert turn < ends[turn % workers]
    assert not session._opened, "everything is closed"
    source = session.pipeline.source
    if source.items_together and not any(position.delivered_ahead for position in session.positions):
        assert len(set(source.read)) == len(source.read), "a row was read for two turns"


@settings(max_examples=100, deadline=None)
@given(counted_sessions(), st.integers(1, 4))
def test_without_stealing_a_worker_makes_its_own_turns(drawn, workers):
    world, session = drawn
    expected = expected_turns(world, session, 0)
    for worker in range(workers):
        *made, end = made_by(TurnTaker(Progress(session, 0), OwnTurns(worker, workers), workers))
        turns = [pair for _, some in made for pair in some]
        numbered = dict(zip(count(worker, workers), turns, strict=False))
        assert without_empty(numbered) == {turn: pair for turn, pair in expected.items() if turn % workers == worker}
        assert end == (worker + workers * len(turns), None)


@pytest.mark.parametrize(
    ("factor", "steals", "wanted"), [(0.5, False, 20), (0.98, False, 10), (2, True, 5), (50, True, 1)]
)
def test_turns_are_claimed_for_a_while_and_cheap_ones_are_not_stolen(monkeypatch, factor, steals, wanted):
    asked, clock = [], iter(count(step=factor * taking.COSTLY_SECONDS))

    class Asked(OwnTurns):
        def claim(self, turns, *, steal):
            asked.append((turns, steal))
            return range(len(asked) - 1, len(asked)) if len(asked) < 5 else None

    monkeypatch.setattr(taking.time, "perf_counter", lambda: next(clock))
    world = MemoryWorld(sizes=(9,))
    list(made_by(TurnTaker(Progress(UniformSession(world.pipeline(), world.start(), 1), 0), Asked(0, 1), 1)))
    assert asked == 2 * [(1, False)] + 3 * [(wanted, steals)]


@pytest.mark.parametrize(
    ("seconds", "steals", "wanted"), [(0.00011, False, 1816), (0.021, True, 8), (0.03, True, 4), (1, True, 4)]
)
def test_turns_that_are_made_together_are_claimed_together(monkeypatch, seconds, steals, wanted):
    """Two items of a lane are made together, and a worker reads two lanes: four turns."""
    asked, now = [], 0.0

    def take_together(progress, turns, *, deferred):
        nonlocal now
        now += seconds * len(turns)  # all of it for the first turn
        for _ in turns:
            yield Turns(["item"], ())

    class Asked(OwnTurns):
        def claim(self, turns, *, steal):
            asked.append((turns, steal))
            first = sum(turns for turns, _ in asked[:-1])
            return range(first, first + turns) if len(asked) < 6 else None

    monkeypatch.setattr(taking.time, "perf_counter", lambda: now)
    monkeypatch.setattr(taking, "take_turns", take_together)
    world = MemoryWorld(sizes=(9, 9))
    pipeline = world.pipeline(items_together=2)
    made = list(made_by(TurnTaker(Progress(UniformSession(pipeline, world.start(), 1), 0), Asked(0, 1), 1)))
    assert asked == [(4, False), *5 * [(wanted, steals)]]
    assert sum(len(turns) for _, turns in made) == sum(turns for turns, _ in asked[:-1])


@pytest.mark.parametrize(("opening", "may_steal"), [(0.001, True), (0.1, False)])
def test_rows_that_take_long_to_open_are_not_opened_again_and_again(monkeypatch, opening, may_steal):
    now, asked = 0.0, []
    firsts = [0, 1, 2, 3, *range(20, 120)]

    def take_slowly(progress, turns, *, deferred):
        nonlocal now
        now += opening
        while True:
            now += 0.01
            yield Turns(["item"], ())

    class Asked(OwnTurns):
        def claim(self, turns, *, steal):
            asked.append(steal)
            return range(firsts[len(asked) - 1], firsts[len(asked) - 1] + 1) if len(asked) <= len(firsts) else None

    monkeypatch.setattr(taking.time, "perf_counter", lambda: now)
    monkeypatch.setattr(taking, "take_turns", take_slowly)
    world = MemoryWorld(sizes=(9,))
    list(made_by(TurnTaker(Progress(UniformSession(world.pipeline(), world.start(), 1), 0), Asked(0, 1), 1)))
    assert asked[:5] == [False, False, True, True, True]
    assert asked[5:40] == 35 * [may_steal], "the turns at 20 were opened before"
    assert asked[-1], "that was long ago"


def test_turns_that_another_worker_claims_meanwhile_are_cut_off():
    world, table = MemoryWorld(sizes=(9,)), ClaimTable(2)
    table.start(1)
    session = UniformSession(world.pipeline(bulk=3), world.start(), 1)
    taker = TurnTaker(Progress(session, 0), SharedTurns(table, 1, 0), 2)
    claim = taker.claim()
    SharedTurns(table, 1, 1).claim(3, steal=False)
    assert list(SharedTurns(table, 1, 1).claim(1, steal=True)) == [2]
    assert [list(turns.items) for turns in taker.make(claim)] == [[(0, 0)]]
    following = taker.claim()
    assert following.start == 4
    assert next(taker.make(following)).items[0] == (0, 4)
    taker.close()
    table.free()
