"""The columns of a dataset: those of all files, under one schema."""

import pyarrow as pa
import pytest

import midepoch as me
from files import KINDS, values, write, write_numbers


@pytest.mark.parametrize("kind", KINDS)
def test_columns_picks_in_the_order_asked_for(tmp_path, kind):
    batch = pa.record_batch({"a": pa.array([1]), "b": pa.array(["x"]), "c": pa.array([0.5])})
    path = write(tmp_path / "a.data", batch, kind)
    dataset = me.read(path, columns=["c", "a"])
    assert [list(row.items()) for row in dataset] == [[("c", 0.5), ("a", 1)]]
    assert dataset.schema.names == ["c", "a"]


def test_columns_as_one_string_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"pass \['x'\]"):
        me.read(write_numbers(tmp_path / "a.arrow", 0, 4), columns="x")


def test_the_error_for_a_missing_column_names_the_file_and_its_columns(tmp_path):
    write(tmp_path / "a.arrow", pa.record_batch({"a": pa.array([1]), "b": pa.array([2])}))
    write(tmp_path / "b.arrow", pa.record_batch({"a": pa.array([1])}))
    with pytest.raises(me.SchemaMismatchError, match=r"a\.arrow has no column 'z'\. It has: a, b\."):
        me.read(tmp_path, columns=["z"])
    with pytest.raises(me.SchemaMismatchError, match=r"b\.arrow has no column 'b'\. It has: a\."):
        me.read(tmp_path, columns=["b"])
    assert values(me.read(tmp_path, columns=["a"]), "a") == [1, 1]


@pytest.mark.parametrize("kinds", [("stream", "stream"), ("parquet", "file")])
def test_another_type_names_both_files_and_the_column(tmp_path, kinds):
    write(tmp_path / "a.data", pa.record_batch({"x": pa.array([1]), "y": pa.array([1])}), kinds[0])
    write(tmp_path / "b.data", pa.record_batch({"x": pa.array([1]), "y": pa.array(["s"])}), kinds[1])
    with pytest.raises(me.SchemaMismatchError, match=r"column 'y' is int64 in a\.data and string in b\.data"):
        me.read(tmp_path / "*.data")
    assert values(me.read(tmp_path / "*.data", columns=["x"])) == [1, 1]


@pytest.mark.parametrize("extra", ["a", "b"])
def test_a_column_too_many_names_both_files_and_the_column(tmp_path, extra):
    for name in "ab":
        columns = {"x": pa.array([1])} | ({"more": pa.array([0.5])} if name == extra else {})
        write(tmp_path / f"{name}.arrow", pa.record_batch(columns))
    other = "b" if extra == "a" else "a"
    with pytest.raises(
        me.SchemaMismatchError,
        match=rf"{extra}\.arrow has a column 'more' \(double\) that {other}\.arrow does not",
    ):
        me.read(tmp_path)


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    write(tmp_path / "a.arrow", pa.record_batch([pa.array([1]), pa.array([2])], names=["x", "x"]))
    with pytest.raises(me.SchemaMismatchError, match=r"a\.arrow has the column 'x' more than once"):
        me.read(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_may_come_in_another_order(tmp_path, kind):
    write(tmp_path / "a.arrow", pa.record_batch({"x": pa.array([1]), "y": pa.array(["a"])}), kind)
    write(tmp_path / "b.arrow", pa.record_batch({"y": pa.array(["b"]), "x": pa.array([2])}), kind)
    rows = [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]
    assert list(map(repr, me.read(tmp_path))) == list(map(repr, rows))
    (batch,) = me.read(tmp_path).batch(2)
    assert batch == {"x": [1, 2], "y": ["a", "b"]}


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_differ_in_nullability_and_metadata_are_read_together(tmp_path, kind):
    strict = pa.schema([pa.field("x", pa.int64(), nullable=False, metadata={"a": "b"})], metadata={"c": "d"})
    write(tmp_path / "a.arrow", pa.record_batch([pa.array([1, 2, 3])], schema=strict), kind)
    write(tmp_path / "b.arrow", pa.record_batch({"x": pa.array([4, None])}), kind)
    assert values(me.read(tmp_path)) == [1, 2, 3, 4, None]
    assert [batch["x"] for batch in me.read(tmp_path).batch(4)] == [[1, 2, 3, 4], [None]]
    assert {row["x"] for row in me.read(tmp_path).shuffle(seed=1)} == {1, 2, 3, 4, None}
    (batch,) = me.read(tmp_path).with_format("arrow").batch(5)
    assert batch["x"].to_pylist() == [1, 2, 3, 4, None]
