"""Rows that become values in another process: the values are those that they would have been here."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exact import same
from midepoch.delivery.layout import Destination, Layout, read_layout, stream_size
from midepoch.values.pool import PickedRows, RowPool
from midepoch.values.row_items import RowItems, row_items
from midepoch.values.rows import Rows

TYPES = {
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(),
    pa.large_string(): st.text(),
    pa.binary(): st.binary(),
    pa.large_binary(): st.binary(),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(2200, 1, 1)),
    pa.decimal128(20, 3): st.integers(-(10**9), 10**9).map(lambda number: Decimal(number).scaleb(-3)),
}
flat = st.sampled_from(list(TYPES)).map(lambda kind: (kind, st.none() | TYPES[kind]))
kinds = st.recursive(
    flat,
    lambda inner: st.one_of(
        inner.map(lambda one: (pa.list_(one[0]), st.none() | st.lists(one[1], max_size=3))),
        inner.map(lambda one: (pa.large_list(one[0]), st.none() | st.lists(one[1], max_size=3))),
        flat.map(lambda one: (pa.list_(one[0], 2), st.none() | st.lists(one[1], min_size=2, max_size=2))),
        inner.map(lambda one: (pa.struct([("x", one[0])]), st.none() | st.fixed_dictionaries({"x": one[1]}))),
    ),
    max_leaves=3,
)


def sent(items):
    """The items after a way through memory that is overwritten."""
    batch = items.batch()
    memory = bytearray(stream_size([batch]) + 64 * len(items) + 1000)
    layout = Layout(memoryview(memory))
    layout.add_rows([batch], items.size, items.rows.form, [(number,) for number in range(len(items))])
    (chunk,) = read_layout(memoryview(memory), layout.finish(), Destination())
    memory[:] = bytes(len(memory))
    assert chunk.cursors == [(number,) for number in range(len(items))]
    return chunk.items


@st.composite
def batches(draw):
    columns = draw(st.lists(kinds, min_size=1, max_size=3))
    count = draw(st.integers(1, 12))
    return pa.RecordBatch.from_arrays(
        [pa.array(draw(st.lists(of, min_size=count, max_size=count)), kind) for kind, of in columns],
        [f"c{number}" for number in range(len(columns))],
    )


@settings(max_examples=80, deadline=None)
@given(batches(), st.sampled_from([None, 1, 3, 5]), st.data())
def test_rows_and_batches_are_those_of_this_process(batch, size, data):
    start = data.draw(st.integers(0, batch.num_rows - 1))
    rows = Rows(batch.slice(start))
    items = row_items(rows, size)
    assert isinstance(items, RowItems)
    here = list(rows.items() if size is None else rows.batches(size))
    assert same(sent(items), here)
    begin = data.draw(st.integers(0, len(items) - 1))
    end = data.draw(st.integers(begin + 1, len(items)))
    assert same(sent(items.slice(begin, end)), here[begin:end])


@pytest.mark.parametrize("size", [None, 2])
def test_a_slice_beyond_the_end_is_empty(size):
    items = RowItems(Rows(pa.RecordBatch.from_pydict({"x": [1, 2, 3]})), size)
    assert [len(items.slice(*cut)) for cut in ((5, 9), (5, 0), (0, 0), (1, 9))] == [0, 0, 0, len(items) - 1]
    assert list(items.slice(0, 0).slice(4, 0)) == []


@settings(max_examples=30, deadline=None)
@given(batches(), st.sampled_from([None, 3]), st.data())
def test_picked_rows_are_those_of_this_process(batch, size, data):
    indices = np.array(data.draw(st.lists(st.integers(0, 2 * batch.num_rows - 1), min_size=1)), np.int64)
    rows = Rows(PickedRows(RowPool([batch, batch]), indices))
    here = list(rows.items() if size is None else rows.batches(size))
    assert same(sent(row_items(rows, size)), here)


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
    assert row_items(rows, 2) == list(rows.batches(2))


def test_only_python_values_of_rows_with_columns_wait():
    batch = pa.RecordBatch.from_pydict({"x": [1, 2]})
    assert isinstance(row_items(Rows(batch)), RowItems)
    assert isinstance(row_items(Rows(batch, "numpy")), list)
    assert isinstance(row_items(Rows({"x": [1, 2]})), list)
    assert row_items(Rows(batch.select([]))) == [{}, {}]
