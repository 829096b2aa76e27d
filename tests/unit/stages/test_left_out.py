"""A filter that keeps other rows than its survey says is noticed, whether they are more or fewer."""

from dataclasses import replace

import pyarrow.compute as pc
import pytest

import midepoch as me
from counted import ROWS, is_kept, is_odd, write_files
from midepoch.dataset import plan_of, with_plan
from midepoch.stages.counted import SHARE


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    write_files(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch):
    monkeypatch.setattr("midepoch._common.jobs.usable_cores", lambda: 1)


def changed(dataset, function, stage=-1):
    """The dataset whose filter has changed since the survey."""
    pipeline = plan_of(dataset).pipeline
    stages = list(pipeline.stages)
    filters = [number for number, each in enumerate(stages) if each.name == "filter"]
    number = filters[stage]
    stages[number] = replace(stages[number], call=replace(stages[number].call, function=function))
    return with_plan(dataset, replace(plan_of(dataset), pipeline=replace(pipeline, stages=tuple(stages))))


def of_columns(function):
    """The function for a batched filter."""
    return lambda columns: [bool(function({"id": number})) for number in columns["id"]]


def build(data, kind):
    rows = me.read(data).shuffle(3, level="row") if kind != "plain" else me.read(data)
    filtered = rows.filter(is_kept)
    if kind in ("batched", "packed batches"):
        filtered = rows.filter(of_columns(is_kept), batched=True, batch_size=7)
    if kind == "two filters":
        filtered = filtered.map(dict).filter(is_odd)
    if kind in ("pack", "packed batches"):
        filtered = filtered.pack(20, window=7)
    return filtered.lanes(2).survey()


KINDS = ["plain", "shuffled", "two filters", "pack", "batched", "packed batches"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_row_more_is_named(data, kind):
    dataset = build(data, kind)
    before = is_odd if kind == "two filters" else is_kept
    # Row 21 of the dataset is row 4 of the third file. Both filters have to keep it.
    now = of_columns if "batche" in kind else lambda function: function
    surveyed = changed(dataset, now(lambda row: before(row) or row["id"] == 21))
    surveyed = changed(surveyed, lambda row: is_kept(row) or row["id"] == 21, 0) if kind == "two filters" else surveyed
    message = r"The survey says that filter leaves out row 4 of 2.arrow, and now it does not.*survey\(version="
    with pytest.raises(me.SurveyMismatchError, match=message):
        list(surveyed)


@pytest.mark.parametrize("kind", KINDS)
def test_one_row_less_is_named(data, kind):
    dataset = build(data, kind)
    before = is_odd if kind == "two filters" else is_kept
    now = of_columns if "batche" in kind else lambda function: function
    message = r"The survey says that filter keeps row 6 of 2.arrow, and now it does not.*survey\(version="
    with pytest.raises(me.SurveyMismatchError, match=message):
        list(changed(dataset, now(lambda row: before(row) and row["id"] != 23)))


def test_a_row_that_only_one_of_two_filters_keeps_now_is_no_difference(data):
    dataset = build(data, "two filters")
    expected = [row["id"] for row in dataset]
    assert [row["id"] for row in changed(dataset, lambda row: is_kept(row) or row["id"] == 30, 0)] == expected


def test_filters_of_read_are_checked_too(data):
    dataset = me.read(data, filters=pc.field("id") > 20).survey()
    pipeline = plan_of(dataset).pipeline
    where = plan_of(me.read(data, filters=pc.field("id") > 15)).pipeline.source.where
    other = replace(pipeline, source=replace(pipeline.source, where=where))
    with pytest.raises(me.SurveyMismatchError, match=r"that read\(filters=...\) leaves out row 0 of 2.arrow"):
        list(with_plan(dataset, replace(plan_of(dataset), pipeline=other)))


def test_ranks_and_mixtures_check_too(data):
    wrong = changed(build(data, "shuffled"), lambda row: True)
    for rank in range(3):
        with pytest.raises(me.SurveyMismatchError, match="leaves out"):
            list(wrong.shard(3, rank))
    parts = [changed(me.read(data).filter(is_kept).survey(), lambda row: True), me.read(data)]
    with pytest.raises(me.SurveyMismatchError, match="leaves out"):
        list(me.mix(parts, [1, 1]))


def test_few_rows_are_read_to_check(monkeypatch, data):
    calls = []

    def counting(row):
        calls.append(row["id"])
        return is_kept(row)

    kept = len(list(changed(build(data, "plain"), counting)))
    assert kept == ROWS * 2 // 3
    assert len(calls) == len(set(calls)) <= ROWS
    monkeypatch.setattr("midepoch.stages.counted.FIRST", 0)
    calls.clear()
    list(changed(build(data, "plain"), counting))
    assert kept < len(calls) <= 2 * (kept // 2 + kept // 2 // SHARE)
