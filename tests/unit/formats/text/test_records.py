"""What the text formats share: every row once in whole records, types for all values, and compressed files."""

import gzip
import json
import logging

import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from files import numbers, values, write
from midepoch.formats import scan_file
from midepoch.formats.text import records
from midepoch.testing import assert_resumes
from texts import KINDS, ROWS, completed, lines, packed, rows_of, small_blocks, text_file, zstd


@packed
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("_small_blocks")
def test_all_rows_in_order_from_many_blocks(tmp_path, kind, suffix, pack):
    path = text_file(tmp_path / f"a.{kind}{suffix}", ROWS, pack)
    scan = scan_file(str(path))
    assert scan.format == kind
    assert scan.seeks == (suffix == "")
    assert len(scan.blocks) > 5
    assert rows_of(path) == ROWS
    assert rows_of(tmp_path) == ROWS
    for row in (0, 1, 2, 3, 25, 48, 49):
        assert next(iter(me.read(path).skip(row))) == ROWS[row]


@packed
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("_small_blocks")
def test_shuffled_and_resumed(tmp_path, kind, suffix, pack):
    path = text_file(tmp_path / f"a.{kind}{suffix}", ROWS, pack)
    for level in ("file", "block", "row"):
        dataset = me.read(path).shuffle(seed=3, level=level, window=7).lanes(2)
        assert sorted(values(dataset, "id")) == list(range(50))
        assert_resumes(me.read(path).shuffle(seed=3, level=level, window=7).lanes(2), every=9)


def test_columns_are_picked_and_the_others_not_even_converted(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines([{"a": 1, "b": "x", "c": [1]}, {"b": "y"}]))
    (tmp_path / "a.csv").write_text("a,b,c\n1,x,\n,y,2\n")
    for name in ("a.jsonl", "a.csv"):
        assert [list(row.items()) for row in me.read(tmp_path / name, columns=["b", "a"])] == [
            [("b", "x"), ("a", 1)],
            [("b", "y"), ("a", None)],
        ]
        assert len(me.read(tmp_path / name, columns=[])) == 2
        assert rows_of(tmp_path / name, columns=[]) == [{}, {}]
        with pytest.raises(me.SchemaMismatchError, match=rf"{name} has no column 'z'\. It has: a, b, c\."):
            me.read(tmp_path / name, columns=["z"])


def test_a_record_larger_than_a_block_is_read(tmp_path):
    rows = [{"a": "x" * length} for length in (3, 5000, 0, 70_000)]
    for kind in KINDS:
        with small_blocks(size=100, read=64):
            assert rows_of(text_file(tmp_path / f"a.{kind}", rows)) == rows


def test_many_different_fields_in_few_bytes_are_limited(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(b'{"k%d":1}\n' % number for number in range(2000)))
    assert path.stat().st_size < 30_000
    with pytest.raises(me.DataFormatError, match=r"a\.jsonl, block 0, of 2,000 columns: .* become 32,000,000 bytes"):
        me.read(path, max_record_bytes="10MiB")
    assert len(me.read(path)) == 2000


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


def test_one_warning_says_that_compressed_files_cannot_seek_and_what_to_do(tmp_path, caplog):
    for name in "abc":
        text_file(tmp_path / f"{name}.jsonl.gz", ROWS, gzip.compress)
    text_file(tmp_path / "d.jsonl", ROWS)
    with caplog.at_level(logging.WARNING, "midepoch"):
        assert len(rows_of(tmp_path)) == 200
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("3 of 4 files, such as a.jsonl.gz, cannot seek: compressed as a whole")
    assert "convert them to Parquet" in message
    caplog.clear()
    assert rows_of(tmp_path / "d.jsonl") == ROWS
    assert not caplog.records


def test_several_members_of_a_gzip_file_are_one_text(tmp_path):
    content = [lines([row]) for row in ROWS]
    (tmp_path / "a.jsonl.gz").write_bytes(b"".join(map(gzip.compress, content)))
    (tmp_path / "b.jsonl.zst").write_bytes(b"".join(map(zstd, content)))
    assert rows_of(tmp_path) == ROWS * 2


def test_decompressed_bytes_at_any_offset(tmp_path):
    content = np.random.default_rng(0).bytes(5000)
    (tmp_path / "a").write_bytes(gzip.compress(content))
    file = records.open_text(str(tmp_path / "a"))
    for offset, count in [(0, 10), (4000, 900), (100, 5), (105, 5), (4990, 100), (6000, 5), (0, 5000)]:
        assert file.read_at(count, offset) == content[offset : offset + count]
