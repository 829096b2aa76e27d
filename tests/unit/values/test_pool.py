"""Rows picked from several blocks: the same batches as from one block, with fewer copies."""

import weakref

import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from columns import TYPES, with_nulls
from files import write
from midepoch.formats.base import as_read
from midepoch.testing import same
from midepoch.values import pool
from midepoch.values.arrow import arrow_columns
from midepoch.values.collate import concat_batches
from midepoch.values.gather import MAX_PARTS, WIDE_BYTES, PartedArray
from midepoch.values.open_batch import OpenBatch, SlicedRows
from midepoch.values.pool import PickedRows, RowPool, ScatteredRows
from midepoch.values.rows import Rows, concat

WIDE = WIDE_BYTES // 4


def wide(start, stop, width=WIDE):
    """Rows of ``width`` numbers; the numbers of a row are all its own number."""
    values = np.repeat(np.arange(start, stop, dtype=np.int32), width)
    return pa.record_batch({"tokens": pa.FixedSizeListArray.from_arrays(pa.array(values), width)})


@pytest.mark.parametrize("nulls", [False, True], ids=["full", "nulls"])
@pytest.mark.parametrize("form", ["numpy", "torch"])
@pytest.mark.parametrize("name", TYPES)
def test_batches_of_picked_rows_equal_batches_of_one_record_batch(name, form, nulls):
    arrow_type, plain = TYPES[name]
    kind = as_read(pa.schema({"v": arrow_type})).field("v").type
    columns = {"v": pa.array([None, *plain, *(with_nulls(plain) if nulls else plain)], kind), "id": range(11)}
    whole = pa.record_batch(columns)
    parts = [whole.slice(1, 2), whole.slice(3, 3), whole.slice(6, 5)]
    indices = np.array([9, 0, 3, 3, 5, 1, 2, 8, 7])
    together = whole.slice(1).take(pa.array(indices))
    for rows in (
        Rows(PickedRows(RowPool(parts), indices), form),
        concat(
            [Rows(PickedRows(RowPool(parts), indices[:4]), form), Rows(PickedRows(RowPool(parts), indices[4:]), form)]
        ),
        concat([Rows(together.slice(0, 2), form), Rows(PickedRows(RowPool(parts), indices[2:]), form)]),
    ):
        for size in (1, 2, 4, 20):
            made = list(rows.batches(size))
            alone = [arrow_columns(together.slice(at, size), form) for at in range(0, 9, size)]
            assert [list(batch) for batch in made] == [["v", "id"]] * len(alone)
            assert all(map(same, made, alone))
        assert same(rows.columns(), arrow_columns(together, form))


@pytest.mark.parametrize("form", ["numpy", "torch"])
@pytest.mark.parametrize(
    "shuffle",
    [lambda data: data.shuffle(seed=3, window=40), lambda data: data.shuffle(seed=3, level="row").lanes(3)],
    ids=["whole blocks", "scattered rows"],
)
def test_wide_rows_are_copied_straight_into_the_batch(tmp_path, monkeypatch, form, shuffle):
    path = write(tmp_path / "a.arrow", [wide(start, start + 10) for start in range(0, 100, 10)])
    monkeypatch.setattr(RowPool, "batch", lambda *_: pytest.fail("the parts were copied together"))
    monkeypatch.setattr(ScatteredRows, "batch", lambda _: pytest.fail("rows of a block were copied first"))
    dataset = shuffle(me.read(path)).with_format(form).batch(7)
    batches = list(dataset)
    got = [row for batch in batches for row in batch["tokens"].tolist()]
    assert sorted(got) == [[number] * WIDE for number in range(100)]
    assert got != sorted(got)


@pytest.mark.parametrize("form", ["python", "numpy", "torch", "arrow"])
def test_rows_that_lie_scattered_in_a_block_are_those_of_a_copy(form):
    names = pa.array([f"row {number}" for number in range(10)])
    first = wide(0, 10).append_column("name", names)
    second = wide(10, 20).append_column("name", names)
    scattered = [ScatteredRows(first.slice(2), np.array([5, 0, 3])), second, ScatteredRows(second, np.array([9]))]
    copied = [part.batch() if isinstance(part, ScatteredRows) else part for part in scattered]
    assert copied[0]["name"].to_pylist() == ["row 7", "row 2", "row 5"]
    indices = np.array([13, 2, 0, 5, 1, 4])
    got, expected = (Rows(PickedRows(RowPool(parts, lambda: None), indices), form) for parts in (scattered, copied))
    assert all(map(same, got.batches(4), expected.batches(4)))
    assert same(got.columns(), expected.columns())
    assert all(map(same, got.items(), expected.items()))


def test_a_pool_checks_the_files_of_the_pools_that_it_is_picked_from():
    checks = []
    inner = RowPool([wide(0, 4)], lambda: checks.append("inner"))
    parts = [Rows(PickedRows(inner, np.array([3, 1])), "torch"), Rows(wide(4, 8), "torch", check=lambda: None)]
    batches = concat(parts).batches(2)
    assert next(batches)["tokens"][:, 0].tolist() == [3, 1]
    before = len(checks)
    assert next(batches)["tokens"][:, 0].tolist() == [4, 5]
    assert len(checks) > before


def test_many_parts_are_copied_together_first(tmp_path, monkeypatch):
    count = 2 * MAX_PARTS
    path = write(tmp_path / "a.arrow", [wide(number, number + 1) for number in range(count)])
    monkeypatch.setattr(PartedArray, "pick", lambda *_: pytest.fail("rows were picked from many parts"))
    dataset = me.read(path).shuffle(seed=3, window=count).with_format("torch").batch(9)
    assert sorted(int(row[0]) for batch in dataset for row in batch["tokens"]) == list(range(count))


def test_tensors_of_a_shuffle_are_writable_and_do_not_share_memory(tmp_path):
    path = write(tmp_path / "a.arrow", [wide(start, start + 10) for start in range(0, 50, 10)])
    dataset = me.read(path).shuffle(seed=3, window=40).with_format("torch").batch(4)
    first = [batch["tokens"].clone() for batch in dataset]
    dataset.set_epoch(0)
    for batch, expected in zip(dataset, first, strict=True):
        assert batch["tokens"].equal(expected)
        assert batch["tokens"].untyped_storage().nbytes() == batch["tokens"].nbytes
        batch["tokens"][:] = -1


def test_only_columns_that_are_not_wide_arrays_are_copied_together(tmp_path, monkeypatch):
    batches = [wide(start, start + 10) for start in range(0, 100, 10)]
    named = [
        batch.append_column("name", pa.array([f"row {row[0]}" for row in batch["tokens"].to_pylist()]))
        for batch in batches
    ]
    path = write(tmp_path / "a.arrow", named)
    asked, together = set(), RowPool.batch
    monkeypatch.setattr(
        RowPool, "batch", lambda self, names=None: asked.add(names and tuple(names)) or together(self, names)
    )
    for batch in me.read(path).shuffle(seed=3, window=40).with_format("torch").batch(7):
        assert batch["name"] == [f"row {number}" for number in batch["tokens"][:, 0].tolist()]
    assert asked == {("name",)}


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_parts_without_a_check_are_copied_at_first_use(form):
    memory = np.repeat(np.arange(20, dtype=np.int32), WIDE)
    parts = [
        pa.record_batch({"tokens": pa.FixedSizeListArray.from_arrays(pa.array(half), WIDE)})
        for half in np.split(memory, 2)
    ]
    batches = Rows(PickedRows(RowPool(parts), np.arange(20)[::-1]), form).batches(4)
    got = next(batches)["tokens"][:, 0].tolist()
    memory[:] = -1
    assert parts[0]["tokens"][0].as_py()[0] == -1
    assert got + [number for batch in batches for number in batch["tokens"][:, 0].tolist()] == list(range(20))[::-1]


@pytest.mark.parametrize("length", [1, 5000], ids=["narrow", "wide"])
def test_small_parts_are_joined_only_if_their_bytes_are_few(monkeypatch, length):
    rows = [{"text": f"{number}" * length, "x": number} for number in range(300)]
    whole = pa.RecordBatch.from_pylist(rows)
    joined = []
    monkeypatch.setattr(pool, "concat_batches", lambda batches: joined.append(1) or concat_batches(batches))
    indices = np.random.default_rng(0).permutation(300)
    picked = PickedRows(RowPool([whole.slice(start, 100) for start in (0, 100, 200)]), indices)
    assert list(picked.dicts()) == [rows[number] for number in indices]
    assert bool(joined) == (length == 1)


@pytest.mark.parametrize("make", [lambda rows: rows.lists(), lambda rows: rows.dicts()], ids=["lists", "dicts"])
def test_copies_of_scattered_rows_are_made_one_after_the_other(monkeypatch, make):
    """To hold them all would take the memory of a window twice."""
    copies, alive, copy = [], [], ScatteredRows.batch

    def watched(self):
        alive.append(sum(one() is not None for one in copies))
        copied = copy(self)
        copies.append(weakref.ref(copied))
        return copied

    monkeypatch.setattr(ScatteredRows, "batch", watched)
    blocks = [pa.record_batch({"text": ["x" * 3000] * 100, "n": range(at, at + 100)}) for at in range(0, 500, 100)]
    parts = [ScatteredRows(block, np.arange(0, 100, 2)) for block in blocks]
    got = make(PickedRows(RowPool(parts), np.arange(250)[::-1]))
    numbers = got["n"] if isinstance(got, dict) else [row["n"] for row in got]
    assert numbers == list(range(498, -1, -2))
    assert len(alive) == len(parts)
    assert max(alive) <= 1


def test_numbers_of_a_view_are_copied_when_the_file_is_checked():
    memory = np.arange(4)
    batch = pa.record_batch({"x": pa.array(memory)})
    for parts in ([batch], [SlicedRows(OpenBatch(batch), 0, 4)], [PickedRows(RowPool([batch]), np.arange(4))]):
        picked = PickedRows(RowPool(parts, lambda: None), np.array([3, 0]))
        values = picked.pool.values(["x"])["x"]
        assert not np.shares_memory(values, memory)
        assert picked.lists() == {"x": [3, 0]}


def test_a_column_with_nulls_in_one_part_only():
    parts = [pa.record_batch({"x": pa.array([1, None])}), pa.record_batch({"x": [3, 4]})]
    picked = PickedRows(RowPool([SlicedRows(OpenBatch(part), 0, 2) for part in parts]), np.array([3, 1, 0, 2]))
    assert picked.lists() == {"x": [4, None, 1, 3]}
    assert [type(value) for value in picked.lists()["x"]] == [int, type(None), int, int]
