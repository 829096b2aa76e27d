"""Texts that are gathered straight from several blocks are those that Arrow picks from the blocks put together."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from midepoch.values import texts
from midepoch.values.file_checks import in_memory
from midepoch.values.pool import PickedRows, RowPool
from midepoch.values.texts import texts_of

KINDS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
TEXTS = ["", "a", "elf bytes ab", "zwölf bytes!", "thirteen byte", "größer", "日本語 日本語", "x" * 600]


@pytest.fixture
def _few(monkeypatch):
    monkeypatch.setattr(texts, "ROWS_OF_PART", 0)


def arrays(kind, parts, before=3):
    """Arrays that are slices, which do not begin at the first text of their memory."""
    wholes = [pa.array(["before"] * before + part + ["after"], pa.string()) for part in parts]
    return [whole.cast(kind).slice(before, len(part)) for whole, part in zip(wholes, parts, strict=True)]


@pytest.mark.usefixtures("_few")
@settings(deadline=None)
@given(
    st.sampled_from(KINDS),
    st.lists(st.lists(st.one_of(st.sampled_from(TEXTS), st.text(max_size=20)), max_size=9), min_size=1, max_size=5),
    st.data(),
)
def test_gathered_texts_are_those_of_the_parts(kind, parts, data):
    columns = arrays(kind, parts)
    whole = pa.concat_arrays(columns)
    indices = data.draw(st.lists(st.sampled_from(range(max(1, len(whole)))), max_size=30)) if len(whole) else []
    gathered = texts_of(columns).take(np.array(indices, np.int64))
    gathered.validate(full=True)
    assert gathered.equals(whole.take(pa.array(indices, pa.int64())))


@pytest.mark.usefixtures("_few")
def test_texts_without_memory_are_empty():
    gathered = texts_of([pa.array([], pa.string()), pa.array(["", ""]), pa.array([""] * 3)])
    assert gathered.take(np.array([3, 0, 2])).to_pylist() == [""] * 3


@pytest.mark.parametrize("column", [pa.array(["a", None]), pa.array([1, 2]), pa.array(["a", "b"]).dictionary_encode()])
@pytest.mark.usefixtures("_few")
def test_other_columns_are_not_gathered(column):
    assert texts_of([column, column]) is None


def test_blocks_with_few_rows_are_put_together():
    assert texts_of([pa.array(["a"] * 64), pa.array(["b"] * 63)]) is None
    assert texts_of([pa.array(["a"] * 64), pa.array(["b"] * 64)]) is not None


@pytest.mark.usefixtures("_few")
def test_more_bytes_than_an_array_holds_are_not_gathered(monkeypatch):
    columns = arrays(pa.string(), [["a" * 50, "b" * 60], ["c" * 70]])
    monkeypatch.setattr(texts, "MOST_BYTES", 1_000)
    gathered = texts_of(columns)
    assert gathered.take(np.zeros(20, np.int64)).to_pylist() == ["a" * 50] * 20
    assert gathered.take(np.zeros(21, np.int64)) is None
    monkeypatch.setattr(texts, "MOST_BYTES", 100)
    assert texts_of(columns) is None


def batches(number):
    columns = {"n": range(number, number + 100), "x": [f"{number} " * 5] * 100, "y": [f"{number}"] * 100}
    return pa.record_batch(columns).replace_schema_metadata({"a": "b"})


@pytest.mark.parametrize("names", [None, ["x", "n"], ["y", "x"], ["n"], ["y"]])
def test_picked_rows_have_the_columns_that_were_asked_for(names):
    parts, indices = [batches(0), batches(100)], np.array([150, 3, 3, 99, 100])
    picked, copied = (PickedRows(RowPool(parts, check), indices) for check in (in_memory, lambda: None))
    assert set(picked.pool.texts) == {"x", "y"}
    assert not copied.pool.texts
    assert picked.batch(names).equals(copied.batch(names), check_metadata=True)
    assert (
        picked.batch(names).column(0).to_pylist()
        == pa.concat_batches(parts).take(indices)[(names or ["n"])[0]].to_pylist()
    )


@pytest.mark.parametrize("has_nulls", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_shuffle_of_parquet_gives_the_same_rows_in_every_form(tmp_path, kind, has_nulls):
    values = [None if has_nulls and number % 7 == 0 else f"{number} " * (number % 40) for number in range(4_000)]
    table = pa.table({"id": range(4_000), "x": pa.array(values).cast(kind)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=500)
    dataset = me.read(tmp_path / "a.parquet").shuffle(1, window_blocks=4)
    rows = [row for batch in dataset.with_format("arrow").batch(300) for row in batch.to_pylist()]
    assert rows == list(dataset)
    assert sorted(rows, key=lambda row: row["id"]) == table.to_pylist()
    assert [row["id"] for row in rows] != list(range(4_000))
