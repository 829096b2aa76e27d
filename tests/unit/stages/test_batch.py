"""Stages that work on groups: batches, and functions of columns that may return any number of rows."""

import pytest

from in_memory import CONTEXT, flow_of, items_of
from midepoch.stages.batch import Batch
from midepoch.stages.flow import Flow
from midepoch.stages.functions import Filter, MapBatches
from midepoch.stages.stage import Call

SIZES = [4, 1, 3, 2]


def mapping(function, size=3, **options):
    return MapBatches(call=Call(function=function, stage="map", number=1), size=size, **options)


def filtering(function, size=3):
    return Filter(call=Call(function=function, stage="filter", number=1), size=size)


def outputs(stage, **options):
    return stage.flow(flow_of(SIZES, **options), (0, 0), CONTEXT)


def repeated(columns):
    """Each row as often as its number says, modulo 3."""
    return {"id": [number for number in columns["id"] for _ in range(number % 3)]}


@pytest.mark.parametrize("single", [False, True])
def test_the_last_batch_is_dropped_if_asked(single):
    batches = items_of(outputs(Batch(size=4, drop_last=True), single=single))
    assert [batch["id"] for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_columns_must_have_one_length():
    with pytest.raises(ValueError, match=r"columns of different lengths: \{'id': 2, 'text': 3\}.*remove_columns"):
        items_of(outputs(mapping(lambda columns: {"id": [1, 2]})))


def test_a_batched_function_must_return_columns():
    with pytest.raises(TypeError, match=r"returns a dict of columns .* but it returned list"):
        items_of(outputs(mapping(lambda columns: [1])))


@pytest.mark.parametrize(("mask", "returned"), [([True], "1"), (True, "True")])
def test_a_batched_filter_needs_a_value_for_each_row(mask, returned):
    with pytest.raises(ValueError, match=f"each of the 3 rows, but it returned {returned}"):
        items_of(outputs(filtering(lambda columns: mask)))


@pytest.mark.parametrize("size", [0, -1, 1.5, "2", True])
def test_a_size_that_is_no_integer_above_0_is_refused(size):
    with pytest.raises(ValueError, match="integer of at least 1, got"):
        Batch(size=size)
    with pytest.raises(ValueError, match="batch_size must be an integer of at least 1, got"):
        mapping(repeated, size=size)


@pytest.mark.parametrize("more", [-1, 1])
def test_a_one_to_one_function_that_returns_another_number_of_rows_raises(more):
    stage = mapping(lambda columns: {"id": columns["id"][:more] if more < 0 else columns["id"] * 2}, one_to_one=True)
    flow = flow_of(SIZES).as_single_items()
    with pytest.raises(ValueError, match=r"one_to_one=True.* must return one row for each"):
        items_of(stage.flow(Flow(single_items=(({"id": item["id"]}, *rest) for item, *rest in flow)), (0,), CONTEXT))
