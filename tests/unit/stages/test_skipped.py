"""A resume inside a group forms the same group, or raises, although other samples are skipped now than before."""

import json
import logging
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import midepoch as me
from midepoch.dataset import with_stage
from midepoch.stages.skip import SkipErrors, SkipLog
from midepoch.stages.stage import Call

ROWS = 24


class Flaky:
    """Makes ``number % 4 + 1`` tokens of a row, but fails on some rows."""

    def __init__(self, failing):
        self.failing = frozenset(failing)

    def __call__(self, row):
        if row["id"] in self.failing:
            raise ValueError(f"{row['id']} is broken")
        return {"input_ids": [row["id"]] * (row["id"] % 4 + 1)}


def twice(columns):
    return {"input_ids": [tokens for tokens in columns["input_ids"] for _ in range(2)]}


def is_no_seventh(row):
    return row["input_ids"][0] % 7 != 0


GROUPS = {
    "first_fit": lambda ds: ds.pack(3, strategy="first_fit", window=5),
    "best_fit": lambda ds: ds.filter(is_no_seventh).pack(7, strategy="best_fit", window=7),
    "concat": lambda ds: ds.pack(3, strategy="concat"),
    "batched": lambda ds: ds.map(twice, batched=True, batch_size=5),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    pq.write_table(pa.table({"id": range(ROWS)}), folder / "part-0.parquet", row_group_size=4)
    return folder


def build(folder, kind, failing, lanes=1):
    rows = me.read(folder)
    call = Call(function=Flaky(failing), stage="process", number=1)
    return GROUPS[kind](with_stage(rows, SkipErrors(call=call, skip_log=SkipLog()))).lanes(lanes)


def tokens(items):
    return Counter(token for item in items for token in np.asarray(item["input_ids"]).tolist())


def cut(folder, kind, failing, items, lanes=1):
    """The first items of a run, and its state after them."""
    dataset = build(folder, kind, failing, lanes)
    iterator = iter(dataset)
    first = [next(iterator) for _ in range(items)]
    return first, json.loads(json.dumps(dataset.state_dict()))


def resumed(folder, kind, failing, state, lanes=1):
    dataset = build(folder, kind, failing, lanes)
    dataset.load_state_dict(state)
    dataset.set_epoch(0)  # if nothing is left of this epoch, do not continue with the next
    return list(dataset)


FEW = st.frozensets(st.integers(0, ROWS - 1), max_size=4)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(list(GROUPS)), FEW, FEW, FEW, st.data(), st.integers(1, 2))
def test_no_sample_is_repeated_or_lost_whichever_fail_after_the_cut(
    folder, caplog, kind, recovered, broken, always, data, lanes
):
    caplog.set_level(logging.CRITICAL)
    then, now = always | recovered, always | broken
    whole = list(build(folder, kind, then, lanes))
    stop = data.draw(st.integers(0, len(whole) - 1))
    first, state = cut(folder, kind, then, stop, lanes)
    try:
        rest = resumed(folder, kind, now, state, lanes)
    except me.CheckpointMismatchError:
        assert then != now
        return
    delivered, full = tokens(first + rest), tokens(build(folder, kind, (), lanes))
    for number in range(ROWS):
        expected = {full[number]} if number not in then | now else {0, full[number]}
        assert delivered[number] in expected, number
    if then == now:
        assert [np.asarray(item["input_ids"]).tolist() for item in first + rest] == [
            np.asarray(item["input_ids"]).tolist() for item in whole
        ]


@pytest.mark.parametrize("kind", ["first_fit", "best_fit", "batched"])
def test_samples_skipped_at_the_end_of_a_lane_belong_to_its_last_group(folder, kind, caplog):
    caplog.set_level(logging.CRITICAL)
    then = {20, 23}
    whole = list(build(folder, kind, then))
    first, state = cut(folder, kind, then, len(whole) - 1)
    assert state["cursors"][0][1][1], "the cut is inside a group"
    assert tokens(first + resumed(folder, kind, then, state)) == tokens(whole)
    for now in ({20}, {23}, {20, 22, 23}, range(ROWS)):
        with pytest.raises(me.CheckpointMismatchError, match="other samples are skipped as broken"):
            resumed(folder, kind, now, state)


@pytest.mark.parametrize("kind", list(GROUPS))
def test_a_sample_that_fails_now_is_refused_and_the_group_is_named(folder, kind, caplog):
    caplog.set_level(logging.CRITICAL)
    _, state = cut(folder, kind, (), 3 if kind == "concat" else 1)
    inside = state["cursors"][0][1][0]  # the row at which the group, or the document that is cut, begins
    inside += kind == "best_fit"  # which leaves out row 0
    assert state["cursors"][0][1][1], "the cut is inside a group"
    with pytest.raises(me.CheckpointMismatchError, match=f"It begins at row {inside + 1} of part-0.parquet now"):
        resumed(folder, kind, {inside}, state)


@pytest.mark.parametrize("kind", ["first_fit", "best_fit", "concat"])
def test_states_with_and_without_a_survey_load_into_each_other(folder, kind, caplog, tmp_path):
    caplog.set_level(logging.CRITICAL)
    then = {1, 8, 17}
    whole = [item["input_ids"].tolist() for item in build(folder, kind, then)]

    def surveyed(failing):
        return build(folder, kind, failing).survey(folder=tmp_path / str(len(failing)), version=len(failing))

    def resumed_by(dataset, state):
        dataset.load_state_dict(state)
        dataset.set_epoch(0)
        return [item["input_ids"].tolist() for item in dataset]

    for stop in range(1, len(whole)):
        _, state = cut(folder, kind, then, stop)
        dataset = surveyed(then)
        assert resumed_by(dataset, state) == whole[stop:]
        iterator = iter(counted := surveyed(then))
        for _ in range(stop):
            next(iterator)
        of_counts = json.loads(json.dumps(counted.state_dict()))
        assert len(of_counts["cursors"][0][1]) == 3
        assert resumed_by(build(folder, kind, then), of_counts) == whole[stop:]
        if state["cursors"][0][1][0] == 0 and state["cursors"][0][1][2] and kind != "concat":
            with pytest.raises(me.CheckpointMismatchError, match="other samples are skipped as broken"):
                resumed_by(surveyed({2, 3}), state)


def test_pipelines_that_skip_nothing_have_no_check(folder):
    dataset = me.read(folder).map(Flaky(())).pack(6, strategy="first_fit", window=5)
    next(iter(dataset))
    assert dataset.state_dict()["cursors"] == [[1, [0, 1]]]
