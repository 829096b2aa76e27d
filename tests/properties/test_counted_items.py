"""Items that are counted are those that reading yields: the same number, cursors, keys and values."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from counted import is_kept, mixtures, pipelines, plain_parts
from midepoch.dataset import plan_of
from midepoch.pipeline.pipeline import PipelineLanes
from midepoch.sources.source import EpochCut
from surveys import surveyed


def check_lane(lanes, pipeline, lane, data):
    opened = pipeline.source.open(1)
    read = list(lanes.flow(opened, lane, pipeline.begin).as_single_items())
    start = data.draw(st.integers(0, len(read)), label="start")
    cursor = pipeline.begin if start == 0 else read[start - 1][1]
    rest = read[start:]
    items = lanes.counted(lane, cursor)
    assert [items.has(number) for number in range(len(rest) + 2)] == [True] * len(rest) + [False] * 2
    fresh = lanes.counted(lane, cursor)
    assert fresh.total() == len(rest)
    assert [fresh.cursor(number) for number in range(len(rest) + 1)] == [cursor, *(single[1] for single in rest)]
    wanted = sorted(data.draw(st.sets(st.integers(0, len(rest) - 1)), label="wanted")) if rest else []
    cuts = sorted(data.draw(st.sets(st.integers(0, len(wanted))), label="cuts"))
    arrays = [array for array in np.split(np.array(wanted, np.int64), cuts) if len(array)]
    again = list(lanes.counted(lane, cursor).flow(opened, iter(arrays)).as_single_items())
    assert repr([single[0] for single in again]) == repr([rest[number][0] for number in wanted])
    assert [single[2] for single in again] == [rest[number][2] for number in wanted]
    opened.close()


@given(build=pipelines(), lanes=st.integers(1, 4), epoch=st.integers(0, 2), data=st.data())
def test_counted_items_are_those_that_reading_yields(files, build, lanes, epoch, data):
    pipeline = plan_of(build(files)).pipeline
    assert pipeline.why_not_counted() is None
    cut = PipelineLanes(pipeline, EpochCut(epoch=epoch, lanes=lanes))
    check_lane(cut, pipeline, data.draw(st.integers(0, lanes - 1)), data)


@given(
    build=mixtures(), lanes=st.integers(1, 3), epoch=st.integers(0, 1), batch=st.sampled_from([None, 2]), data=st.data()
)
def test_counted_draws_are_those_of_the_mixture(files, build, lanes, epoch, batch, data):
    dataset = build(files)
    pipeline = plan_of(dataset.batch(batch) if batch else dataset).pipeline
    cut = PipelineLanes(pipeline, EpochCut(epoch=epoch, lanes=lanes))
    check_lane(cut, pipeline, data.draw(st.integers(0, lanes - 1)), data)


@given(
    parts=st.lists(plain_parts(), min_size=1, max_size=3),
    lanes=st.integers(1, 2),
    start=st.integers(0, 150),
    data=st.data(),
)
def test_counted_draws_start_over_like_the_mixture(files, parts, lanes, start, data):
    pipeline = plan_of(me.mix([part(files) for part in parts], weights=[3, 2, 1][: len(parts)], stop="never")).pipeline
    cut = PipelineLanes(pipeline, EpochCut(epoch=0, lanes=lanes))
    opened = pipeline.source.open(1)
    read, flow = [], cut.flow(opened, 0, pipeline.begin).as_single_items()
    try:
        while len(read) < 300:
            read.append(next(flow))
    except ValueError:  # a part has no rows
        with pytest.raises(ValueError, match="no items in"):
            cut.counted(0, pipeline.begin).has(len(read))
        return
    cursor = read[start - 1][1] if start else pipeline.begin
    items = cut.counted(0, cursor)
    assert [items.cursor(number) for number in range(100)] == [cursor, *(single[1] for single in read[start:])][:100]
    wanted = np.array(sorted(data.draw(st.sets(st.integers(0, 140), min_size=1))))
    again = list(items.flow(opened, iter([wanted])).as_single_items())
    assert repr([single[::2] for single in again]) == repr([read[start + number][::2] for number in wanted])


def test_a_row_that_the_survey_keeps_and_the_filter_does_not_is_named(files):
    dataset = surveyed(me.read(files).filter(is_kept))
    stage = plan_of(dataset).pipeline.stages[0]
    changed = replace(stage, call=replace(stage.call, function=lambda row: is_kept(row) and row["id"] != 20))
    pipeline = replace(plan_of(dataset).pipeline, stages=(changed,))
    cut = PipelineLanes(pipeline, EpochCut(epoch=0, lanes=1))
    with pytest.raises(me.SurveyMismatchError, match=r"keeps row 3 of 2.arrow"):
        list(cut.counted(0, (0,)).flow(pipeline.source.open(1), iter([np.arange(30)])).as_single_items())
