"""Types of text files: wide enough for all values of all files."""

import json

import pyarrow as pa
import pytest

import midepoch as me
from files import numbers, values, write
from texts import completed, lines, rows_of, small_blocks


def test_types_widen_over_the_whole_file_and_over_files(tmp_path):
    first = [{"n": 1, "l": [], "s": {"a": 1}}, {"n": None, "l": None}]
    later = [{"n": 2.5, "t": "x", "l": [1, None], "s": {"b": [True]}}, {"l": [0.5], "u": None}]
    with small_blocks(records=1):
        (tmp_path / "a.jsonl").write_bytes(lines(first + later))
        assert rows_of(tmp_path) == completed(first + later)
        (tmp_path / "a.jsonl").write_bytes(lines(first))
        (tmp_path / "b.jsonl").write_bytes(json.dumps(later).encode())
        assert rows_of(tmp_path) == completed(first + later)
        (batch,) = me.read(tmp_path).with_format("arrow").batch(4)
    assert batch.schema.field("n").type == pa.float64()
    assert batch["n"].to_pylist() == [1.0, None, 2.5, None]


def test_integers_with_nulls_stay_integers(tmp_path):
    big = 2**53 + 1
    (tmp_path / "a.jsonl").write_bytes(lines([{"n": big}, {"n": None}, {}]))
    (tmp_path / "b.jsonl").write_bytes(lines([{"n": None}]))
    assert list(map(repr, values(me.read(tmp_path), "n"))) == [str(big), "None", "None", "None"]
    (tmp_path / "c.csv").write_text(f"n\n{big}\nNA\n")
    assert values(me.read(tmp_path / "c.csv"), "n") == [big, None]
    assert values(me.read([tmp_path / "a.jsonl", tmp_path / "c.csv"]), "n") == [big, None, None, big, None]


def test_text_and_stated_types_together(tmp_path):
    write(tmp_path / "a.parquet", numbers(0, 2), "parquet")
    (tmp_path / "b.jsonl").write_bytes(lines([{"x": 2}, {"x": None}, {}]))
    (tmp_path / "c.csv").write_text("x\n3\n")
    assert values(me.read(tmp_path)) == [0, 1, 2, None, None, 3]
    (tmp_path / "c.csv").write_text("x\n3.5\n")
    with pytest.raises(me.SchemaMismatchError, match=r"column 'x' is int64 in a\.parquet and double in c\.csv"):
        me.read(tmp_path)
    (tmp_path / "c.csv").write_text("x,y\n3,4\n")
    with pytest.raises(me.SchemaMismatchError, match=r"c\.csv has a column 'y' \(int64\) that a\.parquet does not"):
        me.read(tmp_path)
    assert values(me.read(tmp_path, columns=["x"])) == [0, 1, 2, None, None, 3]


def test_files_of_clashing_types_are_both_named(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines([{"a": {"b": [1]}}]))
    (tmp_path / "b.jsonl").write_bytes(lines([{"a": {"b": ["x"]}}]))
    with pytest.raises(me.SchemaMismatchError, match=r"column 'a\.b\[\]' is int64 in a\.jsonl and string in b\.jsonl"):
        me.read(tmp_path)


def test_a_clash_names_the_file_that_brought_the_type(tmp_path):
    for name, value in (("a", None), ("b", 1), ("c", 0.5), ("d", "x")):
        (tmp_path / f"{name}.jsonl").write_bytes(lines([{"x": value}]))
    with pytest.raises(me.SchemaMismatchError, match=r"column 'x' is double in c\.jsonl and string in d\.jsonl"):
        me.read(tmp_path)
