"""Mixtures: exact shares, exact ends, exact resumes, whatever the parts, the weights and the cut."""

import tempfile
from collections import Counter
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from midepoch.dataset import plan_of
from midepoch.pipeline.pipeline import PipelineLanes
from midepoch.pipeline.schedule import integer_weights
from midepoch.sources.source import EpochCut
from midepoch.testing import assert_resumes
from mixed_worlds import APART, MixedWorld, mixed_worlds
from schedules import OneByOne
from worlds import FORMATS, ids


def source_of(item: Any) -> int:
    return item["id"] // APART


def lane_of_model(world: MixedWorld, parts: list[list[Any]], lane: int, epoch: int) -> list[Any]:
    """A lane of a mixture in plain Python, for parts that are lists and do not start over."""
    whole, waiting = integer_weights(world.weights), [list(part) for part in parts]
    over, got = [False] * len(parts), []
    while True:
        left = [0 if gone else weight for gone, weight in zip(over, whole, strict=True)]
        if not any(left):
            return got
        schedule, counts = OneByOne(left, world.seed, epoch, lane), [0] * len(parts)
        while waiting[number := schedule.draw(counts)]:
            got.append(waiting[number].pop(0))
            counts[number] += 1
        if world.stop == "first":
            return got
        over[number] = True


def lanes_of(dataset: me.Dataset, lanes: int, epoch: int) -> list[list[Any]]:
    """What each lane has."""
    pipeline = plan_of(dataset).pipeline
    cut, opened = PipelineLanes(pipeline, EpochCut(epoch=epoch, lanes=lanes)), pipeline.source.open(lanes)
    return [[item for item, _, _ in cut.flow(opened, lane, pipeline.begin).as_single_items()] for lane in range(lanes)]


@given(mixed_worlds(behind=False), st.integers(0, 2))
def test_the_items_are_those_of_a_plain_model_and_each_part_has_its_share(world, epoch):
    with tempfile.TemporaryDirectory() as folder:
        path = world.write(Path(folder))
        parts = [lanes_of(part, world.lanes, epoch) for part in world.parts(path)]
        mixed = lanes_of(world.mixture(path), world.lanes, epoch)
        for lane, got in enumerate(mixed):
            assert got == lane_of_model(world, [part[lane] for part in parts], lane, epoch)
        whole = integer_weights(world.weights)
        if world.stop == "first":
            for got in mixed:
                counts = Counter()
                for draws, item in enumerate(got, start=1):
                    counts[source_of(item)] += 1
                    for number, weight in enumerate(whole):
                        assert abs(counts[number] - Fraction(draws * weight, sum(whole))) < 1
        else:
            delivered = sorted(repr(item) for got in mixed for item in got)
            drawn = [part for part, weight in zip(parts, world.weights, strict=True) if weight]
            assert delivered == sorted(repr(item) for part in drawn for lane in part for item in lane)
        assert not any(whole[source_of(item)] == 0 for got in mixed for item in got)


@given(mixed_worlds(stops=("never",), behind=False), st.integers(0, 1), st.data())
def test_never_continues_in_new_epochs_and_every_pass_is_complete(world, epoch, data):
    with tempfile.TemporaryDirectory() as folder:
        path = world.write(Path(folder))
        passes = 12
        parts = [
            [lanes_of(part, world.lanes, epoch + number) for number in range(passes)] for part in world.parts(path)
        ]
        weighted = [number for number, weight in enumerate(world.weights) if weight]
        if not all(lane for number in weighted for one in parts[number] for lane in one):
            return  # a part has nothing in some lane, which has a test of its own
        limit = data.draw(st.integers(1, 60))
        counts_of_a_lane = -(-limit // world.lanes)
        dataset = world.mixture(path)
        dataset.set_epoch(epoch)
        got = list(islice(dataset, limit))
        for lane in range(world.lanes):
            of_lane = got[lane :: world.lanes]
            assert len(of_lane) <= counts_of_a_lane
            for number in range(len(world.weights)):
                drawn = [item for item in of_lane if source_of(item) == number]
                endless = [item for one in parts[number] for item in one[lane]]
                if len(endless) >= len(drawn):
                    assert drawn == endless[: len(drawn)]
        cut = data.draw(st.integers(0, limit))
        first = world.mixture(path)
        first.set_epoch(epoch)
        assert list(islice(first, cut)) == got[:cut]
        resumed = world.mixture(path)
        resumed.load_state_dict(first.state_dict())
        assert list(islice(resumed, limit - cut)) == got[cut:]


@pytest.fixture
def folder(tmp_path):
    world = MixedWorld([[30], [20], [10]], ["stream"], 4, [[]] * 3, [1, 1, 1], 0, "first", 1)
    return world.write(tmp_path / "data")


def test_never_says_that_a_part_has_nothing_to_give(folder):
    for part, lanes in ((me.read(folder / "2"), 11), (me.read(folder / "2").filter(is_none), 1)):
        mixture = me.mix({"big": me.read(folder / "0"), "small": part}, stop="never").lanes(lanes)
        with pytest.raises(ValueError, match="The part 'small' of the mixture had no items in 10 passes"):
            list(islice(mixture, 1000))


def is_none(item):
    return False


def is_the_first(item):
    return item["id"] == 2 * APART


def test_never_passes_over_a_pass_that_gives_nothing_in_a_lane(folder):
    """One row is kept, and lies in one lane or the other, as the shuffle has it."""

    def build():
        rare = me.read(folder / "2").shuffle(5, level="row").filter(is_the_first)
        return me.mix([me.read(folder / "0"), rare], stop="never").lanes(2)

    whole = ids(islice(build(), 60))
    assert whole.count(2 * APART) == 30
    for cut in range(0, 60, 7):
        first = build()
        got = ids(islice(first, cut))
        second = build()
        second.load_state_dict(first.state_dict())
        assert got + ids(islice(second, 60 - cut)) == whole


@pytest.mark.parametrize("stop", ["first", "all"])
@pytest.mark.parametrize("mode", ["file", "example"])
def test_whole_files_to_each_rank(tmp_path, stop, mode):
    world = MixedWorld([[5, 7, 3], [4, 9]], list(FORMATS), 4, [[]] * 2, [2, 1], 0, stop, 3)
    path = world.write(tmp_path / "data")
    ranks = [me.mix(world.parts(path), [2, 1], stop=stop).lanes(3).shard(3, rank, mode) for rank in range(3)]
    got = [number for rank in ranks for number in ids(rank)]
    assert len(set(got)) == len(got)
    if stop == "all":
        assert len(got) == 28
    assert_resumes(me.mix(world.parts(path), [2, 1], stop=stop).lanes(3).shard(1, 0, mode))
