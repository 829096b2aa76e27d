"""Stages that work on one item at a time, on rows as columns and on single items."""

import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from in_memory import CONTEXT, assert_resumes_anywhere, flow_of, ids_of, items_of
from midepoch.stages.columns import Convert, Select
from midepoch.stages.flow import Flow
from midepoch.stages.functions import Filter, Map, without
from midepoch.stages.stage import Call

BOTH = pytest.mark.parametrize("single", [False, True])


def mapping(function, **options):
    return Map(call=Call(function=function, stage="map", number=1), **options)


def filtering(function):
    return Filter(call=Call(function=function, stage="filter", number=1))


@BOTH
def test_a_returned_dict_updates_the_item(single):
    stage = mapping(lambda item: {"double": 2 * item["id"]}, remove_columns=("text",))
    assert items_of(stage.flow(flow_of([3], single=single), (0,), CONTEXT))[2] == {"id": 2, "double": 4}


def test_any_other_value_replaces_the_item():
    stage = mapping(lambda item: item["id"])
    assert items_of(stage.flow(flow_of([3]), (0,), CONTEXT)) == [0, 1, 2]


def test_a_removed_column_must_exist():
    stage = mapping(lambda item: {}, remove_columns=("other",))
    with pytest.raises(me.SchemaMismatchError, match="remove_columns names 'other', which is not among"):
        items_of(stage.flow(flow_of([3]), (0,), CONTEXT))
    assert without({"a": 1, "b": 2}, ("a",)) == {"b": 2}


def test_a_function_is_called_when_its_item_is_asked_for():
    called = []
    flow = mapping(lambda item: called.append(item["id"]) or item).flow(flow_of([3]), (0,), CONTEXT)
    outputs = flow.as_single_items()
    assert called == []
    next(outputs)
    assert called == [0]


@BOTH
def test_kept_items_keep_their_cursor_and_key(single):
    flow = filtering(lambda item: item["id"] % 2).flow(flow_of([6], single=single), (0,), CONTEXT)
    assert [(item["id"], cursor, key) for item, cursor, key in flow.as_single_items()] == [
        (1, (2,), 1),
        (3, (4,), 3),
        (5, (6,), 5),
    ]


@BOTH
@pytest.mark.parametrize("form", ["python", "arrow"])
def test_selected_columns(single, form):
    flow = Select(names=("text",)).flow(flow_of([2], single=single, form=form), (0,), CONTEXT)
    items = items_of(flow)
    assert [item.to_pydict() if form == "arrow" else item for item in items] == (
        [{"text": ["t0"]}, {"text": ["t1"]}] if form == "arrow" else [{"text": "t0"}, {"text": "t1"}]
    )
    assert flow.form == form


@BOTH
def test_a_selected_column_must_exist(single):
    with pytest.raises(me.SchemaMismatchError, match="no column 'other'"):
        items_of(Select(names=("other",)).flow(flow_of([2], single=single), (0,), CONTEXT))


def test_columns_are_selected_from_dicts_only():
    with pytest.raises(TypeError, match="needs items that are dicts, got a int"):
        items_of(Select(names=("id",)).flow(Flow(single_items=iter([(3, (1,), 0)])), (0,), CONTEXT))


@BOTH
def test_items_in_another_form(single):
    flow = Convert(form="arrow").flow(flow_of([2], single=single), (0,), CONTEXT)
    assert flow.form == "arrow"
    first = items_of(flow)[0]
    assert isinstance(first, pa.RecordBatch)
    assert first.to_pydict() == {"id": [0], "text": ["t0"]}


def test_batches_are_converted_as_columns():
    inputs = Flow(single_items=iter([({"id": [1, 2]}, (2,), 0)]), batched=True)
    (item,) = items_of(Convert(form="numpy").flow(inputs, (0,), CONTEXT))
    assert item["id"].tolist() == [1, 2]
    assert item["id"].dtype == np.int64


@BOTH
@pytest.mark.parametrize(
    "stage",
    [
        mapping(lambda item: item["id"]),
        filtering(lambda item: item["id"] % 3),
        Select(names=("id",)),
        Convert(form="numpy"),
    ],
    ids=lambda stage: stage.name,
)
def test_a_stage_resumes_after_any_item(stage, single):
    assert assert_resumes_anywhere(stage, [4, 1, 3], single=single)


def test_ids_are_those_of_the_rows():
    assert ids_of(Select(names=("id",)).flow(flow_of([2, 2]), (0,), CONTEXT)) == [0, 1, 2, 3]
