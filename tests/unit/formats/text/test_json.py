"""JSON lines and arrays: the values that json.loads returns, in lines as text, and none that are nested too deep."""

import gzip
import json
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from files import values
from midepoch.formats.text.json import MOST_LEVELS, is_too_deep
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


DEEPEST = "[" * (MOST_LEVELS - 1) + "1" + "]" * (MOST_LEVELS - 1)


def nested(tmp_path, name, *values):
    path = tmp_path / name
    rows = [f'{{"a": {value}}}' for value in values]
    path.write_text("\n".join(rows) if name.endswith("l") else f"[{','.join(rows)}]")
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
@pytest.mark.parametrize("levels", [MOST_LEVELS, 2_000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"b":', "}"), ('["]",', "]")])
def test_too_deep_values_raise(tmp_path, name, levels, opening, closing):
    path = nested(tmp_path, name, "null", opening * levels + "1" + closing * levels)
    place = "line 2" if name == "a.jsonl" else "element 2"
    with pytest.raises(me.DataFormatError, match=rf"{place} has values that are nested more than {MOST_LEVELS} deep"):
        me.read(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_deep_values_and_many_brackets_are_read(tmp_path, name):
    assert list(me.read(nested(tmp_path, name, DEEPEST))) == [{"a": json.loads(DEEPEST)}]
    values = [json.dumps("[" * 5_000), json.dumps('\\"[' * 300)]
    assert [json.dumps(row["a"]) for row in me.read(nested(tmp_path, name, *values))] == values
    wide = json.dumps([[1]] * 1_000)
    assert [json.dumps(row["a"]) for row in me.read(nested(tmp_path, name, wide))] == [wide]


VALUES = st.recursive(
    st.text(alphabet='[]{}"\\a', max_size=6) | st.integers(0, 3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='[]{"\\', max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


def levels_of(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(levels_of, inner), default=0)


@given(value=VALUES, above=st.integers(MOST_LEVELS - 6, MOST_LEVELS + 1))
def test_the_depth_is_that_of_the_parsed_value(value, above):
    text = "[" * above + json.dumps(value) + "]" * above
    assert is_too_deep(text.encode()) == (above + levels_of(value) > MOST_LEVELS)


def test_a_string_that_is_not_closed_is_searched_once():
    for end in (b"", b"\\", b"\n"):
        assert not is_too_deep(b'{"a": "' + b'\\"[' * 200_000 + end)


def test_lines_as_text_take_fields_of_any_type(tmp_path):
    lines = ['{"a": "x"}', '{"a": ["y", 1]}', "", "  ", '{"b": ', '{"a": "é"}\r']
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8", newline="")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n'))
    dataset = me.read(tmp_path, format="lines")
    assert [row["line"] for row in dataset] == ['{"a": "x"}', '{"a": ["y", 1]}', '{"b":', '{"a": "é"}', '{"a": 1}']
    me.testing.assert_resumes(dataset.shuffle(1))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b'[{"a": 1}]', "a.json is json, but format='lines' was asked for"),
        ("a.csv", b"a\n1\n", "a.csv is csv, but format='lines' was asked for"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', "a.jsonl, line 2 is not UTF-8"),
    ],
)
def test_files_that_are_no_json_lines_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(me.DataFormatError, match=message):
        me.read(tmp_path / name, format="lines")
