"""Surveyed filters in the order: what a state says of them, what is refused, and what is checked when rows are read."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import midepoch as me
from files import write
from midepoch.dataset import plan_of, with_plan, with_stage
from midepoch.errors import CheckpointMismatchError, SurveyMismatchError
from midepoch.stages.skip import SkipErrors, SkipLog
from midepoch.testing import assert_resumes

ROWS = 60


@pytest.fixture
def folder(tmp_path):
    """Three Arrow files with the ids 0 to 59, and a list of tokens and a text for each."""
    for number in range(3):
        blocks = [range(first, first + 5) for first in range(20 * number, 20 * number + 20, 5)]
        batches = [
            pa.record_batch(
                {"id": list(rows), "input_ids": [[row] * (row % 4) for row in rows], "text": map(str, rows)}
            )
            for rows in map(list, blocks)
        ]
        write(tmp_path / "data" / f"{number}.arrow", batches)
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def _one_process(monkeypatch):
    monkeypatch.setattr("midepoch._common.jobs.usable_cores", lambda: 1)


def is_even(row):
    return row["id"] % 2 == 0


def has_text(row):
    return row["text"] != "6"


def double(row):
    return {"double": 2 * row["id"]}


def fail_on_odd(row):
    if row["id"] % 2:
        raise ValueError(f"row {row['id']} is broken")
    return row


def ids(dataset):
    return [row["id"] for row in dataset]


def ops(dataset):
    return [step["op"] for step in plan_of(dataset).pipeline.describe()]


def test_a_state_says_that_the_filter_acts_before_the_shuffle(folder, tmp_path):
    before = me.read(folder).map(double).filter(is_even).survey(folder=tmp_path / "a").shuffle(1)
    after = me.read(folder).shuffle(1).map(double).filter(is_even)
    assert ops(before) == ["survey", "shuffle", "map", "filter"]
    assert ops(after) == ["shuffle", "map", "filter"]
    for first, second in ((before, after), (after, before)):
        with pytest.raises(CheckpointMismatchError, match=r"stage 1 was .* then and is .* now"):
            second.load_state_dict(first.state_dict())


def test_a_state_does_not_depend_on_where_the_survey_is(folder, tmp_path):
    first, second = (me.read(folder).filter(is_even).survey(folder=tmp_path / name).shuffle(1) for name in "ab")
    iterator = iter(first)
    got = [next(iterator)["id"] for _ in range(11)]
    state = iterator.state_dict()
    assert str(tmp_path) not in str(state)
    second.load_state_dict(state)
    assert got + ids(second) == ids(me.read(folder).filter(is_even).survey().shuffle(1))


def test_a_state_of_other_kept_rows_is_refused(folder, monkeypatch):
    state = me.read(folder).filter(is_even).survey().shuffle(1).state_dict()
    monkeypatch.setattr(is_even, "__code__", (lambda row: row["id"] % 2 == 1).__code__)
    changed = me.read(folder).filter(is_even).survey(version=2).shuffle(1)
    with pytest.raises(CheckpointMismatchError, match="digest of stage 1, survey, was"):
        changed.load_state_dict(state)


def test_a_row_that_a_filter_no_longer_keeps_is_named(folder, monkeypatch):
    dataset = me.read(folder).filter(is_even).survey().skip(3)
    monkeypatch.setattr(is_even, "__code__", (lambda row: row["id"] % 4 == 0).__code__)
    with pytest.raises(SurveyMismatchError, match=r"filter keeps row 6 of 0\.arrow, and now it does not"):
        list(dataset)


def test_a_row_that_no_longer_matches_the_filters_of_read_is_named(folder):
    dataset = me.read(folder, filters=pc.field("id") > 20).survey().skip(5)
    other = plan_of(me.read(folder, filters=pc.field("id") > 30)).pipeline.source.where
    pipeline = plan_of(dataset).pipeline
    changed = replace(pipeline, source=replace(pipeline.source, where=other))
    with pytest.raises(SurveyMismatchError, match=r"read\(filters=...\) keeps row 6 of 1\.arrow, and now it does not"):
        list(with_plan(dataset, replace(plan_of(dataset), pipeline=changed)))


def test_samples_that_are_skipped_are_left_out_of_the_order(folder, monkeypatch):
    dataset = me.read(folder)
    call = plan_of(dataset).pipeline.call("decode", fail_on_odd)
    surveyed = with_stage(dataset, SkipErrors(call=call, skip_log=SkipLog())).survey().shuffle(1)
    assert sorted(ids(surveyed)) == list(range(0, ROWS, 2))
    assert_resumes(surveyed, every=7)
    monkeypatch.setattr(fail_on_odd, "__code__", (lambda row: 1 // 0).__code__)
    with pytest.raises(SurveyMismatchError, match="decode keeps row") as error:
        list(surveyed)
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_cached_rows_are_the_kept_ones(folder, tmp_path):
    dataset = me.read(folder).map(double).filter(is_even).survey().skip(4).shuffle(1).take(9)
    cached = dataset.cache(tmp_path / "cache")
    assert plan_of(cached).pipeline.source.index.view.rows == 26
    assert len(cached) == 9
    everything = me.read(folder).filter(is_even).survey().shuffle(1).cache(tmp_path / "all")
    assert sorted(ids(everything)) == list(range(0, ROWS, 2))


@pytest.mark.parametrize("name", ["shuffle", "take", "skip", "train_test_split"])
def test_without_a_survey_the_error_names_it(folder, name):
    arguments = [] if name == "shuffle" else [3]
    with pytest.raises(ValueError, match=rf"{name} after filter is not.*or call \.survey\(\) once"):
        getattr(me.read(folder).filter(is_even), name)(*arguments)
    with pytest.raises(ValueError, match=rf"{name} after filter is not.*or call \.survey\(\) once"):
        getattr(me.read(folder).filter(is_even).survey().filter(has_text), name)(*arguments)
    if name != "shuffle":
        with pytest.raises(ValueError, match=rf"{name} after read\(filters=...\) is not.*or call \.survey\(\) once"):
            getattr(me.read(folder, filters=pc.field("id") > 3), name)(*arguments)


def test_after_steps_that_scatter_rows_the_error_names_the_step(folder):
    for step, dataset in (
        ("shuffle", me.read(folder).shuffle(1).filter(is_even).survey()),
        ("train_test_split", me.read(folder).train_test_split(5).train.filter(is_even).survey()),
        ("survey", me.read(folder).filter(is_even).survey().take(9).filter(has_text).survey()),
    ):
        with pytest.raises(
            ValueError, match=rf"take after filter is not possible.*before {step}; or \.cache\(folder\)"
        ):
            dataset.take(3)
    with pytest.raises(ValueError, match=r"take after batch is not possible.*Put take first\.$"):
        me.read(folder).batch(3).take(3)
    with pytest.raises(ValueError, match=r"take after filter is not possible.*Put take first\.$"):
        me.read(folder).filter(is_even).survey().batch(3).take(3)


def test_there_is_nothing_left_to_survey(folder):
    for dataset in (me.read(folder).filter(is_even), me.read(folder, filters=pc.field("id") > 3)):
        shuffled = dataset.survey().shuffle(1)
        assert shuffled.survey() is shuffled
