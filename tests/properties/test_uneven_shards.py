"""Ranks that run out at different steps: a rank's own state restores it, and any one state restores all ranks."""

import json
from itertools import islice
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from worlds import ids, write_files

FILES = [17, 4, 0, 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("uneven") / "data", FILES)


@pytest.fixture(scope="module")
def two_files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("two") / "data", [83, 13])


def each_rank(build, ranks, state=None):
    """The ids of what each rank delivers until the end of the epoch."""
    got = []
    for rank in range(ranks):
        dataset = build(rank, ranks)
        if state is not None:
            dataset.load_state_dict(state)
        got.append([ids([item]) for item in dataset])
    return got


def states_of(build, rank, ranks, state=None):
    """A rank's state after each of its items but the last, after which the epoch has ended."""
    dataset = build(rank, ranks)
    if state is not None:
        dataset.load_state_dict(state)
    states = []
    for _ in dataset:
        states.append(json.loads(json.dumps(dataset.state_dict())))
    return states[:-1]


def rows(of_ranks):
    return sorted(row for items in of_ranks for item in items for row in item)


def check_every_state(build, ranks, state=None):
    whole = each_rank(build, ranks, state)
    for rank in range(ranks):
        for number, saved in enumerate(states_of(build, rank, ranks, state), start=1):
            left = [items[number:] for items in whole]
            assert each_rank(build, ranks, saved) == left
            others = 1 + (ranks + number) % 4
            assert rows(each_rank(build, others, saved)) == rows(left)


@pytest.mark.parametrize(("ranks", "lanes", "batch"), [(1, 5, 1), (2, 5, 2), (2, None, 1), (3, 4, 1), (6, 4, 3)])
def test_A15_lanes_of_whole_files_keep_their_owners_and_order(folder, ranks, lanes, batch):
    def build(rank, ranks):
        dataset = me.read(folder).shuffle(1)
        dataset = dataset if lanes is None else dataset.lanes(lanes)
        dataset = dataset.shard(ranks, rank, mode="file")
        return dataset if batch == 1 else dataset.batch(batch)

    check_every_state(build, ranks)


def test_A15_lanes_that_a_resize_left_uneven(folder):
    """A batch of one lane is large, so the other one has far more left for the next ranks."""

    def build(rank, ranks, size=1):
        return me.read(folder).lanes(2).batch(size).shard(ranks, rank)

    first = build(0, 1, 12)
    next(iter(first))
    for ranks in (2, 3):
        check_every_state(build, ranks, first.state_dict())


@settings(max_examples=25)
@given(
    ranks=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    lanes=st.integers(1, 6),
    mode=st.sampled_from(["file", "example"]),
    sizes=st.lists(st.sampled_from([1, 2, 7]), min_size=4, max_size=4),
    own=st.booleans(),
    data=st.data(),
)
def test_A15_any_legs_lose_and_repeat_nothing(folder, ranks, lanes, mode, sizes, own, data):
    """Legs on other numbers of ranks. Each leg resumes from the state of one rank, or merges those of all."""

    def build(rank, ranks, size):
        return me.read(folder).shuffle(2).lanes(lanes).shard(ranks, rank, mode=mode).batch(size)

    delivered, state = [], None
    for number, (count, size) in enumerate(zip(ranks, sizes, strict=False)):
        steps = data.draw(st.integers(0, 9)) if number + 1 < len(ranks) else None
        runs = [SimpleNamespace(dataset=build(rank, count, size)) for rank in range(count)]
        for run in runs:
            if state is not None:
                run.dataset.load_state_dict(state)
            run.items = iter(run.dataset)
            delivered += ids(islice(run.items, steps))
        if steps is None or len(delivered) == sum(FILES):
            break
        states = [json.loads(json.dumps(run.dataset.state_dict())) for run in runs]
        furthest = max(states, key=lambda one: one["turn"])
        left_loop = number > 0 and any(one["epoch"] for one in states)  # after a resize such states may not merge
        state = furthest if own or left_loop else me.merge_states(states)
    assert sorted(delivered) == list(range(sum(FILES)))


@pytest.mark.parametrize("mode", ["file", "example"])
@pytest.mark.parametrize("behind", [0, 1])
def test_ranks_that_saved_at_different_steps_are_not_merged(folder, behind, mode):
    """Nobody had run out: rows would be lost or repeated."""

    def state_after(rank, items):
        dataset = me.read(folder).lanes(4).shard(2, rank, mode=mode)
        list(islice(iterator := iter(dataset), items))
        return iterator.state_dict()

    states = [state_after(rank, 4 - (rank == behind)) for rank in range(2)]
    with pytest.raises(me.CheckpointMismatchError, match="cannot be merged"):
        me.merge_states(states)


@pytest.mark.parametrize("mode", ["file", "example"])
def test_the_states_of_ranks_that_have_ended_are_merged(two_files, mode):
    """In the loop and after it: the rank that has more goes on."""

    def build(rank, ranks=2):
        return me.read(two_files).lanes(2).batch(10).shard(ranks, rank, mode=mode)

    whole = each_rank(build, 2)
    for steps in range(1, max(map(len, whole)) + 1):
        runs = [(dataset, iter(dataset)) for dataset in map(build, range(2))]
        for _, items in runs:
            list(islice(items, steps))
        in_loop = [items.state_dict() for _, items in runs]
        for (_, items), got in zip(runs, whole, strict=True):
            if len(got) < steps:
                next(items, None)
        after_loop = [dataset.state_dict() for dataset, _ in runs]
        for states in (in_loop, after_loop):
            if all(len(got) <= steps for got in whole):
                continue  # the epoch has ended
            merged = me.merge_states(states)
            assert each_rank(build, 2, merged) == [got[steps:] for got in whole]
            assert rows(each_rank(build, 1, merged)) == rows([got[steps:] for got in whole])


@pytest.mark.parametrize(("mode", "steps"), [("file", (50, 30, 13)), ("example", (59, 58, 58))])
def test_a_rank_that_is_behind_is_not_taken_for_one_that_has_ended(tmp_path, mode, steps):
    """Rank 2 has nothing left, and rank 1 has: its rows would be lost."""
    folder = write_files(tmp_path / "data", [83, 80, 13])
    states = []
    for rank, items in enumerate(steps):
        dataset = me.read(folder).lanes(3).shard(3, rank, mode=mode)
        list(islice(iterator := iter(dataset), items))
        states.append(iterator.state_dict())
    with pytest.raises(me.CheckpointMismatchError, match="cannot be merged"):
        me.merge_states(states)
