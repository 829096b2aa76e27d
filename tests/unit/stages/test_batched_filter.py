"""A batched filter judges rows alone: whatever its batches, with and without a survey, it keeps the same rows."""

import json
from dataclasses import replace

import pyarrow.compute as pc
import pytest

import midepoch as me
from counted import are_kept, is_kept, is_odd, write_files
from midepoch.dataset import plan_of, with_plan
from midepoch.testing import RankRun, assert_elastic, assert_resumes
from surveys import without_survey


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


@pytest.mark.parametrize("kind", KINDS)
def test_E1_items_and_states_are_those_without_a_survey(data, kind):
    surveyed, unsurveyed = plain(data, kind).survey(), plain(data, kind)
    assert surveyed.counted
    assert not unsurveyed.counted
    items = []
    for one, other in zip(surveyed, unsurveyed, strict=True):
        assert str(one) == str(other)
        only_counted_runs_have = {"history": [], "checksum": ""}  # the checksum is that of the history, too
        states = [one_of.state_dict() | only_counted_runs_have for one_of in (surveyed, unsurveyed)]
        assert states[0] == states[1]
        items.append(str(one))
    assert len(plain(data, kind).survey()) == len(items)
    for saving, loading in ((surveyed, unsurveyed), (unsurveyed, surveyed)):
        saving.set_epoch(0)
        rows = iter(saving)
        got = shown(next(rows) for _ in range(6))
        loading.load_state_dict(json.loads(json.dumps(saving.state_dict())))
        assert got + shown(loading) == items
    assert_resumes(plain(data, kind).survey(), every=4)
    assert_elastic(plain(data, kind).survey(), [(2, 1), (3, 2), (1, 1)], steps=2)


def test_E1_the_state_of_one_rank_restores_all(data):
    expected = shown(plain(data, "rows").survey())
    runs = [RankRun(plain(data, "rows").survey().shard(2, rank), {**first(data)}, 1) for rank in range(2)]
    got = [shown(item for _, item in run.deliver(4)) for run in runs]
    rest = RankRun(plain(data, "rows").survey(), runs[1].state_dict(), 1)
    steps = [item for step in zip(*got, strict=True) for item in step]
    assert steps + shown(item for _, item in rest.deliver(None)) == expected


def first(data):
    return plain(data, "rows").survey().state_dict()


def test_order_steps_act_on_what_it_keeps(data):
    chosen = me.read(data).filter(are_kept, batched=True).survey()
    rows = me.read(data).filter(is_kept).survey()
    ids = [row["id"] for row in rows.shuffle(3, level="row").take(11)]
    assert [row["id"] for row in chosen.shuffle(3, level="row").take(11)] == ids
    assert_resumes(chosen.shuffle(3, level="row").take(11))
    assert repr(chosen.shuffle(3)).count("filter(are_kept") == 1


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


@pytest.mark.parametrize(
    "build",
    [
        lambda data: me.read(data).filter(are_kept, batched=True).filter(is_odd),
        lambda data: me.read(data).filter(is_odd).filter(are_kept, batched=True),
        lambda data: me.read(data, filters=pc.field("id") > 4).filter(are_kept, batched=True),
    ],
)
def test_with_other_filters_its_rows_are_counted(data, build):
    dataset = build(data).survey()
    assert dataset.counted
    assert shown(dataset) == shown(without_survey(build(data)))
    assert len(dataset) == len(list(build(data)))
    assert shown(dataset.shuffle(1)) == shown(dataset.shuffle(1)) != shown(dataset)
    assert_resumes(dataset.shuffle(1).batch(3))


def test_the_row_of_an_error_after_it_is_named(data):
    def fails(row):
        return 1 / (row["id"] - 20)

    with pytest.raises(ZeroDivisionError) as caught:
        list(me.read(data).filter(are_kept, batched=True).map(fails))
    assert caught.value.__notes__[0].endswith("fails), at row 3 of 2.arrow")


def test_rows_have_their_numbers_after_it(data):
    kept = me.read(data).filter(are_kept, batched=True).map(lambda row, index: {"index": index}, with_indices=True)
    assert [row["index"] for row in kept] == [row["id"] for row in kept]


def test_a_mixture_that_never_ends_and_of_which_nothing_is_kept_raises(data, monkeypatch):
    monkeypatch.setattr("midepoch.stages.flow.IDLE_ROWS", 5000)
    mixture = me.mix([me.read(data), me.read(data)], stop="never")
    with pytest.raises(ValueError, match="a filter keeps none"):
        next(iter(mixture.filter(lambda columns: [False] * len(columns["id"]), batched=True, batch_size=16)))
