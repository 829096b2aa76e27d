"""A batched filter judges rows alone: whatever its batches, with and without a survey, it keeps the same rows."""

from dataclasses import replace

import pytest

import midepoch as me
from counted import are_kept, write_files
from midepoch.dataset import plan_of, with_plan


@pytest.fixture(autouse=True)
def _in_process(monkeypatch):
    """Surveys run in this process."""
    monkeypatch.setattr("midepoch._common.jobs.usable_cores", lambda: 1)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    write_files(tmp_path / "data")
    return tmp_path / "data"


def noise(item, rng):
    return {"noise": int(rng.integers(1 << 40))}


def plain(data, kind, order="row"):
    rows = me.read(data).shuffle(3, level=order).filter(are_kept, batched=True, batch_size=7)
    if kind == "pack":
        return rows.pack(20, window=4).lanes(3)
    if kind == "concat":
        return rows.pack(20, strategy="concat").lanes(3)
    return rows.map(noise, with_rng=True).lanes(3) if kind == "random" else rows.lanes(3)


KINDS = ["rows", "random", "pack", "concat"]


def shown(items):
    return [str(item) for item in items]


def changed(dataset, function):
    pipeline = plan_of(dataset).pipeline
    stages = [
        replace(stage, call=replace(stage.call, function=function)) if stage.name == "filter" else stage
        for stage in pipeline.stages
    ]
    return with_plan(dataset, replace(plan_of(dataset), pipeline=replace(pipeline, stages=tuple(stages))))


def less(columns):
    return [keep and number != 20 for keep, number in zip(are_kept(columns), columns["id"], strict=True)]


def none(columns):
    return [False] * len(columns["id"])


def more(columns):
    return [keep or number == 21 for keep, number in zip(are_kept(columns), columns["id"], strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_that_changed_is_noticed(data, kind):
    surveyed = plain(data, kind).survey()
    with pytest.raises(me.SurveyMismatchError, match=r"filter keeps row 3 of 2.arrow, and now it does not"):
        list(changed(surveyed, less))
    with pytest.raises(me.SurveyMismatchError, match=r"filter leaves out row 4 of 2.arrow, and now it does not"):
        list(changed(surveyed, more))
    with pytest.raises(me.SurveyMismatchError, match=r"filter keeps row \d+ of \d.arrow, and now it does not"):
        list(changed(surveyed, none))
    chosen = me.read(data).filter(are_kept, batched=True).survey().shuffle(1)
    with pytest.raises(me.SurveyMismatchError, match=r"filter keeps row 3 of 2.arrow, and now it does not"):
        list(changed(chosen, less))


def test_the_row_of_an_error_after_it_is_named(data):
    def fails(row):
        return 1 / (row["id"] - 20)

    with pytest.raises(ZeroDivisionError) as caught:
        list(me.read(data).filter(are_kept, batched=True).map(fails))
    assert caught.value.__notes__[0].endswith("fails), at row 3 of 2.arrow")
