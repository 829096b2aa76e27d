"""Rows that become values where they are needed."""

import pyarrow as pa
import pytest

from midepoch.values.rows import RowItems, Rows


@pytest.mark.parametrize("size", [None, 2])
def test_a_slice_beyond_the_end_is_empty(size):
    items = RowItems(Rows(pa.RecordBatch.from_pydict({"x": [1, 2, 3]})), size)
    assert [len(items.slice(*cut)) for cut in ((5, 9), (5, 0), (0, 0), (1, 9))] == [0, 0, 0, len(items) - 1]
    assert list(items.slice(0, 0).slice(4, 0)) == []
