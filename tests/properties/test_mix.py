"""Mixtures: exact shares, exact ends, exact resumes, whatever the parts, the weights and the cut."""

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import midepoch as me
from midepoch.dataset import plan_of
from midepoch.pipeline.pipeline import PipelineLanes
from midepoch.pipeline.schedule import integer_weights
from midepoch.sources.source import EpochCut
from midepoch.testing import assert_elastic, assert_resumes, same
from schedules import OneByOne
from worlds import FORMATS, SUFFIXES, batch_is_kept, ids, is_kept, jitter, keep_even, plus_one, spread, table, write

many = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SPREAD = {"batched": True, "batch_size": 5, "remove_columns": ["text", "tokens", "maybe"]}
APART = 1000
"""The rows of part ``p`` are numbered from ``APART * p`` on, so an id says whose it is."""

ORDERS = [
    [],
    [("shuffle", (1,), {"window": 7})],
    [("shuffle", (2,), {"level": "row"})],
    [("shuffle", (3,), {"level": "file"})],
]
PART_STAGES = [
    [],
    [],
    [("map", (plus_one,), {})],
    [("map", (jitter,), {"with_rng": True})],
    [("filter", (is_kept,), {})],
    [("filter", (keep_even,), {"batched": True})],
    [("map", (spread,), SPREAD)],
]
BEHIND = [
    [],
    [("map", (jitter,), {"with_rng": True})],
    [("filter", (is_kept,), {})],
    [("select_columns", (["id"],), {})],
    [("select_columns", (["id"],), {}), ("batch", (3,), {})],
    [("select_columns", (["id"],), {}), ("with_format", ("numpy",), {}), ("batch", (4,), {})],
    [("select_columns", (["id"],), {}), ("with_format", ("arrow",), {}), ("batch", (4,), {})],
    [("select_columns", (["id"],), {}), ("map", (spread,), {"batched": True, "batch_size": 5})],
    [("select_columns", (["id"],), {}), ("filter", (keep_even,), {"batched": True})],
    [("select_columns", (["id"],), {}), ("batch", (2,), {"drop_last_batch": True}), ("filter", (batch_is_kept,), {})],
]


def called(dataset: me.Dataset, calls: list[Any]) -> me.Dataset:
    for name, args, options in calls:
        dataset = getattr(dataset, name)(*args, **options)
    return dataset


@dataclass(frozen=True)
class MixedWorld:
    """Parts, each in a folder of its own, and a mixture of them."""

    sizes: list[list[int]]
    kinds: list[str]
    block: int
    calls: list[list[Any]]
    weights: list[float]
    seed: int
    stop: str
    lanes: int
    nested: bool = False
    behind: list[Any] = field(default_factory=list)

    def write(self, folder: Path) -> Path:
        for number, sizes in enumerate(self.sizes):
            (folder / f"{number}").mkdir(parents=True)
            first = APART * number
            for file, size in enumerate(sizes):
                kind = self.kinds[(number + file) % len(self.kinds)]
                write(folder / f"{number}" / f"part-{file}{SUFFIXES[kind]}", table(first, size), kind, self.block)
                first += size
        return folder

    def parts(self, folder: Path) -> list[me.Dataset]:
        return [called(me.read(folder / f"{number}"), calls) for number, calls in enumerate(self.calls)]

    def mixture(self, folder: Path) -> me.Dataset:
        parts, weights = self.parts(folder), self.weights
        if self.nested and len(parts) > 2:
            inner = me.mix(parts[1:], weights[1:] if any(weights[1:]) else None, seed=self.seed + 1, stop="all")
            parts, weights = [parts[0], inner], [weights[0], sum(weights[1:]) or 1.0]
        return me.mix(parts, weights, seed=self.seed, stop=self.stop).lanes(self.lanes)

    def build(self, folder: Path) -> me.Dataset:
        return called(self.mixture(folder), self.behind)


WEIGHTS = st.sampled_from([1.0, 1.0, 0.5, 0.3, 0.25, 0.01, 3.0, 0.0, 1 / 3])


@st.composite
def mixtures(draw, stops=("first", "all"), plain=False, behind=True):
    count = draw(st.integers(1, 4))
    sizes = st.lists(st.sampled_from([0, 1, 5, 12, 20]), min_size=1, max_size=2)
    return MixedWorld(
        sizes=draw(st.lists(sizes, min_size=count, max_size=count)),
        kinds=draw(st.lists(st.sampled_from(FORMATS), min_size=1, max_size=3)),
        block=draw(st.integers(1, 12)),
        calls=[
            [*draw(st.sampled_from(ORDERS)), *([] if plain else draw(st.sampled_from(PART_STAGES)))]
            for _ in range(count)
        ],
        weights=draw(st.lists(WEIGHTS, min_size=count, max_size=count).filter(any)),
        seed=draw(st.integers(0, 3)),
        stop=draw(st.sampled_from(stops)),
        lanes=draw(st.integers(1, 4)),
        nested=draw(st.booleans()) and behind,
        behind=draw(st.sampled_from(BEHIND)) if behind else [],
    )


@many
@given(mixtures())
def test_cut_after_every_item_and_resumed_twice(world):
    with tempfile.TemporaryDirectory() as folder:
        dataset = world.build(world.write(Path(folder)))
        assert_resumes(dataset, every=1 + len(list(world.build(Path(folder)))) // 8)


@many
@given(mixtures(), st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=2, max_size=3), st.integers(0, 5))
def test_any_number_of_ranks_and_workers_one_after_the_other(world, legs, steps):
    with tempfile.TemporaryDirectory() as folder:
        assert_elastic(world.build(world.write(Path(folder))), legs, steps=steps)


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


@many
@given(mixtures(behind=False), st.integers(0, 2))
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


@many
@given(mixtures(stops=("never",), behind=False), st.integers(0, 1), st.data())
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


def test_never_shuffles_again_in_every_pass(folder):
    mixture = me.mix([me.read(folder / "0").shuffle(1, window=8), me.read(folder / "2").shuffle(1)], stop="never")
    small = [number for number in ids(islice(mixture, 80)) if number >= 2 * APART]
    passes = [tuple(small[at : at + 10]) for at in range(0, 40, 10)]
    assert all(sorted(one) == list(range(2 * APART, 2 * APART + 10)) for one in passes)
    assert len(set(passes)) == 4


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


def test_several_epochs_and_set_epoch(folder):
    def build():
        parts = [me.read(folder / name).shuffle(1, window=8) for name in ("0", "1", "2")]
        return me.mix(parts, [3, 2, 1], stop="all").lanes(2)

    dataset = build()
    epochs = [ids(dataset) for _ in range(3)]
    assert all(len(epoch) == 60 and sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    for epoch in (2, 0, 1):
        chosen = build()
        chosen.set_epoch(epoch)
        first = ids(islice(chosen, 7))
        chosen.set_epoch(epoch)
        assert ids(chosen) == epochs[epoch]
        assert first == epochs[epoch][:7]
    assert ids(build().repeat(3)) == [number for epoch in epochs for number in epoch]


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


@pytest.mark.parametrize("form", ["python", "numpy", "torch", "arrow"])
@pytest.mark.parametrize("order", [[], ORDERS[1]])
def test_runs_and_single_items_are_the_same(tmp_path, form, order):
    """Parts of equal columns are drawn in runs; a function on one of them has them drawn item by item."""
    world = MixedWorld([[40], [30], [20]], list(FORMATS), 7, [order] * 3, [0.5, 0.3, 0.2], 1, "all", 2)
    path = world.write(tmp_path / "data")

    def build(*, one_by_one, batch):
        parts = [part.with_format(form) for part in world.parts(path)]
        if one_by_one:
            parts[1] = parts[1].filter(is_any)
        mixture = me.mix(dict(zip("abc", parts, strict=True)), world.weights, stop="all").lanes(2)
        assert (plan_of(mixture).pipeline.schema is None) == one_by_one
        # A null among ints looks different in a batch of columns and in one of single items, mixed or not.
        return mixture.select_columns(["id", "text", "tokens"]).batch(batch) if batch else mixture

    for batch in (None, 4):
        one, other = (list(build(one_by_one=alone, batch=batch)) for alone in (False, True))
        assert ids(one) == ids(other)
        assert all(map(same, one, other))
        assert_resumes(build(one_by_one=False, batch=batch), every=5)


def is_any(item):
    return True


def test_parts_of_other_columns_are_drawn_one_by_one(folder):
    parts = [me.read(folder / "0"), me.read(folder / "1", columns=["id", "text"])]
    items = list(me.mix(parts, stop="all"))
    assert {tuple(item) for item in items} == {("id", "text", "tokens", "maybe"), ("id", "text")}
    with pytest.raises(ValueError, match="A batch needs items with the same columns"):
        list(me.mix(parts).batch(4))
    assert len(ids(me.mix([part.select_columns(["text", "id"]) for part in parts], stop="all").batch(4))) == 50
