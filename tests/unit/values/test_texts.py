"""Texts that are gathered straight from several blocks are those that Arrow picks from the blocks put together."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from midepoch.values import pool, texts
from midepoch.values.file_checks import in_memory
from midepoch.values.pool import PickedRows, RowPool, ScatteredRows
from midepoch.values.texts import texts_of

take = texts.Texts.take
KINDS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
TEXTS = ["", "a", "elf bytes ab", "zwölf bytes!", "thirteen byte", "größer", "日本語 日本語", "x" * 600]


@pytest.fixture
def _few(monkeypatch):
    monkeypatch.setattr(texts, "ROWS_OF_PART", 0)


def arrays(kind, parts, before=3):
    """Arrays that are slices, which do not begin at the first text of their memory."""
    wholes = [pa.array(["before"] * before + part + ["after"], pa.string()) for part in parts]
    return [whole.cast(kind).slice(before, len(part)) for whole, part in zip(wholes, parts, strict=True)]


def as_indices(rows):
    return None if rows is None else np.array(rows, np.int64)


def whole(*columns):
    """Arrays of which all texts are meant."""
    return [(column, None) for column in columns]


@pytest.mark.usefixtures("_few")
@settings(deadline=None)
@given(
    st.sampled_from(KINDS),
    st.lists(st.lists(st.one_of(st.sampled_from(TEXTS), st.text(max_size=20)), max_size=9), min_size=1, max_size=5),
    st.data(),
)
def test_gathered_texts_are_those_of_the_parts(kind, parts, data):
    columns = arrays(kind, parts)
    chosen = [data.draw(st.none() | st.lists(st.sampled_from(range(len(part))))) if part else None for part in parts]
    pairs = [(column, as_indices(rows)) for column, rows in zip(columns, chosen, strict=True)]
    whole = pa.concat_arrays([column if rows is None else column.take(pa.array(rows)) for column, rows in pairs])
    indices = data.draw(st.lists(st.sampled_from(range(len(whole))), max_size=30)) if len(whole) else []
    gathered = texts_of(pairs).take(np.array(indices, np.int64))
    gathered.validate(full=True)
    assert gathered.equals(whole.take(pa.array(indices, pa.int64())))


@pytest.mark.usefixtures("_few")
def test_texts_without_memory_are_empty():
    gathered = texts_of(whole(pa.array([], pa.string()), pa.array(["", ""]), pa.array([""] * 3)))
    assert gathered.take(np.array([3, 0, 2])).to_pylist() == [""] * 3


@pytest.mark.parametrize("column", [pa.array(["a", None]), pa.array([1, 2]), pa.array(["a", "b"]).dictionary_encode()])
@pytest.mark.usefixtures("_few")
def test_other_columns_are_not_gathered(column):
    assert texts_of(whole(column, column)) is None


@pytest.mark.usefixtures("_few")
def test_texts_of_several_types_are_not_gathered():
    assert texts_of(whole(pa.array(["a"]), pa.array(["b"], pa.large_string()))) is None


def test_blocks_with_few_rows_are_put_together():
    assert texts_of(whole(pa.array(["a"] * 64), pa.array(["b"] * 63))) is None
    assert texts_of(whole(pa.array(["a"] * 64), pa.array(["b"] * 64))) is not None
    column = pa.array(["a"] * 100)
    assert texts_of([(column, np.arange(64)), (column, np.arange(63))]) is None
    assert texts_of([(column, np.arange(64)), (column, np.arange(64))]) is not None


@pytest.mark.usefixtures("_few")
def test_more_bytes_than_an_array_holds_are_not_gathered(monkeypatch):
    columns = arrays(pa.string(), [["a" * 50, "b" * 60], ["c" * 70]])
    monkeypatch.setattr(texts, "MOST_BYTES", 1_000)
    gathered = texts_of(whole(*columns))
    assert gathered.take(np.zeros(20, np.int64)).to_pylist() == ["a" * 50] * 20
    assert gathered.take(np.zeros(21, np.int64)) is None
    monkeypatch.setattr(texts, "MOST_BYTES", 100)
    assert texts_of(whole(*columns)) is None


def batches(number):
    columns = {"n": range(number, number + 100), "x": [f"{number} " * 5] * 100, "y": [f"{number}"] * 100}
    return pa.record_batch(columns).replace_schema_metadata({"a": "b"})


@pytest.mark.parametrize("names", [None, ["x", "n"], ["y", "x"], ["n"], ["y"], []])
@pytest.mark.parametrize("scattered", [True, False])
@pytest.mark.parametrize("check", [in_memory, lambda: None])
def test_picked_rows_have_the_columns_that_were_asked_for(names, scattered, check):
    parts, indices = [batches(0), batches(100)], np.array([150, 3, 3, 99, 100])
    expected = pa.concat_batches(parts).take(indices)
    if scattered:  # the rows of one block, of which all are there once, in another order
        order = np.random.default_rng(0).permutation(100)
        parts[1], indices = ScatteredRows(parts[1], order), np.array([100 + order.argsort()[50], 3, 3, 99, 0])
        indices[4] = 100 + order.argsort()[0]
    picked = PickedRows(RowPool(parts, check), indices)
    assert set(picked.pool.texts(["n", "x", "y"], indices)) == {"x", "y"}
    assert picked.batch(names).equals(expected if names is None else expected.select(names), check_metadata=True)
    assert picked.batch(names).num_rows == 5


@pytest.mark.parametrize("passed", range(4))
def test_files_are_checked_before_texts_are_found_and_gathered_and_after_that(monkeypatch, passed):
    done, checks = [], []
    monkeypatch.setattr(pool, "texts_of", lambda parts: (done.append("found"), texts_of(parts))[1])
    monkeypatch.setattr(texts.Texts, "take", lambda self, indices: (done.append("gathered"), take(self, indices))[1])

    def check():
        checks.append(1)
        if len(checks) > passed:
            raise RuntimeError("the file has changed")

    picked = PickedRows(RowPool([batches(0).select(["y"]), batches(100).select(["y"])], check), np.array([150, 3]))
    if passed < 3:
        with pytest.raises(RuntimeError, match="the file has changed"):
            picked.batch()
    else:
        assert picked.batch()["y"].to_pylist() == ["100", "0"]
    assert done == ["found", "gathered"][:passed]


def test_the_texts_of_very_many_views_are_put_together_because_their_files_are_checked_each_time(monkeypatch):
    monkeypatch.setattr(pool, "MAX_PARTS", 1)
    parts, indices = [batches(0), batches(100)], np.array([150, 3])
    assert not RowPool(parts, lambda: None).texts(["x"], indices)
    assert RowPool(parts, in_memory).texts(["x"], indices)


@pytest.mark.parametrize("has_nulls", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_shuffle_gives_the_same_rows_in_every_form(tmp_path, suffix, kind, has_nulls):
    values = [None if has_nulls and number % 7 == 0 else f"{number} " * (number % 40) for number in range(4_000)]
    table = pa.table({"id": range(4_000), "x": pa.array(values).cast(kind)})
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path, row_group_size=500)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=500)
    dataset = me.read(path).shuffle(1, window_blocks=4)
    rows = [row for batch in dataset.with_format("arrow").batch(300) for row in batch.to_pylist()]
    assert rows == list(dataset)
    assert sorted(rows, key=lambda row: row["id"]) == table.to_pylist()
    assert [row["id"] for row in rows] != list(range(4_000))
