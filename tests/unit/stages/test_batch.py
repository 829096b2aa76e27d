"""Stages that work on groups: batches, and functions of columns that may return any number of rows."""

import numpy as np
import pyarrow as pa
import pytest

from in_memory import CONTEXT, assert_resumes_anywhere, flow_of, ids_of, items_of
from midepoch._common.hashing import hash_keys
from midepoch.stages.batch import Batch
from midepoch.stages.flow import Flow
from midepoch.stages.functions import Filter, MapBatches
from midepoch.stages.stage import Call

BOTH = pytest.mark.parametrize("single", [False, True])
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


@BOTH
@pytest.mark.parametrize("form", ["python", "numpy", "arrow"])
def test_batches_are_columns_of_size_rows(single, form):
    flow = outputs(Batch(size=4), single=single, form=form)
    assert flow.batched
    columns = [batch.column("id").to_pylist() if form == "arrow" else list(batch["id"]) for batch in items_of(flow)]
    assert columns == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@BOTH
def test_the_cursor_of_a_batch_is_that_of_its_last_row_and_its_key_the_sum_of_their_hashes(single):
    flow = outputs(Batch(size=4), single=single)
    hashes = hash_keys(np.arange(10))
    sums = [int(hashes[first : first + 4].sum().view(np.int64)) for first in (0, 4, 8)]
    assert [(cursor, key) for _, cursor, key in flow.as_single_items()] == [
        ((4,), sums[0]),
        ((8,), sums[1]),
        ((10,), sums[2]),
    ]


@BOTH
def test_the_last_batch_is_dropped_if_asked(single):
    batches = items_of(outputs(Batch(size=4, drop_last=True), single=single))
    assert [batch["id"] for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(items_of(outputs(Batch(size=5, drop_last=True), single=single))) == 2, "none is too small"


def test_a_function_may_make_the_batches():
    stage = Batch(size=4, collate=lambda items: sum(item["id"] for item in items))
    assert items_of(outputs(stage)) == [6, 22, 17]


@BOTH
def test_a_batched_function_may_return_any_number_of_rows(single):
    flow = outputs(mapping(repeated, remove_columns=("text",)), single=single)
    assert ids_of(flow) == [1, 2, 2, 4, 5, 5, 7, 8, 8]


@pytest.mark.parametrize("make", [pa.table, pa.RecordBatch.from_pydict])
def test_a_batched_function_may_return_arrow(make):
    assert ids_of(outputs(mapping(lambda columns: make({"id": columns["id"][:1]})))) == [0, 3, 6, 9]
    nothing = mapping(lambda columns: make({"id": pa.array([], pa.int64())}))
    assert ids_of(outputs(nothing)) == []


def test_columns_must_have_one_length():
    with pytest.raises(ValueError, match=r"columns of different lengths: \{'id': 2, 'text': 3\}.*remove_columns"):
        items_of(outputs(mapping(lambda columns: {"id": [1, 2]})))


def test_a_batched_function_must_return_columns():
    with pytest.raises(TypeError, match=r"returns a dict of columns .* but it returned list"):
        items_of(outputs(mapping(lambda columns: [1])))


@BOTH
@pytest.mark.parametrize("make", [list, pa.array], ids=["list", "arrow"])
def test_rows_that_a_batched_filter_keeps(single, make):
    stage = filtering(lambda columns: make([number % 4 == 1 for number in columns["id"]]))
    assert ids_of(outputs(stage, single=single)) == [1, 5, 9]


@pytest.mark.parametrize(("mask", "returned"), [([True], "1"), (True, "True")])
def test_a_batched_filter_needs_a_value_for_each_row(mask, returned):
    with pytest.raises(ValueError, match=f"each of the 3 rows, but it returned {returned}"):
        items_of(outputs(filtering(lambda columns: mask)))


@BOTH
@pytest.mark.parametrize(
    "stage",
    [
        Batch(size=3),
        Batch(size=3, drop_last=True),
        Batch(size=3, collate=list),
        mapping(repeated, remove_columns=("text",)),
        filtering(lambda columns: [number % 4 == 1 for number in columns["id"]]),
    ],
    ids=lambda stage: type(stage).__name__,
)
def test_a_stage_resumes_after_any_output(stage, single):
    assert assert_resumes_anywhere(stage, SIZES, single=single)


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
