"""CSV: the fields that the csv module reads, with types that do not depend on blocks."""

import csv
import gzip
import io
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from midepoch.formats.text import records as text
from midepoch.formats.text.csv import record_ends
from texts import (
    BOM,
    many,
    rows_of,
    small_blocks,
    table_of,
)

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
