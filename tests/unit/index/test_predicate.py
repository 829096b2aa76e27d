"""Filters as expressions: needed columns, masks, descriptions."""

import datetime as dt
import math
import pickle

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from midepoch.errors import SchemaMismatchError
from midepoch.index.predicate import SHOWN_CHARACTERS, Predicate

field = pc.field
SCHEMA = pa.schema(
    [("x", "int64"), ("xx", "int64"), ("s", "string"), ("deep", pa.struct([("x", "int64")])), ("f", "double")]
)


def batch(**columns):
    return pa.record_batch(columns)


@pytest.mark.parametrize(
    ("expression", "columns"),
    [
        (field("x") > 1, ("x",)),
        (field("xx") > 1, ("xx",)),
        ((field("s") == "x") & (field("xx") == 1), ("xx", "s")),
        (field("deep", "x") == 1, ("deep",)),
        (pc.scalar(True), ()),
        (field("s") == "xx", ("s",)),
    ],
)
def test_the_columns_it_needs(expression, columns):
    assert Predicate.of(expression, SCHEMA).columns == columns


def test_the_mask_is_true_where_the_expression_is_and_false_where_it_is_null():
    predicate = Predicate.of(field("x") > 1, SCHEMA)
    assert predicate.mask(batch(s=["", "", ""], x=[1, 2, None])).tolist() == [False, True, False]
    assert predicate.mask(batch(x=[1, 2])).tolist() == [False, True]
    assert predicate.mask(batch(x=pa.array([], "int64"))).tolist() == []


def test_a_filter_without_columns_has_a_mask_too():
    for value in (True, False):
        assert Predicate.of(pc.scalar(value), SCHEMA).mask(batch(x=[1, 2])).tolist() == [value, value]


def test_lists_as_in_pyarrow_parquet():
    predicate = Predicate.of([("x", ">", 1), ("s", "in", ["a"])], SCHEMA)
    assert predicate.columns == ("x", "s")
    assert predicate.mask(batch(x=[1, 2, 2], s=["a", "a", "b"])).tolist() == [False, True, False]


def test_the_description_is_short_and_differs_wherever_the_filter_does():
    long = [Predicate.of(field("x").isin([*range(500), middle, *range(500)]), SCHEMA).describe() for middle in (7, 8)]
    assert long[0]["filter"] == long[1]["filter"]
    many = (field("x") > 1) & (field("x") < 10**15)
    for _ in range(4):
        many = many | many
    assert len(Predicate.of(many, SCHEMA).describe()["filter"]) == SHOWN_CHARACTERS + 1
    assert long[0]["digest"] != long[1]["digest"]
    assert Predicate.of(field("x") > 1, SCHEMA).describe() == {"filter": "(x > 1)", "digest": "91ef547efa908769"}


def test_a_pickled_filter_is_described_the_same():
    predicate = Predicate.of((field("x") > 1) & (field("s") == "é"), SCHEMA)
    copied = pickle.loads(pickle.dumps(predicate))
    assert copied.describe() == predicate.describe()
    assert copied.content == predicate.content


def test_times_are_described_by_their_integers():
    schema = pa.schema([("t", pa.timestamp("ns")), ("d", "date32")])
    moments = [Predicate.of(field("t") > pa.scalar(value, pa.timestamp("ns")), schema) for value in (1, 2)]
    assert moments[0].describe()["digest"] != moments[1].describe()["digest"]
    days = [Predicate.of(field("d") > dt.date(2024, 1, day), schema) for day in (1, 2)]
    assert days[0].describe()["digest"] != days[1].describe()["digest"]


def test_it_knows_whether_it_compares_with_nan():
    assert Predicate.of(field("f") == math.nan, SCHEMA).names_nan
    assert Predicate.of(field("f").isin([1.0, math.nan]), SCHEMA).names_nan
    assert not Predicate.of(field("f") < 1.5, SCHEMA).names_nan
    assert not Predicate.of(field("s") == "nan", SCHEMA).names_nan


@pytest.mark.parametrize(
    ("filters", "error", "message"),
    [
        (
            field("nope") > 1,
            SchemaMismatchError,
            "'nope', which does not exist. There are: x, xx, s, deep, f",
        ),
        (field("deep", "y") > 1, SchemaMismatchError, "the column 'deep.y', which does not exist"),
        (field("s") > 1, SchemaMismatchError, "does not fit the types of these columns: .* cast it"),
        (field("x") + 1, TypeError, r"is of type int64\. Compare it"),
        (field(1) > 1, ValueError, "names a column by its number"),
        ([("x", "?", 1)], ValueError, "which is not a list of"),
        ([], TypeError, "must be a pyarrow.compute expression"),
        (len, TypeError, r"use \.filter\(fn\)"),
    ],
)
def test_filters_that_cannot_be_computed(filters, error, message):
    with pytest.raises(error, match=message):
        Predicate.of(filters, SCHEMA)
