"""read(filters=...): the rows that Arrow keeps of the whole table, whatever is pruned, shuffled or resumed."""

import datetime as dt
import math
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from midepoch.formats.base import Range
from midepoch.index import filters
from midepoch.testing import assert_elastic, assert_resumes, same

field = pc.field
DAY = dt.date(2024, 1, 1)
NUMBERS = st.integers(-6, 6)
FLOATS = st.one_of(st.integers(-12, 12).map(lambda n: n / 2), st.just(math.nan), st.just(-0.0), st.just(math.inf))
DATES = st.integers(-4, 4).map(lambda n: DAY + dt.timedelta(days=n))
TIMES = st.integers(-4, 4).map(lambda n: dt.datetime(2024, 1, 1) + dt.timedelta(hours=n, microseconds=1000 * n))
TEXTS = st.sampled_from(["", "a", "ab", "b", "ba", "é", "z" * 90])
COLUMNS = {
    "i": (pa.int32(), NUMBERS),
    "j": (pa.int64(), st.sampled_from([-(2**62), -1, 0, 1, 5, 2**62])),
    "u": (pa.uint8(), st.integers(0, 9)),
    "x": (pa.float64(), FLOATS),
    "y": (pa.float32(), FLOATS),
    "s": (pa.string(), TEXTS),
    "l": (pa.large_string(), TEXTS),
    "b": (pa.bool_(), st.booleans()),
    "d": (pa.date32(), DATES),
    "t": (pa.timestamp("ms"), TIMES),
    "n": (pa.timestamp("ns", "UTC"), TIMES),
    "c": (pa.dictionary(pa.int32(), pa.string()), TEXTS),
}


@st.composite
def tables(draw):
    """A table of a few of the columns, maybe sorted by one, as writers that mean to be filtered do."""
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3, unique=True))
    rows = draw(st.integers(1, 40))
    columns = {}
    for name in names:
        kind, values = COLUMNS[name]
        some = values if draw(st.booleans()) else st.one_of(st.none(), values)
        columns[name] = pa.array(draw(st.lists(some, min_size=rows, max_size=rows)), kind)
    found = pa.table(columns)
    plain = [name for name in names if name != "c"]
    if plain and draw(st.booleans()):
        found = found.sort_by(draw(st.sampled_from(plain)))
    return found.append_column("id", pa.array(range(rows), pa.int64()))


@st.composite
def leaves(draw, names):
    name = draw(st.sampled_from(names))
    kind, values = COLUMNS[name]
    one = field(name)
    shapes = ["compare", "compare", "isin", "null", "valid", "nan"]
    shape = draw(
        st.sampled_from(shapes + (["sum", "cast"] if name in "iux" else []) + (["both"] if name == "b" else []))
    )
    if shape == "null":
        return one.is_null(nan_is_null=draw(st.booleans()))
    if shape == "valid":
        return one.is_valid()
    if shape == "nan" and name in "xy":
        return pc.is_nan(one)
    if shape == "both":
        return one
    if shape == "isin":
        some = draw(st.lists(st.one_of(st.none(), values) if draw(st.booleans()) else values, min_size=1, max_size=3))
        return pc.is_in(
            one.cast(pa.string()) if name == "c" else one, pa.array(some, pa.string() if name == "c" else kind)
        )
    value = pa.scalar(draw(values), pa.string() if name == "c" else kind)
    if name in "iujxy" and draw(st.booleans()):
        value = pa.scalar(draw(NUMBERS if name == "j" else st.one_of(NUMBERS, st.floats(-6, 6))))
    if shape == "sum":
        one = one + draw(st.integers(0, 3))
    if shape == "cast":
        one = one.cast(pa.float64())
    compare = draw(st.sampled_from(["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"]))
    return getattr(one, compare)(value)


def expressions(names):
    names = [name for name in names if name != "id"]
    return st.recursive(
        leaves(names),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda two: two[0] & two[1]),
            st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
            inner.map(lambda one: ~one),
        ),
        max_leaves=4,
    )


@st.composite
def cases(draw):
    found = draw(tables())
    return found, draw(st.integers(1, 9)), draw(st.integers(0, 40)), draw(expressions(found.column_names))


def write(folder, table, group, cut):
    """Two files, with row groups of ``group`` rows."""
    for number, part in enumerate((table.slice(0, cut), table.slice(cut))):
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=group)
    return str(folder)


def opened(folder, expression, **options):
    return me.read(folder, filters=expression, index_dir=Path(folder).parent / "index", **options)


def assert_rows(got, expected):
    assert same(list(got), expected.to_pylist()), (list(got), expected.to_pylist())


@given(case=cases())
@settings(max_examples=150)
def test_the_rows_are_those_that_arrow_keeps_of_the_whole_table(case):
    table, group, cut, expression = case
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "data"
        folder.mkdir()
        expected = table.filter(expression)
        dataset = opened(write(folder, table, group, cut), expression)
        assert_rows(dataset, expected)
        assert_rows(opened(folder, expression, columns=["id"]), expected.select(["id"]))
        assert_rows(opened(folder, expression), expected)  # the blocks are remembered by now
        # Arrow's own scanner takes NaN for a value inside the statistics, and then loses rows.
        if not any(pa.types.is_floating(one.type) for one in table.schema):
            assert_rows(dataset, ds.dataset(folder, schema=table.schema).to_table(filter=expression))


@given(case=cases(), lanes=st.integers(1, 4), level=st.sampled_from(["file", "block", "row", None]))
def test_any_shuffle_of_them_resumes_and_resizes(case, lanes, level):
    table, group, cut, expression = case
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "data"
        folder.mkdir()
        dataset = opened(write(folder, table, group, cut), expression).lanes(lanes)
        dataset = dataset if level is None else dataset.shuffle(3, level=level, window=7)
        expected = table.filter(expression)["id"].to_pylist()
        assert sorted(row["id"] for row in dataset) == expected
        assert_resumes(dataset, every=3)
        assert_elastic(dataset, [(2, 1), (1, 3), (3, 1)], steps=2)


def nulls_forgotten(name, found):
    return (
        pc.field(name).is_valid()
        if found.low is None
        else (pc.field(name) >= found.low) & (pc.field(name) <= found.high)
    )


def nan_forgotten(expression, schema, columns, blocks):
    facts = [filters._all([of, *(filters._of_range(*one) for one in block.items())]) for _, of, block in blocks]
    return filters._may_match(expression, schema, facts)


def one_too_many(expression, schema, facts, true=filters._may_match):
    found = true(expression, schema, facts)
    if found.any():
        found[np.flatnonzero(found)[-1]] = False
    return found


@pytest.mark.parametrize(
    ("name", "planted"), [("_of_range", nulls_forgotten), ("_any_case", nan_forgotten), ("_may_match", one_too_many)]
)
def test_a_planted_mistake_is_found(tmp_path, monkeypatch, name, planted):
    values = [1.0, None, 2.0, 7.0, math.nan, 8.0]
    table = pa.table({"x": pa.array(values, pa.float64()), "id": range(6)})
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder, table, 3, 6)
    expressions = [~(field("x") >= 5), ~(field("x") < 9), field("x").is_null(), field("x") > 7]

    def prove():
        for expression in expressions:
            assert_rows(opened(folder, expression), table.filter(expression))

    prove()
    monkeypatch.setattr(filters, name, planted)
    monkeypatch.setattr(filters, "_load", lambda path, blocks: None)
    with pytest.raises(AssertionError):
        prove()


def test_a_bound_that_is_no_value_of_the_column_rules_out_only_what_lies_beyond():
    """Writers may cut long strings: a prefix for the minimum, something larger for the maximum."""
    schema = pa.schema([("s", pa.string())])
    fact = filters._of_range("s", Range(pa.scalar("ab"), pa.scalar("ac"), 0, 10))
    for expression, may in ((field("s") == "abzzz", True), (field("s") > "ac", False), (field("s") < "ab", False)):
        assert filters._may_match(expression, schema, [fact]).tolist() == [may]
