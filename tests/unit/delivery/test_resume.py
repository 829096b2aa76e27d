"""Resuming: from any state, with any readers, workers and batch size, every row comes once; or it is refused."""

from dataclasses import replace
from itertools import chain, islice
from unittest.mock import patch

import pytest

from midepoch._common.checks import log_once
from midepoch.checkpoint.lanes import LanePosition
from midepoch.checkpoint.state import ReaderProgress, State
from midepoch.delivery.plan import Plan
from midepoch.delivery.reader import take_turns
from midepoch.errors import CheckpointMismatchError
from simulation import MemoryWorld


def start(world, state, reader=0, readers=1, workers=1, lanes=None, mode="example"):
    ranks = readers // workers
    worker, rank = divmod(reader, ranks)
    plan = Plan(pipeline=world.pipeline(), ranks=ranks, rank=rank, lanes=lanes, mode=mode)
    with patch("midepoch.delivery.plan.torch_worker", lambda: (worker, workers)):
        return plan.begin(state)


def deliver(progress, items=None):
    return list(islice(chain.from_iterable(progress.follow(take_turns(progress))), items))


def rows_of(items):
    return [row for item in items for row in (item if isinstance(item[0], tuple) else (item,))]


def test_a_short_last_batch_is_not_read_again_in_smaller_ones():
    """Three batches of 3 reach over the end of 7 rows; batches of 2 must not begin at row 9, nor at row 6."""
    state = start(then := MemoryWorld(sizes=(7, 9), batch=3), then.start()).session.after(5)
    progress = start(MemoryWorld(sizes=(7, 9), batch=2), state)
    assert progress.session.positions == [LanePosition((7,)), LanePosition((6,))]
    assert progress.session.start.item_rows == 2
    assert rows_of(deliver(progress)) == [(1, 6), (1, 7), (1, 8)]


def uniform_part(**changes):
    return ReaderProgress(**{"readers": 4, "workers": 2, "items": (3,)} | changes)


def filter_part(**changes):
    return ReaderProgress(**{"readers": 4, "reader": 1, "turns_taken": 0} | changes)


@pytest.mark.parametrize(
    ("part", "now", "message"),
    [
        (filter_part(), {"reader": 0, "readers": 2}, "one of 4 readers delivered; now there are 2.*merge_states"),
        (filter_part(), {"reader": 2, "readers": 4}, "state of reader 1 of 4 was loaded by reader 2.*own state"),
        (uniform_part(), {"readers": 6, "workers": 2}, "one of 4 readers.*now there are 6.*from_stateful_dataloader"),
        (uniform_part(), {"readers": 4, "workers": 4}, "one of 4 readers delivered"),
    ],
)
def test_a_partial_state_is_refused_by_other_readers(part, now, message):
    world = MemoryWorld(sizes=(3, 3), dropped=None if part.reader is None else frozenset())
    with pytest.raises(CheckpointMismatchError, match=message):
        start(world, replace(world.start(), reader_progress=part), **now)


@pytest.mark.parametrize(
    ("sizes", "part", "dropped"),
    [((9, 9), uniform_part(), None), ((9, 9), filter_part(), frozenset())],
    ids=["one worker", "one of two readers of a lane"],
)
def test_a_partial_state_is_refused_with_another_batch_size(sizes, part, dropped):
    state = replace(MemoryWorld(sizes=sizes, batch=3, dropped=dropped).start(), reader_progress=part)
    now = MemoryWorld(sizes=sizes, batch=2, dropped=dropped)
    with pytest.raises(CheckpointMismatchError, match=r"items of 3 rows.*with items of 2 rows.*old batch size"):
        start(now, state, reader=1, readers=4, workers=2)


def test_a_reader_that_shares_no_lane_may_change_its_batch_size():
    then, now = (MemoryWorld(sizes=(9, 9), batch=size, dropped=frozenset()) for size in (3, 2))
    progress = start(then, State(), 1, 2, lanes=2)
    assert deliver(progress, 1) == [((1, 0), (1, 1), (1, 2))]
    assert rows_of(deliver(start(now, progress.state(), 1, 2))) == [(1, row) for row in range(3, 9)]


def test_a_reader_alone_at_lanes_that_were_shared_is_refused_with_another_batch_size():
    """What was delivered ahead is counted in batches of three."""
    then, now = (MemoryWorld(sizes=(18, 18), batch=size, dropped=frozenset()) for size in (3, 2))
    progress = start(then, then.start([LanePosition((0,), (3,)), LanePosition((0,), (2,))]), 1, 2)
    assert rows_of(deliver(progress, 1)) == [(1, 0), (1, 1), (1, 2)]
    with pytest.raises(CheckpointMismatchError, match=r"items of 3 rows.*with items of 2 rows"):
        start(now, progress.state(), 1, 2)
    assert rows_of(deliver(start(then, progress.state(), 1, 2))) == [(1, row) for row in (3, 4, 5, *range(9, 18))]


def test_readers_out_of_step_are_refused_with_another_batch_size():
    state = MemoryWorld(sizes=(9,), batch=3).start([LanePosition((0,), (1,))])
    with pytest.raises(CheckpointMismatchError, match=r"ahead of others.*items of 2 rows"):
        start(MemoryWorld(sizes=(9,), batch=2), state)
    assert rows_of(deliver(start(MemoryWorld(sizes=(9,), batch=3), state))) == [(0, row) for row in (0, 1, 2, 6, 7, 8)]


@pytest.mark.parametrize(("reader", "readers"), [(0, 2), (1, 2), (1, 3), (0, 1)])
def test_epochs_that_another_reader_has_finished_are_not_kept(reader, readers, caplog):
    log_once.cache_clear()
    world = MemoryWorld(sizes=(3, 3), dropped=frozenset())
    finished = start(world, State(), 0, 2, lanes=2)
    deliver(finished)
    state = finished.following()
    assert len(state.earlier) == 1
    resumed = start(world, state, reader, readers)
    own = (reader, readers) == (0, 2)
    assert resumed.session.start.earlier == (state.earlier if own else ())
    warned = [one for one in caplog.messages if "that of reader 0 of 2, which had finished epoch 0" in one]
    assert len(warned) == (not own)
