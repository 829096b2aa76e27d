"""Blocks of text files: every row once, in whole records."""

import pytest

import midepoch as me
from files import values
from midepoch.formats import scan_file
from midepoch.testing import assert_resumes
from texts import KINDS, ROWS, lines, packed, rows_of, small_blocks, text_file


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


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_cover_the_records_without_gap_and_overlap(tmp_path, kind):
    path = text_file(tmp_path / f"a.{kind}", ROWS)
    for read in (7, 64, 1 << 20):
        with small_blocks(records=4, size=90, read=read):
            scan = scan_file(str(path))
        if read == 7:
            first = scan.blocks
        assert scan.blocks == first
    ends = [offset + length for offset, length, _ in first]
    assert [offset for offset, _, _ in first][1:] == ends[:-1]
    assert sum(rows for _, _, rows in first) == 50
    assert all(rows <= 4 for _, _, rows in first)
    assert scan_file(str(path)).blocks == [(first[0][0], ends[-1] - first[0][0], 50)]


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
