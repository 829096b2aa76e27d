"""Columns are removed and renamed in runs, in single items and in batches, and nothing else changes."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from worlds import write_files


@pytest.fixture
def dataset(tmp_path):
    rows = range(23)
    table = pa.table({"id": rows, "x": [row / 2 for row in rows], "text": [f"row {row}" for row in rows]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=5)
    return me.read(tmp_path / "a.parquet")


def same(row):
    return row


def same_batch(columns):
    return columns


@pytest.mark.parametrize("form", ["python", "numpy", "torch", "arrow"])
@pytest.mark.parametrize(
    "build",
    [
        lambda ds: ds,
        lambda ds: ds.shuffle(seed=1),
        lambda ds: ds.shuffle(seed=1).map(same),
        lambda ds: ds.map(same_batch, batched=True, batch_size=4),
        lambda ds: ds.batch(4),
    ],
    ids=["runs", "picked", "items", "columns", "batches"],
)
def test_names_change_and_values_do_not(dataset, build, form):
    before = list(build(dataset.with_format(form)))
    removed = list(build(dataset.with_format(form)).remove_columns("x"))
    renamed = list(build(dataset.with_format(form)).rename_columns({"id": "x", "x": "id"}).rename_column("text", "t"))
    for old, less, new in zip(before, removed, renamed, strict=True):
        names = old.schema.names if form == "arrow" else list(old)
        assert names == ["id", "x", "text"]
        assert (less.schema.names if form == "arrow" else list(less)) == ["id", "text"]
        assert (new.schema.names if form == "arrow" else list(new)) == ["x", "id", "t"]
        for name, other in (("id", "x"), ("x", "id"), ("text", "t")):
            assert str(old[name]) == str(new[other])
        assert str(less["text"]) == str(old["text"])


def test_they_are_counted_and_resume(dataset):
    renamed = dataset.shuffle(seed=3).rename_column("id", "number").remove_columns(["x"]).batch(4)
    assert len(renamed) == 6
    me.testing.assert_resumes(renamed)
    stages = renamed.state_dict()["fingerprint"]["pipeline"]
    assert {"op": "rename_column", "columns": [["id", "number"]]} in stages
    assert {"op": "remove_columns", "columns": [["x", None]]} in stages


def test_a_renamed_column_is_packed_not_one_of_the_files_that_had_the_name(tmp_path):
    rows = range(9)
    table = pa.table({"input_ids": [[0]] * 9, "tokens": [[row] * 3 for row in rows]})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as file:
        file.write_table(table)
    dataset = me.read(tmp_path / "a.arrow").remove_columns("input_ids").rename_column("tokens", "input_ids").pack(6)
    assert sorted(token for pack in dataset for token in pack["input_ids"]) == sorted([*rows] * 3)
    if dataset.counted:
        assert len(dataset) == len(list(dataset))


def test_wrong_names_raise_where_they_are_passed(dataset, tmp_path):
    with pytest.raises(me.SchemaMismatchError, match=r"remove_columns: there is no column 'y'.* id, x, text"):
        dataset.remove_columns(["id", "y"])
    with pytest.raises(me.SchemaMismatchError, match="rename_column: there would be two columns 'text'"):
        dataset.rename_column("id", "text")
    with pytest.raises(me.SchemaMismatchError, match="rename_columns: there is no column 'y'"):
        list(dataset.map(same).rename_columns({"y": "z"}))
    with pytest.raises(TypeError, match="remove_columns needs items that are dicts, got a int"):
        list(me.read(write_files(tmp_path / "data", [3], kinds=["stream"])).map(len).remove_columns("id"))
