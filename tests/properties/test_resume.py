"""Whatever the files, the order, the stages and the cut: nothing is lost, nothing comes twice, nothing moves."""

import json
import tempfile
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legs import check_out_of_step
from midepoch.dataset import plan_of
from midepoch.testing import assert_elastic, assert_resumes
from mixed_worlds import mixed_worlds
from surveys import without_survey
from worlds import World, ids, pack_worlds, worlds

WORLDS = {"rows": worlds(), "packs": pack_worlds(), "mixtures": mixed_worlds()}
layouts = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=2, max_size=4)


@pytest.mark.parametrize("kind", WORLDS)
@given(data=st.data())
def test_C4_cut_after_every_item_and_resumed_twice(kind: str, data: st.DataObject) -> None:
    world = data.draw(WORLDS[kind])
    with tempfile.TemporaryDirectory() as folder:
        dataset = world.build(world.write(Path(folder)))
        assert_resumes(dataset, every=1 + len(list(world.build(Path(folder)))) // 12)


@pytest.mark.parametrize("kind", WORLDS)
@given(data=st.data(), legs=layouts, steps=st.integers(0, 6))
def test_C5_any_number_of_ranks_and_workers_one_after_the_other(
    kind: str, data: st.DataObject, legs: list[tuple[int, int]], steps: int
) -> None:
    world = data.draw(WORLDS[kind])
    with tempfile.TemporaryDirectory() as folder:
        assert_elastic(world.build(world.write(Path(folder))), legs, steps=steps)


@given(worlds(lanes=False), st.tuples(st.integers(1, 4), st.integers(1, 3)))
def test_the_lanes_of_the_readers_that_began_are_kept(world: World, first: tuple[int, int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert_elastic(world.build(world.write(Path(folder))), [first, (3, 1), (1, 2)], steps=2)


@pytest.mark.parametrize("kind", ["rows", "packs"])
@given(data=st.data(), legs=layouts)
def test_C5_ranks_that_are_out_of_step_lose_nothing(
    kind: str, data: st.DataObject, legs: list[tuple[int, int]]
) -> None:
    """Each rank stops after a number of items of its own; a counted pipeline promises this in lockstep only."""
    world = data.draw(WORLDS[kind])
    with tempfile.TemporaryDirectory() as folder:
        dataset = without_survey(world.build(world.write(Path(folder))))
        if not plan_of(dataset).pipeline.uniform:
            check_out_of_step(dataset, legs, lambda: data.draw(st.integers(0, 5)))


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
