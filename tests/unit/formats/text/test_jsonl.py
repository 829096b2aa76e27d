"""JSON lines and arrays: the values that json.loads returns."""

import json
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from files import values
from texts import BOM, completed, lines, many, rows_of, small_blocks

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


def test_a_field_that_only_some_files_have_is_null_in_the_others(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines([{"a": 1}]))
    (tmp_path / "b.jsonl").write_bytes(lines([{"b": "x"}]))
    (tmp_path / "c.jsonl").write_bytes(b"\n")
    assert rows_of(tmp_path) == [{"a": 1, "b": None}, {"a": None, "b": "x"}]
    assert rows_of(tmp_path, columns=["b"]) == [{"b": None}, {"b": "x"}]


def test_nan_and_infinity(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": NaN}\n{"x": Infinity}\n')
    got = values(me.read(tmp_path))
    assert math.isnan(got[0])
    assert got[1] == math.inf
