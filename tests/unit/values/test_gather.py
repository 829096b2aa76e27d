"""Rows gathered from several places: the batches are those made of the rows put together, without putting them so."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from columns import TYPES, with_nulls
from files import write
from midepoch.formats.base import as_read
from midepoch.testing import same
from midepoch.values.convert import arrow_columns, even_array, storage
from midepoch.values.gather import MOST_PARTS, WIDE_BYTES, Spread, spread
from midepoch.values.rows import Picked, Pool, Rows, concat

WIDE = WIDE_BYTES // 4


def wide(start, stop, width=WIDE):
    """Rows of so many numbers, all those of a row the same."""
    values = np.repeat(np.arange(start, stop, dtype=np.int32), width)
    return pa.record_batch({"tokens": pa.FixedSizeListArray.from_arrays(pa.array(values), width)})


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    row=st.sampled_from([(1,), (3, 2), (WIDE,), (WIDE // 2, 3)]),
    data=st.data(),
)
def test_rows_are_picked_as_if_the_parts_were_one(sizes, row, data):
    whole = np.arange(sum(sizes) * int(np.prod(row)), dtype=np.int32).reshape(sum(sizes), *row)
    parts = np.split(whole, np.cumsum(sizes)[:-1])
    places = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1))), np.int64)
    picked = Spread(parts).pick(places)
    np.testing.assert_array_equal(picked, whole[places])
    assert picked.dtype == whole.dtype
    assert not np.shares_memory(picked, whole)


def test_arrays_that_are_narrow_or_of_several_kinds_are_not_one():
    wide, wider = np.zeros((2, WIDE), np.int32), np.zeros((2, WIDE + 1), np.int32)
    assert spread([wide, wide]) is not None
    assert spread([wide, wider]) is None
    assert spread([wide, wide.astype(np.float32)]) is None
    assert spread([wide, None]) is None
    assert spread([wide[:, 1:]]) is None
    assert spread([np.zeros(5)]) is None


@pytest.mark.parametrize("nulls", [False, True], ids=["full", "nulls"])
@pytest.mark.parametrize("form", ["numpy", "torch"])
@pytest.mark.parametrize("name", TYPES)
def test_batches_of_picked_rows_are_those_of_the_rows_put_together(name, form, nulls):
    arrow_type, plain = TYPES[name]
    kind = as_read(pa.schema({"v": arrow_type})).field("v").type
    columns = {"v": pa.array([None, *plain, *(with_nulls(plain) if nulls else plain)], kind), "id": range(11)}
    whole = pa.record_batch(columns)
    parts = [whole.slice(1, 2), whole.slice(3, 3), whole.slice(6, 5)]
    places = np.array([9, 0, 3, 3, 5, 1, 2, 8, 7])
    together = whole.slice(1).take(pa.array(places))
    for rows in (
        Rows(Picked(Pool(parts), places), form),
        concat([Rows(Picked(Pool(parts), places[:4]), form), Rows(Picked(Pool(parts), places[4:]), form)]),
        concat([Rows(together.slice(0, 2), form), Rows(Picked(Pool(parts), places[2:]), form)]),
    ):
        for size in (1, 2, 4, 20):
            made = list(rows.batches(size))
            alone = [arrow_columns(together.slice(at, size), form) for at in range(0, 9, size)]
            assert [list(batch) for batch in made] == [["v", "id"]] * len(alone)
            assert all(map(same, made, alone))
        assert same(rows.columns(), arrow_columns(together, form))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, 2], [3, 4]]),
        pa.array([[1, 2], [3, 4]], pa.large_list(pa.int8())),
        pa.array([[[1], [2]], [[3], [4]]], pa.list_(pa.list_(pa.float32()), 2)),
        pa.array([1, 2], pa.uint8()),
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int8(), [2]), pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2))
        ),
    ],
    ids=str,
)
def test_numbers_and_even_lists_of_them_are_arrays(column):
    plain = storage(column).to_pylist()
    assert even_array(column).tolist() == plain
    assert even_array(column.slice(1)).tolist() == plain[1:]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None]),
        pa.array([[1], [2, 3]]),
        pa.array([[1], None]),
        pa.array([[1], [None]]),
        pa.array([[[1], [2]], [[3], [4, 5]]]),
        pa.array(["a"]),
        pa.array([["a"]]),
        pa.array([True]),
        pa.array([1, 2]).dictionary_encode(),
        pa.array([], pa.list_(pa.int8())),
    ],
    ids=str,
)
def test_other_columns_are_not(column):
    assert even_array(column) is None


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_wide_rows_are_copied_once_from_where_they_lie(tmp_path, monkeypatch, form):
    path = write(tmp_path / "a.arrow", [wide(start, start + 10) for start in range(0, 100, 10)])
    monkeypatch.setattr(Pool, "together", lambda *_: pytest.fail("rows were put together"))
    dataset = me.read(path).shuffle(seed=3, window=40).with_format(form).batch(7)
    batches = list(dataset)
    got = [row for batch in batches for row in batch["tokens"].tolist()]
    assert sorted(got) == [[number] * WIDE for number in range(100)]
    assert got != sorted(got)


def test_many_parts_are_put_together_and_each_of_the_rows_comes_once(tmp_path, monkeypatch):
    count = 2 * MOST_PARTS
    path = write(tmp_path / "a.arrow", [wide(number, number + 1) for number in range(count)])
    monkeypatch.setattr(Spread, "pick", lambda *_: pytest.fail("rows were picked from many parts"))
    dataset = me.read(path).shuffle(seed=3, window=count).with_format("torch").batch(9)
    assert sorted(int(row[0]) for batch in dataset for row in batch["tokens"]) == list(range(count))


def test_tensors_of_a_shuffle_are_writable_and_nobody_elses(tmp_path):
    path = write(tmp_path / "a.arrow", [wide(start, start + 10) for start in range(0, 50, 10)])
    dataset = me.read(path).shuffle(seed=3, window=40).with_format("torch").batch(4)
    first = [batch["tokens"].clone() for batch in dataset]
    dataset.set_epoch(0)
    for batch, expected in zip(dataset, first, strict=True):
        assert batch["tokens"].equal(expected)
        assert batch["tokens"].untyped_storage().nbytes() == batch["tokens"].nbytes
        batch["tokens"][:] = -1


def test_only_columns_that_are_no_numbers_are_put_together(tmp_path, monkeypatch):
    batches = [wide(start, start + 10) for start in range(0, 100, 10)]
    named = [
        batch.append_column("name", pa.array([f"row {row[0]}" for row in batch["tokens"].to_pylist()]))
        for batch in batches
    ]
    path = write(tmp_path / "a.arrow", named)
    asked, together = set(), Pool.together
    monkeypatch.setattr(
        Pool, "together", lambda self, names=None: asked.add(names and tuple(names)) or together(self, names)
    )
    for batch in me.read(path).shuffle(seed=3, window=40).with_format("torch").batch(7):
        assert batch["name"] == [f"row {number}" for number in batch["tokens"][:, 0].tolist()]
    assert asked == {("name",)}


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_parts_that_nobody_can_look_at_are_copied_at_once(form):
    memory = np.repeat(np.arange(20, dtype=np.int32), WIDE)
    parts = [
        pa.record_batch({"tokens": pa.FixedSizeListArray.from_arrays(pa.array(half), WIDE)})
        for half in np.split(memory, 2)
    ]
    batches = Rows(Picked(Pool(parts), np.arange(20)[::-1]), form).batches(4)
    got = next(batches)["tokens"][:, 0].tolist()
    memory[:] = -1
    assert parts[0]["tokens"][0].as_py()[0] == -1
    assert got + [number for batch in batches for number in batch["tokens"][:, 0].tolist()] == list(range(20))[::-1]
