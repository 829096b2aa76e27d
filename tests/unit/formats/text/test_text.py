"""JSON lines, JSON arrays and CSV: every row once, with the values that a plain reader gives."""

import csv
import gzip
import io
import json
import logging
import math
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import midepoch as me
from files import numbers, values, write
from midepoch.formats import scan_file
from midepoch.formats.text import compressed
from midepoch.formats.text import records as text
from midepoch.formats.text.csv import record_ends
from midepoch.testing import assert_resumes

many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

BOM = "\ufeff".encode()


def small_blocks(records=3, size=1 << 20, packed=100, read=None):
    return patch.multiple(
        text,
        BLOCK_RECORDS=records,
        BLOCK_BYTES=size,
        PACKED_BYTES=packed,
        READ_BYTES=read or text.READ_BYTES,
    )


@pytest.fixture
def _small_blocks():
    with small_blocks():
        yield


def zstd(data):
    return pa.Codec("zstd").compress(data, asbytes=True)


def as_is(data):
    return data


PACKED = [("", as_is), (".gz", gzip.compress), (".zst", zstd)]
packed = pytest.mark.parametrize(("suffix", "pack"), PACKED, ids=["plain", "gz", "zst"])


def rows_of(path, **options):
    return list(me.read(path, **options))


def lines(rows, end="\n"):
    return "".join(json.dumps(row) + end for row in rows).encode()


def table_of(rows, end="\r\n"):
    sink = io.StringIO()
    csv.writer(sink, lineterminator=end).writerows([list(rows[0]), *(row.values() for row in rows)])
    return sink.getvalue().encode()


def text_file(path, rows, pack=as_is):
    kind = path.name.split(".")[1]
    content = {"jsonl": lines, "json": lambda rows: json.dumps(rows).encode(), "csv": table_of}[kind](rows)
    path.write_bytes(pack(content))
    return path


ROWS = [{"id": number, "text": f'row\n"{number}", of many'} for number in range(50)]
KINDS = ["jsonl", "json", "csv"]


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


# JSON


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [
        "2020-01-01",
        "2020-01-01T10:00:00Z",
        "2020-01-01 10:00:00",
        "12:30",
        "1",
        "1.5",
        "null",
        "true",
        "",
        '"',
        "\\",
        "\n",
    ]
)
leaves = [
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False),
    st.none() | texts,
    st.none() | st.booleans(),
    st.none(),
]


@st.composite
def json_values(draw, depth=2):
    """A strategy for the values of one field: of one type, or null."""
    kind = draw(st.integers(0, 6 if depth else 4))
    if kind < len(leaves):
        return leaves[kind]
    if kind == 5:
        return st.none() | st.lists(draw(json_values(depth=depth - 1)), max_size=3)
    names = draw(st.lists(st.sampled_from(["p", "q", "r", "a b"]), max_size=3, unique=True))
    fields = {name: draw(json_values(depth=depth - 1)) for name in names}
    return st.none() | st.fixed_dictionaries({}, optional=fields)


@st.composite
def json_rows(draw):
    names = draw(st.lists(texts, max_size=3, unique=True))
    fields = {name: draw(json_values()) for name in names}
    return draw(st.lists(st.fixed_dictionaries({}, optional=fields), min_size=1, max_size=12))


def completed(values_of, shape=None):
    """Rows with None for each key that others have, at every level: what columns can tell."""
    dicts = [value for value in values_of if isinstance(value, dict)]
    lists = [value for value in values_of if isinstance(value, list)]
    if dicts:
        names = list(dict.fromkeys(name for value in dicts for name in value))
        columns = {name: completed([value.get(name) for value in dicts]) for name in names}
        filled = iter(
            [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)] or [{}] * len(dicts)
        )
        return [next(filled) if isinstance(value, dict) else value for value in values_of]
    if lists:
        inside = iter(completed([one for value in lists for one in value]))
        return [[next(inside) for _ in value] if isinstance(value, list) else value for value in values_of]
    return list(values_of)


@many
@given(json_rows(), st.sampled_from(["jsonl", "json"]), st.integers(1, 4), st.booleans(), st.sampled_from([None, 1]))
def test_values_are_those_of_json_loads(rows, kind, records, ascii_only, indent):
    written = [json.dumps(row, ensure_ascii=ascii_only) for row in rows]
    array = json.dumps(rows, ensure_ascii=ascii_only, indent=indent)
    content = "\n".join(written) if kind == "jsonl" else array
    with tempfile.TemporaryDirectory() as folder, small_blocks(records=records, read=16):
        path = Path(folder) / f"a.{kind}"
        path.write_bytes(content.encode())
        expected = completed([json.loads(line) for line in written])
        assert rows_of(path) == expected
        if expected[0]:
            name = next(iter(expected[0]))
            assert rows_of(path, columns=[name]) == [{name: row[name]} for row in expected]


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


def test_whole_numbers_with_nulls_stay_whole(tmp_path):
    big = 2**53 + 1
    (tmp_path / "a.jsonl").write_bytes(lines([{"n": big}, {"n": None}, {}]))
    (tmp_path / "b.jsonl").write_bytes(lines([{"n": None}]))
    assert list(map(repr, values(me.read(tmp_path), "n"))) == [str(big), "None", "None", "None"]
    (tmp_path / "c.csv").write_text(f"n\n{big}\nNA\n")
    assert values(me.read(tmp_path / "c.csv"), "n") == [big, None]
    assert values(me.read([tmp_path / "a.jsonl", tmp_path / "c.csv"]), "n") == [big, None, None, big, None]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("begin", [b"", BOM, b"\n\n", BOM + b" \r\n"])
@pytest.mark.parametrize("finish", [b"", b"\n", b"\r\n\r\n", b"   "])
def test_line_ends_blank_lines_and_marks(tmp_path, begin, end, finish):
    rows = [{"a": number, "b": f"é\n{number}"} for number in range(7)]
    between = json.dumps(rows[3]).encode() + end.encode() * 3 + b"  \t" + end.encode()
    content = begin + lines(rows[:3], end) + between + lines(rows[4:], end).rstrip() + finish
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "a.json").write_bytes(
        begin + b"[ " + b" ,\r\n ".join(map(str.encode, map(json.dumps, rows))) + b" ]" + finish
    )
    for records in (1, 2, 100):
        with small_blocks(records=records, read=5):
            assert rows_of(tmp_path / "a.jsonl", index_dir=tmp_path / f"{records}") == rows
            assert rows_of(tmp_path / "a.json", index_dir=tmp_path / f"{records}") == rows


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


def test_a_field_that_only_some_files_have_is_null_in_the_others(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines([{"a": 1}]))
    (tmp_path / "b.jsonl").write_bytes(lines([{"b": "x"}]))
    (tmp_path / "c.jsonl").write_bytes(b"\n")
    assert rows_of(tmp_path) == [{"a": 1, "b": None}, {"a": None, "b": "x"}]
    assert rows_of(tmp_path, columns=["b"]) == [{"b": None}, {"b": "x"}]


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


def test_a_clash_is_told_of_the_file_that_brought_the_type(tmp_path):
    for name, value in (("a", None), ("b", 1), ("c", 0.5), ("d", "x")):
        (tmp_path / f"{name}.jsonl").write_bytes(lines([{"x": value}]))
    with pytest.raises(me.SchemaMismatchError, match=r"column 'x' is double in c\.jsonl and string in d\.jsonl"):
        me.read(tmp_path)


# CSV


cells = st.one_of(
    st.text(st.sampled_from('ab",\n\r\t 1'), max_size=6),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5),
    st.sampled_from(
        ["1", "-2", "2.5", "true", "False", "1e5", "2020-01-01", "12:30:00", "0x1F", "007", "NA", "", "nan"]
    ),
)


@many
@given(
    st.integers(1, 3).flatmap(
        lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), min_size=1, max_size=12)
    ),
    st.sampled_from([("\n", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_MINIMAL)]),
    st.integers(1, 3),
)
def test_csv_fields_are_those_of_the_csv_module(rows, style, records):
    """Compared as text: a row of words at the end keeps every column from being anything else."""
    end, quoting = style
    rows = [[*row, "end"] for row in rows]
    names = [f"c{number}" for number in range(len(rows[0]))]
    sink = io.StringIO()
    csv.writer(sink, lineterminator=end, quoting=quoting).writerows([names, *rows, ["word"] * len(names)])
    with tempfile.TemporaryDirectory() as folder, small_blocks(records=records, read=8):
        path = Path(folder) / "a.csv"
        path.write_bytes(sink.getvalue().encode())
        got = rows_of(path)
    assert [list(row.values()) for row in got[:-1]] == rows


@many
@given(
    st.lists(
        st.tuples(cells, st.sampled_from(["1", "2", "", "0.5", "true", "x", "NA", "2020-01-01"])),
        min_size=1,
        max_size=9,
    ),
    st.integers(1, 3),
)
def test_csv_types_do_not_depend_on_blocks(rows, records):
    """The whole file at once gives the same as block by block."""
    content = table_of([dict(zip("ab", row, strict=True)) for row in rows])
    found = []
    for most in (records, 1000):
        with tempfile.TemporaryDirectory() as folder, small_blocks(records=most):
            path = Path(folder) / "a.csv"
            path.write_bytes(content)
            dataset = me.read(path)
            found.append((dataset.schema, list(map(repr, dataset))))
    assert found[0] == found[1]


@many
@given(st.text(st.sampled_from('a",\n\r'), max_size=24))
def test_records_end_where_pyarrow_ends_them(content):
    """Also with quotes in the middle of fields. Cut at any end, the parts have the rows of the whole."""
    data = content.encode() + b"\n"

    def count(part):
        read = pc.ReadOptions(column_names=["a"], use_threads=False)
        skipped = []
        parse = pc.ParseOptions(newlines_in_values=True, invalid_row_handler=lambda row: skipped.append(row) or "skip")
        if not part.strip(b"\r\n"):
            return 0
        table = pc.read_csv(pa.BufferReader(part), read, parse)
        return table.num_rows + len(skipped)

    try:
        ends = record_ends(data, ord(","), last=True).tolist()
    except text.MalformedError:
        ends = record_ends(data, ord(","), last=False).tolist()
    for end in ends:
        assert count(data[:end]) + count(data[end:]) == count(data), end


def test_quotes_in_the_middle_of_a_field_are_letters(tmp_path):
    (tmp_path / "a.csv").write_text('a,b\n1,5" pipe\n2,"two\nlines"\n3,6"\n4,"x ""y"""\n')
    with small_blocks(records=1):
        assert values(me.read(tmp_path), "b") == ['5" pipe', "two\nlines", '6"', 'x "y"']


def test_empty_fields(tmp_path):
    (tmp_path / "a.csv").write_text('n,s,e,q\n1,,,""\n,x,NA,""\nNA,NA,,\n')
    assert rows_of(tmp_path) == [
        {"n": 1, "s": "", "e": None, "q": None},
        {"n": None, "s": "x", "e": None, "q": None},
        {"n": None, "s": "NA", "e": None, "q": None},
    ]


def test_csv_types(tmp_path):
    (tmp_path / "a.csv").write_text("i,f,b,d,m,h\n1,1,true,2020-01-01,1,0x1F\n2,2.5,False,2021-01-01,x,0x20\n")
    dataset = me.read(tmp_path)
    assert [str(kind) for kind in dataset.schema.types] == ["int64", "double", "bool", "string", "string", "string"]
    assert next(iter(dataset)) == {"i": 1, "f": 1.0, "b": True, "d": "2020-01-01", "m": "1", "h": "0x1F"}


def test_csv_files_are_widened_to_one_type_at_last_to_strings(tmp_path):
    for name, column in (("a", "1,2,,0"), ("b", ",0.5,,1"), ("c", "3,4,,yes")):
        (tmp_path / f"{name}.csv").write_text(f"i,f,e,m\n{column}\n")
    assert [list(row.values()) for row in me.read(tmp_path)] == [
        [1, 2.0, None, "0"],
        [None, 0.5, None, "1"],
        [3, 4.0, None, "yes"],
    ]


def test_tabs_marks_and_blank_lines(tmp_path):
    (tmp_path / "a.tsv").write_bytes(BOM + b"\r\na\tb\r\n\r\n1\t2,3\r\n\r\n")
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(b"a\tb\n2\tx"))
    assert rows_of(tmp_path) == [{"a": 1, "b": "2,3"}, {"a": 2, "b": "x"}]


def test_a_header_alone_has_columns_and_no_rows(tmp_path):
    (tmp_path / "a.csv").write_text("a,b")
    (tmp_path / "b.csv").write_text("a,b\n1,x\n")
    assert rows_of(tmp_path / "a.csv") == []
    assert me.read(tmp_path / "a.csv").schema.names == ["a", "b"]
    assert rows_of(tmp_path) == [{"a": 1, "b": "x"}]


def test_a_csv_without_a_column_that_others_have_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.csv").write_text("a\n1\n")
    with pytest.raises(me.SchemaMismatchError, match=r"a\.csv has a column 'b' \(int64\) that b\.csv does not have"):
        me.read(tmp_path)


# Which format


def test_json_is_told_by_its_first_letter_whatever_the_name(tmp_path):
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


def test_format_decides_where_bytes_do_not_tell(tmp_path):
    (tmp_path / "a.txt").write_text("x,{y\n1,2\n")
    with pytest.raises(me.DataFormatError, match=r"a\.txt has no known format .*pass format='csv'"):
        me.read(tmp_path / "a.txt")
    assert rows_of(tmp_path / "a.txt", format="csv") == [{"x": 1, "{y": 2}]
    (tmp_path / "b.txt").write_text("{x\n1\n")
    assert rows_of(tmp_path / "b.txt", format="csv") == [{"{x": 1}]
    with pytest.raises(me.DataFormatError, match=r"b\.txt, line 1: this is no valid JSON object"):
        me.read(tmp_path / "b.txt")
    assert rows_of(tmp_path / "b.txt", format="csv") == [{"{x": 1}]


@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [("a.json", b"[]", "jsonl"), ("a.jsonl", b"{}", "parquet"), ("a.csv", b"x\n1", "arrow"), ("a.json", b"[]", "orc")],
)
def test_another_format_than_asked_for_is_refused(tmp_path, name, content, wrong):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(me.DataFormatError, match=rf"{name} is \w+, but format='{wrong}' was asked for"):
        me.read(tmp_path / name, format=wrong)


def test_json_as_a_format_means_arrays_and_lines(tmp_path):
    (tmp_path / "a.json").write_bytes(b'[{"x": 1}]')
    (tmp_path / "b.json").write_bytes(b'{"x": 2}\n')
    assert values(me.read(tmp_path, format="json")) == [1, 2]


# Compressed


@pytest.fixture
def opened(monkeypatch):
    """How often a compressed file was begun."""
    begun = []
    whole = pa.CompressedInputStream

    def note(file, codec):
        begun.append(codec)
        return whole(file, codec)

    monkeypatch.setattr(compressed.pa, "CompressedInputStream", note)
    return begun


@pytest.mark.usefixtures("_small_blocks")
def test_a_compressed_file_is_decompressed_once_a_pass(tmp_path, opened):
    path = text_file(tmp_path / "a.jsonl.gz", ROWS, gzip.compress)
    dataset = me.read(path)
    assert len(dataset._plan.pipeline.source.index.view.block_starts) > 10
    opened.clear()
    assert list(dataset) == ROWS
    assert opened == ["gzip"]
    assert list(dataset) == ROWS
    assert opened == ["gzip", "gzip"]


def test_that_a_compressed_file_cannot_seek_is_told_once_with_the_way_out(tmp_path, caplog):
    for name in "abc":
        text_file(tmp_path / f"{name}.jsonl.gz", ROWS, gzip.compress)
    text_file(tmp_path / "d.jsonl", ROWS)
    with caplog.at_level(logging.WARNING, "midepoch"):
        assert len(rows_of(tmp_path)) == 200
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("3 of 4 files, such as a.jsonl.gz, cannot seek: compressed as a whole")
    assert "convert them to Parquet" in told
    caplog.clear()
    assert rows_of(tmp_path / "d.jsonl") == ROWS
    assert not caplog.records


def test_several_members_of_a_gzip_file_are_one_text(tmp_path):
    content = [lines([row]) for row in ROWS]
    (tmp_path / "a.jsonl.gz").write_bytes(b"".join(map(gzip.compress, content)))
    (tmp_path / "b.jsonl.zst").write_bytes(b"".join(map(zstd, content)))
    assert rows_of(tmp_path) == ROWS * 2


def test_inflated_bytes_at_any_place(tmp_path):
    content = np.random.default_rng(0).bytes(5000)
    (tmp_path / "a").write_bytes(gzip.compress(content))
    file = compressed.open_text(str(tmp_path / "a"))
    for offset, count in [(0, 10), (4000, 900), (100, 5), (105, 5), (4990, 100), (6000, 5), (0, 5000)]:
        assert file.read_at(count, offset) == content[offset : offset + count]


def test_a_record_larger_than_a_block_is_read(tmp_path):
    rows = [{"a": "x" * length} for length in (3, 5000, 0, 70_000)]
    for kind in KINDS:
        with small_blocks(size=100, read=64):
            assert rows_of(text_file(tmp_path / f"a.{kind}", rows)) == rows


def test_numbers_that_are_none(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": NaN}\n{"x": Infinity}\n')
    got = values(me.read(tmp_path))
    assert math.isnan(got[0])
    assert got[1] == math.inf


def test_lines_as_text_take_fields_of_any_type(tmp_path):
    lines = ['{"a": "x"}', '{"a": ["y", 1]}', "", "  ", '{"b": ', '{"a": "é"}\r']
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8", newline="")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n'))
    dataset = me.read(tmp_path, format="lines")
    assert [row["line"] for row in dataset] == ['{"a": "x"}', '{"a": ["y", 1]}', '{"b":', '{"a": "é"}', '{"a": 1}']
    me.testing.assert_resumes(dataset.shuffle(1))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.json", b'[{"a": 1}]', "a.json is json, but format='lines' was asked for"),
        ("a.csv", b"a\n1\n", "a.csv is csv, but format='lines' was asked for"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', "a.jsonl, line 2: the byte 0xff is not UTF-8"),
    ],
)
def test_what_are_no_lines_of_json_is_told(tmp_path, name, content, told):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(me.DataFormatError, match=told):
        me.read(tmp_path / name, format="lines")
