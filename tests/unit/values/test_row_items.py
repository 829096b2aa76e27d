"""Rows that become values where they are needed."""

import pyarrow as pa
import pytest

from midepoch.values.rows import RowItems, Rows, row_items


@pytest.mark.parametrize("size", [None, 2])
def test_a_slice_beyond_the_end_is_empty(size):
    items = RowItems(Rows(pa.RecordBatch.from_pydict({"x": [1, 2, 3]})), size)
    assert [len(items.slice(*cut)) for cut in ((5, 9), (5, 0), (0, 0), (1, 9))] == [0, 0, 0, len(items) - 1]
    assert list(items.slice(0, 0).slice(4, 0)) == []


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array([[[1, 2]], [[3, 4]]], pa.list_(pa.list_(pa.int64(), 2), 1)),
        pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
        pa.nulls(2),
        pa.array([b"1" * 16, b"2" * 16], pa.binary(16)).cast(pa.uuid()) if hasattr(pa, "uuid") else pa.nulls(2),
    ],
    ids=str,
)
def test_other_columns_become_values_before_they_are_sent(column):
    rows = Rows(pa.RecordBatch.from_arrays([column], ["x"]))
    items = row_items(rows, 2)
    assert not items.are_columns
    assert list(items) == list(rows.batches(2))


def test_only_rows_of_files_with_columns_wait():
    batch = pa.RecordBatch.from_pydict({"x": [1, 2]})
    for form in ("python", "numpy", "torch", "arrow"):
        assert isinstance(row_items(Rows(batch, form)), RowItems)
    assert isinstance(row_items(Rows({"x": [1, 2]})), list)
    assert row_items(Rows(batch.select([]))) == [{}, {}]


@pytest.mark.parametrize(("form", "size"), [("numpy", 2), ("torch", None), ("arrow", None), ("arrow", 2)])
def test_items_that_are_views_are_sent_one_by_one(form, size):
    assert not RowItems(Rows(pa.RecordBatch.from_pydict({"x": [1, 2]}), form), size).are_columns
