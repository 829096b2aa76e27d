"""Slices of a record batch: the same values as from a copy of the slice, in pools too."""

import numpy as np
import pyarrow as pa
import pytest

from columns import TYPES, with_nulls
from midepoch.errors import DataFormatError
from midepoch.formats.base import as_read
from midepoch.testing import same
from midepoch.values.arrow import arrow_columns
from midepoch.values.open_batch import OpenBatch, SlicedRows, as_list
from midepoch.values.origin import RowOrigin
from midepoch.values.pool import PickedRows, RowPool
from midepoch.values.row_dicts import row_dicts
from midepoch.values.rows import Rows


def batch_of(name, nulls):
    arrow_type, plain = TYPES[name]
    kind = as_read(pa.schema({"v": arrow_type})).field("v").type
    columns = {
        "v": pa.array([None, *plain, *(with_nulls(plain) if nulls else plain)], kind),
        "id": range(11),
        "name": [None if nulls and number == 4 else f"row {number}" for number in range(11)],
    }
    return pa.record_batch(columns).slice(1)


@pytest.mark.parametrize("nulls", [False, True], ids=["full", "nulls"])
@pytest.mark.parametrize("name", TYPES)
def test_slices_have_the_values_of_their_rows(name, nulls):
    batch = batch_of(name, nulls)
    opened = OpenBatch(batch)
    for start, stop in ((0, 3), (3, 3), (2, 10), (9, 10)):
        some, alone = SlicedRows(opened, start, stop), batch.slice(start, stop - start)
        expected = arrow_columns(alone, "python")
        values = {name: as_list(column) for name, column in some.values(["id", "v"]).items()}
        assert same(values, {"id": expected["id"], "v": expected["v"]})
        assert same(some.dicts(), row_dicts(expected, stop - start))
        assert some.batch().equals(alone)
        assert some.batch(["id"]).equals(alone.select(["id"]))


@pytest.mark.parametrize("nulls", [False, True], ids=["full", "nulls"])
@pytest.mark.parametrize("form", ["python", "numpy", "torch", "arrow"])
@pytest.mark.parametrize("name", TYPES)
def test_a_pool_of_slices_gives_what_a_pool_of_copies_gives(name, form, nulls):
    batch = batch_of(name, nulls)
    opened = OpenBatch(batch)
    bounds = [(5, 10), (0, 2), (2, 5)]
    slices = [SlicedRows(opened, start, stop) for start, stop in bounds]
    copies = [batch.take(pa.array(range(start, stop))) for start, stop in bounds]
    indices = np.array([9, 0, 3, 3, 5, 1, 2, 8, 7])
    got, expected = (Rows(PickedRows(RowPool(parts), indices), form) for parts in (slices, copies))
    for size in (1, 4, 20):
        assert same(list(got.batches(size)), list(expected.batches(size)))
    assert same(got.columns(), expected.columns())
    assert same(list(got.items()), list(expected.items()))
    assert same(list(got.slice(2, 7).items()), list(expected.slice(2, 7).items()))


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_text_and_numbers_of_slices_are_not_copied_together(monkeypatch, form):
    asked, together = [], RowPool.batch
    monkeypatch.setattr(RowPool, "batch", lambda self, names=None: asked.append(names) or together(self, names))
    columns = {"text": ["a", "b", None], "n": [1, 2, 3], "nulls": [1, None, 3], "z": ["x", "y", "z"], "a": [b"1"] * 3}
    opened = OpenBatch(pa.record_batch(columns))
    pool = RowPool([SlicedRows(opened, 1, 3), SlicedRows(opened, 0, 1)])
    (made,) = Rows(PickedRows(pool, np.array([2, 1, 0])), form).batches(3)
    assert list(made["text"]) == ["a", None, "b"]
    assert made["n"].tolist() == [1, 3, 2]
    assert list(made) == list(columns)
    assert asked == [["nulls"]]


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_columns_that_are_all_dealt_out_keep_their_order(form):
    names = [f"column {number}" for number in range(20)][::-1]
    opened = OpenBatch(pa.record_batch({name: ["a", "b"] for name in names}))
    batches = list(Rows(PickedRows(RowPool([SlicedRows(opened, 0, 2)]), np.array([1, 0])), form).batches(1))
    assert [list(batch) for batch in batches] == [names, names]


def test_files_are_checked_before_and_after_slices_are_converted():
    events = []
    opened = OpenBatch(pa.record_batch({"x": [1, 2, 3]}))
    inner = RowPool([SlicedRows(opened, 0, 2)], lambda: events.append("inner"))
    outer = RowPool([PickedRows(inner, np.array([1])), SlicedRows(opened, 2, 3)], lambda: events.append("outer"))
    assert outer.dicts == [{"x": 2}, {"x": 3}]
    assert events == ["outer", "inner", "inner", "outer"]
    events.clear()
    assert RowPool([PickedRows(inner, np.array([0]))]).dicts == [{"x": 1}]
    assert not events, "the values exist, whatever happens to the file"


def test_an_unreadable_value_of_a_pool_in_a_pool_is_named_by_its_row():
    text = pa.array([b"ok", b"\xff"]).view(pa.string())
    origin = RowOrigin(np.arange(2), lambda number: ("a.arrow", 10 + number))
    inner = RowPool([pa.record_batch({"x": text})], origin=origin)
    with pytest.raises(DataFormatError, match=r"row 11 of a\.arrow"):
        RowPool([PickedRows(inner, np.array([0, 1]))]).dicts  # noqa: B018


@pytest.mark.parametrize("cut", [slice(1, 3), np.array([False, True, True])], ids=["slice", "mask"])
def test_some_of_the_rows_are_not_picked_by_what_picks_all(cut):
    opened = OpenBatch(pa.record_batch({"x": ["a", "b", "c"]}))
    picked = PickedRows(RowPool([SlicedRows(opened, 0, 3)]), np.array([2, 0, 1]), lambda values: values)
    assert picked.lists() == {"x": ["a", "b", "c"]}
    assert picked.at(cut).lists() == {"x": ["a", "b"]}
