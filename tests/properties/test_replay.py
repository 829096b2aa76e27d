"""Replays against recorded runs of pipelines that nobody has counted: packs, filters and mixtures, through resizes."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from counted import is_kept, mixtures, pipelines
from midepoch.dataset import Dataset
from midepoch.delivery import replay
from midepoch.delivery.trace import find, trace
from midepoch.pipeline.lane_origins import LaneOrigins
from midepoch.stages.origins import Origins
from midepoch.testing import RankRun
from tracing import content, eos_of, traced_content

RANKS = st.lists(st.integers(1, 3), min_size=1, max_size=3)


def uncounted(dataset):
    """The same dataset without what a survey knows."""

    def bare(pipeline):
        source = pipeline.source
        if hasattr(source, "parts"):
            source = replace(source, parts=tuple(map(bare, source.parts)))
        return replace(pipeline, source=source, survey=None, own_lengths=None)

    return Dataset(replace(dataset.plan, pipeline=bare(dataset.plan.pipeline)))


def on(dataset, ranks, rank):
    return Dataset(replace(dataset.plan, ranks=ranks, rank=rank))


def recorded_run(dataset, layouts, all_steps, workers):
    """What each rank received in the last session, and the run at its start; None if the epoch ended before."""
    state = dataset.state_dict()
    batched = dataset.plan.pipeline.item_spec[1]
    for number, ranks in enumerate(layouts):
        runs = [RankRun(on(dataset, ranks, rank), state, workers) for rank in range(ranks)]
        last = number == len(layouts) - 1
        received = [[content(item, batched) for _, item in run.deliver(None if last else all_steps)] for run in runs]
        if not last:
            states = [run.state_dict() for run in runs]
            if any(one["epoch"] for one in states):
                return None
            state = me.merge_states(states)
    resumed = on(dataset, layouts[-1], 0)
    resumed.load_state_dict(state)
    return received, resumed.start_point.latest(resumed.plan)


def check_replayed(dataset, layouts, steps, workers, *, finds=True):
    if dataset.plan.pipeline.counted:  # which has other tests, and needs no merged states
        return
    recorded = recorded_run(dataset, layouts, steps, workers)
    if recorded is None or not any(recorded[0]):
        return
    received, run = recorded
    lines = []
    for step in range(max(map(len, received))):
        of_step = trace(run, step).to_pylist()
        lines += of_step
        for rank, items in enumerate(received):
            got = traced_content([line for line in of_step if line["rank"] == rank], eos_of(dataset))
            assert got == (items[step] if step < len(items) else []), f"step {step}, rank {rank}"
    with pytest.raises(IndexError, match="has no step"):
        trace(run, max(map(len, received)))
    for file, row in sorted({(line["file"], line["row"]) for line in lines})[:: 7 if finds else 1000]:
        of_row = [line for line in lines if (line["file"], line["row"]) == (file, row)]
        assert sorted(find(run, file, row).to_pylist(), key=str) == sorted(of_row, key=str)


@settings(max_examples=12)
@given(build=pipelines(), layouts=RANKS, lanes=st.integers(1, 4), steps=st.integers(0, 4), workers=st.integers(1, 2))
def test_a_replay_says_what_every_rank_received(files, build, layouts, lanes, steps, workers):
    with patch.object(replay, "MOST_NOTED", 9):
        check_replayed(uncounted(build(files)).lanes(lanes), layouts, steps, workers)


@settings(max_examples=25)
@given(
    build=mixtures(),
    layouts=RANKS,
    lanes=st.integers(1, 4),
    steps=st.integers(0, 4),
    batch=st.sampled_from([0, 3]),
)
def test_a_replay_of_a_mixture_says_what_every_rank_received(files, build, layouts, lanes, steps, batch):
    dataset = uncounted(build(files)).lanes(lanes)
    with patch.object(replay, "MOST_NOTED", 9):
        check_replayed(dataset.batch(batch) if batch else dataset, layouts, steps, 1)


def mixed_packs(files, stop="all"):
    """A mixture of packs of both kinds and of a filter, none of them counted."""
    rows = me.read(files)
    parts = {
        "windows": rows.shuffle(3).pack(20, window=7),
        "stream": rows.shuffle(4).filter(is_kept).pack(11, strategy="concat", eos=7),
    }
    return uncounted(me.mix(parts, weights=[1, 2], stop=stop).lanes(3).batch(2))


def test_parts_of_packs_are_replayed(files):
    dataset = mixed_packs(files)
    recorded = recorded_run(dataset, [2, 3], 2, 1)
    received, run = recorded
    for step in range(max(map(len, received))):
        lines = trace(run, step).to_pylist()
        for rank, items in enumerate(received):
            own = [line for line in lines if line["rank"] == rank]
            got = []
            for place in sorted({line["place"] for line in own}):
                pack = [line for line in own if line["place"] == place]
                eos = {"windows": None, "stream": 7}[pack[0]["part"]]
                got += traced_content([{**line, "place": 0} for line in pack], eos)
            assert got == (items[step] if step < len(items) else [])


def test_the_rows_of_an_endless_mixture_are_traced_and_not_searched(files):
    dataset = mixed_packs(files, stop="never")
    run = dataset.start_point.latest(dataset.plan)
    assert trace(run, 200).num_rows > 0
    with pytest.raises(ValueError, match=r"The mixture never ends, .* Ask for the rows of single steps"):
        find(run, "0.arrow", 0)


def later(self, keys, bounds, inputs, **tokens):
    return right_note(self, keys, bounds, np.roll(inputs, 1), **tokens)


def one_off(self, numbers):
    rows = right_trace(self, numbers)
    return rows.with_columns(starts=rows.starts + 1)


right_note, right_trace = Origins.note, LaneOrigins.trace


@pytest.mark.parametrize(("target", "name", "planted"), [(Origins, "note", later), (LaneOrigins, "trace", one_off)])
def test_a_planted_bug_is_seen(files, target, name, planted):
    dataset = uncounted(me.read(files).shuffle(3).filter(is_kept).pack(20, window=7, eos=7).lanes(3).batch(2))
    check_replayed(dataset, [2, 3], 2, 1)
    with patch.object(target, name, planted), pytest.raises(AssertionError):
        check_replayed(dataset, [2, 3], 2, 1)
