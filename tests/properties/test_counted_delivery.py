"""Counted pipelines are delivered exactly: the state of any one rank restores all ranks, whatever their number."""

import json
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import midepoch as me
from counted import mixtures, pipelines
from legs import on
from midepoch.checkpoint.state import State
from midepoch.dataset import plan_of, with_plan
from midepoch.testing import RankRun

layouts = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4)


def whole(dataset, epoch):
    dataset = on(dataset, 1, 0)
    dataset.set_epoch(epoch)
    return list(map(repr, dataset))


def check_elastic(dataset, layouts, epoch, data):
    """Run through an epoch on these layouts. Each resumes from the state that one random rank of the last saved."""
    expected = whole(dataset, epoch)
    dataset.set_epoch(epoch)
    state = dataset.state_dict()
    got = []
    for number, (ranks, workers) in enumerate(layouts):
        runs = [RankRun(on(dataset, ranks, rank), state, workers) for rank in range(ranks)]
        left = len(expected) - len(got)
        steps = -(-left // ranks)
        if number < len(layouts) - 1:
            steps = data.draw(st.integers(0, left // ranks), label=f"steps of {ranks} ranks of {workers} workers")
        delivered = [list(run.deliver(steps)) for run in runs]
        numbers = sorted(map(len, delivered))
        assert numbers[-1] - numbers[0] <= 1, "ranks differ by one item at most"
        assert plan_of(dataset).pipeline.uniform or not any(run.passed_empty for run in runs)
        got += [repr(item) for _, item in sorted(chain.from_iterable(delivered), key=lambda pair: pair[0])]
        saver = data.draw(st.integers(0, ranks - 1), label="the rank that saves")
        state = json.loads(json.dumps(runs[saver].state_dict()))
        if numbers[0] == numbers[-1]:
            assert all(json.loads(json.dumps(run.state_dict())) == state for run in runs)
    assert got == expected


@given(build=pipelines(), layouts=layouts, lanes=st.integers(1, 5), epoch=st.integers(0, 2), data=st.data())
def test_the_state_of_one_rank_restores_all(files, build, layouts, lanes, epoch, data):
    check_elastic(build(files).lanes(lanes), layouts, epoch, data)


@given(build=mixtures(), layouts=layouts, lanes=st.integers(1, 4), batch=st.sampled_from([0, 3]), data=st.data())
def test_the_state_of_one_rank_of_a_mixture_restores_all(files, build, layouts, lanes, batch, data):
    dataset = build(files).lanes(lanes)
    check_elastic(dataset.batch(batch) if batch else dataset, layouts, 0, data)


@given(build=pipelines(batched=False), layout=st.tuples(st.integers(1, 3), st.integers(1, 3)), data=st.data())
def test_a_batch_size_can_change_anywhere(files, build, layout, data):
    dataset = build(files).lanes(data.draw(st.integers(1, 4)))
    rows = whole(dataset, 0)
    before, after = dataset.batch(3), dataset.batch(2)
    ranks, workers = layout
    runs = [RankRun(on(before, ranks, rank), before.state_dict(), workers) for rank in range(ranks)]
    steps = data.draw(st.integers(0, len(whole(before, 0)) // ranks))
    first = [item for run in runs for _, item in run.deliver(steps)]
    state = runs[-1].state_dict()
    runs = [RankRun(on(after, workers, rank), state, ranks) for rank in range(workers)]
    second = [item for run in runs for _, item in run.deliver(None)]
    got = [repr(row) for batch in (*first, *second) for row in unbatched(batch)]
    assert len(got) == len(rows)
    if rows and "id" in rows[0] and "input_ids" not in rows[0]:
        assert sorted(got) == sorted(rows)


def unbatched(batch):
    sizes = {len(values) for values in batch.values()}
    assert len(sizes) == 1
    return [{name: values[number] for name, values in batch.items()} for number in range(*sizes)]


@given(build=pipelines(), lanes=st.integers(1, 4), ranks=st.integers(1, 4), epoch=st.integers(0, 2))
def test_the_length_is_the_number_of_items(files, build, lanes, ranks, epoch):
    for rank in range(ranks):
        dataset = on(build(files).lanes(lanes), ranks, rank)
        dataset.set_epoch(epoch)
        length = len(dataset)
        assert length == len(list(dataset))


@given(build=pipelines(), lanes=st.integers(1, 4), cut=st.integers(0, 30), data=st.data())
def test_a_state_loads_with_and_without_the_survey(files, build, lanes, cut, data):
    dataset = build(files).lanes(lanes)
    plain = with_plan(dataset, replace(plan_of(dataset), pipeline=replace(plan_of(dataset).pipeline, survey=None)))
    expected = whole(dataset, 0)
    for first, second in ((dataset, plain), (plain, dataset)):
        iterator = iter(first)
        got = [repr(item) for _, item in zip(range(cut), iterator, strict=False)]
        state = json.loads(json.dumps(iterator.state_dict()))
        if State.from_dict(state).epoch:
            continue
        second.load_state_dict(state)
        note(f"{state['turn']} {state['cursors']}")
        got += map(repr, second)
        if len(got) > len(expected):  # nothing was left of the epoch
            got = got[: len(expected)]
        assert sorted(got) == sorted(expected)


def test_what_is_not_counted_says_why(files):
    dataset = me.read(files).shuffle(1)
    assert dataset.counted
    assert dataset.why_not_counted() is None
    filtered = dataset.filter(lambda row: True)
    assert not filtered.counted
    assert "filter" in filtered.why_not_counted()
    assert ".survey()" in filtered.why_not_counted()
    with pytest.raises(TypeError, match=r"length is unknown: how many items filter"):
        len(filtered)
    assert "one_to_one=True" in dataset.map(lambda columns: columns, batched=True).why_not_counted()
    assert me.mix([dataset, dataset], weights=[0.123456789, 0.7654321]).counted
