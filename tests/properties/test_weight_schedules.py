"""Mixtures whose weights change are exact: resumed anywhere, on any ranks, counted or not."""

import json
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from midepoch import distributed
from worlds import ids, is_kept, write_files

keys = st.lists(st.integers(1, 60), max_size=3, unique=True)
weights = st.lists(st.integers(0, 5), min_size=2, max_size=2).filter(any)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    return [write_files(folder / name, [30, 25]) for name in "ab"]


def build(files, schedule, *, filtered, stop, lanes):
    a, b = (me.read(folder).shuffle(number, window=20).select_columns("id") for number, folder in enumerate(files))
    if filtered:
        b = b.filter(is_kept)
    return me.mix({"a": a, "b": b}, weights=schedule, stop=stop).lanes(lanes)


@settings(max_examples=12)
@given(
    at=keys,
    rows=st.lists(weights, min_size=4, max_size=4),
    ramp=st.booleans(),
    kind=st.sampled_from([(False, "first"), (False, "never"), (True, "never")]),
    lanes=st.integers(1, 4),
    layouts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    draw=st.data(),
)
def test_a_resume_on_other_ranks_changes_nothing(files, at, rows, ramp, kind, lanes, layouts, draw):
    filtered, stop = kind
    schedule = me.WeightSchedule(dict(zip([0, *at], rows, strict=False)), ramp=ramp)
    dataset = build(files, schedule, filtered=filtered, stop=stop, lanes=lanes)
    whole, most = [], 60
    for item in dataset:
        whole.append(item["id"])
        if len(whole) == most:
            break
    got, state = [], None
    for ranks in layouts:
        loaders = [me.Loader(dataset.shard(ranks, rank), even=None) for rank in range(ranks)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        steps = draw.draw(st.integers(0, (len(whole) - len(got)) // (ranks * lanes)), label="rounds") * lanes
        loops = [iter(loader) for loader in loaders]
        for _ in range(steps):
            got += [next(loop)["id"] for loop in loops]
        state = json.loads(json.dumps(me.merge_states([distributed.own_state(loader) for loader in loaders])))
    assert got == whole[: len(got)]


@settings(max_examples=12)
@given(at=keys, rows=st.lists(weights, min_size=4, max_size=4), ramp=st.booleans(), lanes=st.integers(1, 4))
def test_what_is_counted_is_what_is_read(files, at, rows, ramp, lanes):
    schedule = me.WeightSchedule(dict(zip([0, *at], rows, strict=False)), ramp=ramp)
    dataset = build(files, schedule, filtered=False, stop="first", lanes=lanes)
    assert dataset.counted
    loader = me.Loader(dataset.shard(1, 0))
    expected = len(loader)
    assert len(ids(loader)) == expected


def same_rows(columns):
    return {"id": columns["id"]}


def are_kept(columns):
    return [number % 3 != 0 for number in columns["id"]]


def part_in_groups(dataset, kind, size):
    if kind == "filter":
        return dataset.filter(are_kept, batched=True).survey()
    if kind == "map":
        return dataset.map(same_rows, batched=True, batch_size=size, one_to_one=True)
    return me.mix([part_in_groups(dataset, "map", size)] * 2, weights=[3, 1], stop="never")


@pytest.mark.parametrize(
    ("kinds", "lanes", "ranks"),
    [("map map", 2, 3), ("map filter", 1, 1), ("map mixture", 1, 1), ("map map 15", 1, 1)],
)
def test_a_part_that_is_no_longer_drawn_gives_out_a_group_that_is_not_full(files, kinds, lanes, ranks):
    schedule = me.WeightSchedule({0: [1, 1], 24: [1, 0]})
    *kinds_of_parts, batch = [*kinds.split(), None][:3]
    parts = [
        part_in_groups(me.read(folder).select_columns("id").shuffle(2), kind, 1000)
        for folder, kind in zip(files, kinds_of_parts, strict=True)
    ]
    if batch is not None:  # the last batch of a pass is not full
        parts = [part.batch(int(batch)) for part in parts]
    dataset = me.mix(parts, weights=schedule, stop="never").lanes(lanes).with_format("python")
    assert dataset.counted
    not_counted = dataset.filter(lambda item: True)  # then each part is read as far as its groups need
    for rank in range(ranks):
        expected, loader = (me.Loader(of.shard(ranks, rank), even=None) for of in (not_counted, dataset))
        got = list(islice(loader, 3))
        loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        got += islice(loader, 60)
        assert got == list(islice(expected, 63))


def test_another_schedule_is_an_edit_that_a_resume_names_and_begins(files, caplog):
    dataset = build(files, me.WeightSchedule({0: [1, 1], 20: [3, 1]}), filtered=False, stop="first", lanes=1)
    loop = iter(dataset)
    seen = [next(loop)["id"] for _ in range(10)]
    state = json.loads(json.dumps(dataset.state_dict()))
    for other in (me.WeightSchedule({0: [1, 1], 30: [3, 1]}), me.WeightSchedule({0: [1, 1], 20: [3, 1]}, ramp=True)):
        changed = build(files, other, filtered=False, stop="first", lanes=1)
        caplog.clear()
        changed.load_state_dict(state)
        assert "from item 0, 3 from item 20" in caplog.text
    same = build(files, me.WeightSchedule({0: [1, 1], 20: [3, 1]}), filtered=False, stop="first", lanes=1)
    caplog.clear()
    same.load_state_dict(state)
    assert caplog.text == ""
    assert seen + ids(same) == ids(dataset)
