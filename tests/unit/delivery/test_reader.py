"""Reading: the turns that processes take are those of a simulation, however many share them and however items come."""

import logging
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from midepoch._common.checks import log_once
from midepoch.delivery.reader import take_turns
from midepoch.delivery.turns import one_by_one
from midepoch.delivery.uncounted import ReportedProgress, UncountedSession
from simulation import MemoryWorld, Simulation, cursor_after, memory_worlds, starts

quick = settings(max_examples=100, deadline=None)


def without_empty_end(turns):
    """Turns up to the last that has an item: how many empty ones are read after it makes no difference."""
    turns = list(turns)
    while turns and turns[-1] in [(None, None), None]:
        turns.pop()
    return turns


def cursor_and_item(turn):
    """Those of a single turn, or None twice."""
    return next(((tuple(cursor), item) for cursor, item in zip(turn.cursors, turn.items, strict=True)), (None, None))


def expected_turns(simulation, reader, begin=0, step=1):
    pairs = [item and (cursor_after(item), item) for _, item in simulation.turns[reader][begin::step]]
    return without_empty_end(pair or (None, None) for pair in pairs)


@st.composite
def sessions(draw):
    world = draw(memory_worlds())
    start, readers = draw(starts(world)), draw(st.integers(1, 4))
    pipeline = world.pipeline(bulk=draw(st.sampled_from([0, 1, 3])))
    return UncountedSession(pipeline, start, readers), Simulation(world.waiting(start), start.turn, readers)


@quick
@given(sessions())
def test_the_turns_of_each_reader_are_those_of_the_simulation(drawn):
    session, simulation = drawn
    for reader in range(simulation.readers):
        turns = map(cursor_and_item, one_by_one(take_turns(ReportedProgress(session, reader))))
        assert without_empty_end(turns) == expected_turns(simulation, reader)


@pytest.mark.parametrize("bulk", [0, 2])
def test_what_was_opened_is_closed_at_the_end_and_when_a_loop_is_left(bulk):
    world = MemoryWorld(sizes=(3, 3))
    for turns_wanted in (2, None):
        pipeline = world.pipeline(bulk=bulk)
        turns = take_turns(ReportedProgress(UncountedSession(pipeline, world.start(), 1), 0))
        list(islice(turns, turns_wanted and 1))
        turns.close()
        assert [opened.closed for opened in pipeline.source.opened] == [True]


@pytest.mark.parametrize(
    ("world", "readers", "reader", "workers", "options", "shared_by"),
    [
        (MemoryWorld(sizes=(3, 3), dropped=frozenset()), 4, 0, 1, {}, 2),
        (MemoryWorld(sizes=(3, 3), dropped=frozenset()), 2, 0, 3, {}, 3),
        (MemoryWorld(sizes=(3, 3)), 4, 0, 1, {"decodes": True}, 2),
        (MemoryWorld(sizes=(3, 3)), 4, 0, 1, {}, None),
        (MemoryWorld(sizes=(3, 3), dropped=frozenset()), 4, 1, 1, {}, None),
        (MemoryWorld(sizes=(3, 3), dropped=frozenset()), 2, 0, 1, {}, None),
    ],
    ids=["filter", "workers", "decoding", "skipping is free", "another reader", "no lane is shared"],
)
def test_the_first_reader_warns_if_shared_lanes_cost_work(caplog, world, readers, reader, workers, options, shared_by):
    log_once.cache_clear()
    progress = ReportedProgress(UncountedSession(world.pipeline(**options), world.start(), readers), reader)
    with caplog.at_level(logging.WARNING, "midepoch"):
        for _ in range(2):
            turns = take_turns(progress, 0, workers)
            next(turns)
            turns.close()
    messages = [record.message for record in caplog.records]
    if shared_by is None:
        assert messages == []
        return
    assert len(messages) == 1
    readers_in_all = readers * workers
    assert messages[0].startswith(f"{readers_in_all} readers share 2 lanes, so {shared_by} of them process each lane")
    assert ".lanes(n)" in messages[0]


def test_readers_of_counted_items_decode_the_blocks_of_shared_lanes(caplog, tmp_path):
    log_once.cache_clear()
    pq.write_table(pa.table({"id": range(40)}), tmp_path / "a.parquet", row_group_size=10)
    next(iter(me.read(tmp_path / "a.parquet").lanes(2).shard(3, 0)))
    assert "3 readers share 2 lanes, so 3 of them decode each block" in caplog.text
