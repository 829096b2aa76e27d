"""Counted draws: mixtures that never end, and parts that end or are drawn from rarely."""

from itertools import islice

import pytest

import midepoch as me
from midepoch.dataset import plan_of
from midepoch.pipeline import draws
from midepoch.pipeline.pipeline import PipelineLanes
from midepoch.sources.source import EpochCut
from worlds import ids, write_files


@pytest.fixture
def build(tmp_path):
    """Mixtures of a few rows."""
    sizes = {"a": [30], "b": [12], "few": [2]}
    folders = {name: write_files(tmp_path / name, size, ["stream"]) for name, size in sizes.items()}

    def build(stop, weights=(3, 2), first="a", inner_stop="never"):
        inner = me.mix([me.read(folders[first]), me.read(folders["b"]).shuffle(1)], weights, stop=inner_stop)
        return me.mix([inner, me.read(folders["b"])], [3, 2], stop=stop).lanes(2)

    return build


def read(dataset, items):
    """The items without counting."""
    pipeline = plan_of(dataset).pipeline
    lanes = PipelineLanes(pipeline, EpochCut(epoch=0, lanes=2))
    opened = pipeline.source.open(2)
    flows = [lanes.flow(opened, lane, pipeline.begin).as_single_items() for lane in (0, 1)]
    return ids(single[0] for _ in range(items // 2) for flow in flows for single in islice(flow, 1))


def test_a_part_that_ends_in_an_endless_mixture_does_not_look_for_more_of_its_items(build):
    dataset = build("all")
    assert ids(islice(dataset, 200)) == read(build("all"), 200)
    with pytest.raises(TypeError, match="never ends"):
        len(dataset)


def test_a_mixture_that_stops_first_has_a_length_though_a_part_never_ends(build):
    dataset = build("first")
    length = len(dataset)
    got = ids(dataset)
    assert len(got) == length
    assert got == read(build("first"), 2 * (length // 2))[: len(got)]


def counted(dataset):
    pipeline = plan_of(dataset).pipeline
    return PipelineLanes(pipeline, EpochCut(epoch=0, lanes=2)).counted(0, pipeline.begin), pipeline.source.open(1)


@pytest.mark.parametrize("stop", ["first", "all"])
def test_where_a_mixture_ends_does_not_depend_on_what_was_asked_before(build, stop):
    total = counted(build(stop, inner_stop=stop))[0].total()
    for asked in (range(total + 5), range(total + 5, -1, -1), range(total + 5, -1, -7), [0, 3, total - 1, total, 1]):
        items, _ = counted(build(stop, inner_stop=stop))
        assert [items.has(number) for number in asked] == [number < total for number in asked]
        assert items.cursor(total) == counted(build(stop, inner_stop=stop))[0].cursor(total)


def is_first(row):
    return row["id"] == 0


@pytest.mark.parametrize("is_surveyed", [False, True])
def test_a_pass_that_ended_before_a_resume_is_no_empty_one(tmp_path, monkeypatch, is_surveyed):
    monkeypatch.setattr(draws, "EMPTY_PASSES", 2)
    monkeypatch.setattr("midepoch._common.jobs.usable_cores", lambda: 1)
    folder = write_files(tmp_path / "few", [4], ["stream"])

    def part(seed):
        rows = me.read(folder).shuffle(seed, level="row").take(1).filter(is_first)
        return rows.survey() if is_surveyed else rows

    def has_item(rows, epoch):
        rows.set_epoch(epoch)
        return bool(list(rows))

    passes = {seed: [has_item(part(seed), epoch) for epoch in range(3)] for seed in range(100)}
    seed = next(seed for seed, has in passes.items() if has == [True, False, True])
    mixture = me.mix([part(seed), part(seed)], stop="never")
    whole = list(islice(mixture, 3))
    first = iter(mixture)
    next(first), next(first)
    mixture.load_state_dict(mixture.state_dict())
    assert list(islice(mixture, 1)) == whole[2:]
