"""Values that are nested too deep are an error that names the line, not the end of the process."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from midepoch.formats.text.nesting import MOST_LEVELS, is_too_deep

DEEPEST = "[" * (MOST_LEVELS - 1) + "1" + "]" * (MOST_LEVELS - 1)


def write(tmp_path, name, *values):
    path = tmp_path / name
    rows = [f'{{"a": {value}}}' for value in values]
    path.write_text("\n".join(rows) if name.endswith("l") else f"[{','.join(rows)}]")
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
@pytest.mark.parametrize("levels", [MOST_LEVELS, 2_000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"b":', "}"), ('["]",', "]")])
def test_too_deep_values_raise(tmp_path, name, levels, opening, closing):
    path = write(tmp_path, name, "null", opening * levels + "1" + closing * levels)
    place = "line 2" if name == "a.jsonl" else "element 2"
    with pytest.raises(me.DataFormatError, match=rf"{place}: its values are nested more than {MOST_LEVELS} deep"):
        me.read(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_deep_values_and_many_brackets_are_read(tmp_path, name):
    assert list(me.read(write(tmp_path, name, DEEPEST))) == [{"a": json.loads(DEEPEST)}]
    values = [json.dumps("[" * 5_000), json.dumps('\\"[' * 300)]
    assert [json.dumps(row["a"]) for row in me.read(write(tmp_path, name, *values))] == values
    wide = json.dumps([[1]] * 1_000)
    assert [json.dumps(row["a"]) for row in me.read(write(tmp_path, name, wide))] == [wide]


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
