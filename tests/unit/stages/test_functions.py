"""Stages that work on one item at a time, on rows as columns and on single items."""

import pytest

import midepoch as me
from in_memory import CONTEXT, assert_resumes_anywhere, flow_of, items_of
from midepoch.stages.columns import Convert, Select
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


@BOTH
def test_kept_items_keep_their_cursor_and_key(single):
    flow = filtering(lambda item: item["id"] % 2).flow(flow_of([6], single=single), (0,), CONTEXT)
    assert [(item["id"], cursor, key) for item, cursor, key in flow.as_single_items()] == [
        (1, (2,), 1),
        (3, (4,), 3),
        (5, (6,), 5),
    ]


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
