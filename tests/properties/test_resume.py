"""Whatever the files, the order, the stages and the cut: nothing is lost, nothing comes twice, nothing moves."""

import json
import tempfile
from itertools import islice
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import midepoch as me
from midepoch.dataset import plan_of
from midepoch.testing import RankRun, assert_elastic, assert_resumes
from worlds import World, ids, worlds

many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
layouts = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=2, max_size=4)


@many
@given(worlds())
def test_cut_after_every_item_and_resumed_twice(world: World) -> None:
    with tempfile.TemporaryDirectory() as folder:
        dataset = world.build(world.write(Path(folder)))
        assert_resumes(dataset, every=1 + len(list(world.build(Path(folder)))) // 12)


@many
@given(worlds(), layouts, st.integers(0, 6))
def test_any_number_of_ranks_and_workers_one_after_the_other(
    world: World, legs: list[tuple[int, int]], steps: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert_elastic(world.build(world.write(Path(folder))), legs, steps=steps)


@many
@given(worlds(lanes=False), st.tuples(st.integers(1, 4), st.integers(1, 3)))
def test_the_lanes_of_the_readers_that_began_are_kept(world: World, first: tuple[int, int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert_elastic(world.build(world.write(Path(folder))), [first, (3, 1), (1, 2)], steps=2)


@many
@given(worlds(), st.data())
def test_ranks_that_are_out_of_step_lose_nothing(world: World, data: st.DataObject) -> None:
    """Each rank stops after a number of items of its own; a uniform pipeline promises this in lockstep only."""
    with tempfile.TemporaryDirectory() as folder:
        path = world.write(Path(folder))
        whole = list(world.build(path))
        if plan_of(world.build(path)).pipeline.uniform:
            return
        state = world.build(path).state_dict()
        got = []
        for ranks, workers in data.draw(layouts):
            runs = [RankRun(world.build(path).shard(ranks, rank), state, workers) for rank in range(ranks)]
            for run in runs:
                got += [item for _, item in run.deliver(data.draw(st.integers(0, 5)))]
            state = me.merge_states(json.loads(json.dumps([run.state_dict() for run in runs])))
        got += [item for _, item in RankRun(world.build(path), state, 1).deliver(None)]
        assert sorted(map(repr, got)) == sorted(map(repr, whole))


@many
@given(worlds(uniform=True), st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=2, max_size=4))
def test_the_batch_size_may_change_at_every_resume(world: World, legs: list[tuple[int, int]]) -> None:
    """Three batches a rank in each session, until some rank has none left; then one process reads the rest."""
    with tempfile.TemporaryDirectory() as folder:
        path = world.write(Path(folder))
        rows = World(world.sizes, world.kinds, world.block, [call for call in world.calls if call[0] != "batch"])
        state, got = rows.build(path).state_dict(), []
        for ranks, size in legs:
            for rank in range(ranks):
                dataset = rows.build(path).batch(size).shard(ranks, rank)
                dataset.load_state_dict(state)
                batches = list(islice(dataset, 3))
                if rank == 0:
                    after = json.loads(json.dumps(dataset.state_dict()))
                    if dataset.epoch != 0 or any(isinstance(cursor, dict) for _, cursor in after["cursors"]):
                        return  # the epoch was over, or lanes ran out early, which has a test of its own
                elif len(batches) < 3:
                    return
                got += ids(batches)
            state = after
        whole = ids(rows.build(path))
        assert len(set(got)) == len(got)
        if len(got) < len(whole):
            last = rows.build(path)
            last.load_state_dict(state)
            got += ids(last)
        assert sorted(got) == sorted(whole)
