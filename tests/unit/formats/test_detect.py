"""The format of a file: from its bytes, else from its name or the user's argument."""

import gzip

import pytest

import midepoch as me
from files import KINDS, values, write_numbers
from midepoch.formats import scan_file
from texts import BOM, rows_of, zstd


@pytest.mark.parametrize("name", ["a.arrow", "a.parquet", "a.bin", "a"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_a_file_decide_not_its_name(tmp_path, kind, name):
    path = write_numbers(tmp_path / name, 0, 10, kind)
    assert values(me.read(path)) == list(range(10))


@pytest.mark.parametrize(
    "garbage", [b"x", b"id,name\n1,a\n", b'{"a": 1\n', b"\x1f\x8b" * 9, bytes(100), b"PAR1" * 9, b"ARROW1\0\0" * 9]
)
def test_garbage_is_an_error_that_names_the_file(tmp_path, garbage):
    write_numbers(tmp_path / "a.arrow", 0, 4)
    (tmp_path / "b.arrow").write_bytes(garbage)
    with pytest.raises(me.DataFormatError) as caught:
        me.read(tmp_path)
    assert str(tmp_path / "b.arrow") in str(caught.value)


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"format is 'avro'; it can be 'tar', 'mds', 'arrow', 'parquet', .*, or left out"
    ):
        me.read(write_numbers(tmp_path / "a.arrow", 0, 4), format="avro")


def test_json_is_recognised_by_its_first_letter_whatever_the_name(tmp_path):
    for name, content, kind in (
        ("lines.json", b'{"x": 1}\n', "jsonl"),
        ("array.jsonl", b' [{"x": 1}]', "json"),
        ("x.txt", b'\n{"x": 1}', "jsonl"),
        ("y", BOM + b'[{"x": 1}]', "json"),
        ("z.bin", gzip.compress(b'{"x": 1}'), "jsonl"),
        ("z.csv.zst", zstd(b"x\n1\n"), "csv"),
        ("brace.csv", b"x\n1\n", "csv"),
    ):
        (tmp_path / name).write_bytes(content)
        assert scan_file(str(tmp_path / name)).format == kind
        assert values(me.read(tmp_path / name)) == [1]


def test_the_argument_decides_where_the_bytes_do_not(tmp_path):
    (tmp_path / "a.txt").write_text("x,{y\n1,2\n")
    with pytest.raises(me.DataFormatError, match=r"a\.txt has no known format .*pass format='csv'"):
        me.read(tmp_path / "a.txt")
    assert rows_of(tmp_path / "a.txt", format="csv") == [{"x": 1, "{y": 2}]
    (tmp_path / "b.txt").write_text("{x\n1\n")
    assert rows_of(tmp_path / "b.txt", format="csv") == [{"{x": 1}]
    with pytest.raises(me.DataFormatError, match=r"b\.txt, line 1: Missing a name for object member"):
        me.read(tmp_path / "b.txt")
    assert rows_of(tmp_path / "b.txt", format="csv") == [{"{x": 1}]


@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [("a.json", b"[]", "jsonl"), ("a.jsonl", b"{}", "parquet"), ("a.csv", b"x\n1", "arrow"), ("a.json", b"[]", "orc")],
)
def test_another_text_format_than_asked_for_is_refused(tmp_path, name, content, wrong):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(me.DataFormatError, match=rf"{name} is \w+, but format='{wrong}' was asked for"):
        me.read(tmp_path / name, format=wrong)


def test_json_as_a_format_means_arrays_and_lines(tmp_path):
    (tmp_path / "a.json").write_bytes(b'[{"x": 1}]')
    (tmp_path / "b.json").write_bytes(b'{"x": 2}\n')
    assert values(me.read(tmp_path, format="json")) == [1, 2]


@pytest.mark.parametrize("name", ["a.csv", "A.CSV", "a.csv.gz", "a.csv.bak", "a.csv.json", "a.tsv"])
def test_a_name_says_csv_even_with_one_more_suffix(tmp_path, name):
    (tmp_path / name).write_text("x\n1\n")
    assert scan_file(str(tmp_path / name)).format == "csv"


@pytest.mark.parametrize("name", ["a.csv.1.bak", "a.csv-1", "csv", "a.csv.d/a"])
def test_other_names_do_not_say_csv(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("x\n1\n")
    with pytest.raises(me.DataFormatError, match="has no known format"):
        scan_file(str(tmp_path / name))
