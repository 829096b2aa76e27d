"""One schema for all files: which differences are bridged, and what an error says of the others."""

from itertools import permutations

import pyarrow as pa
import pytest

import midepoch as me
from files import KINDS, values, write, write_numbers
from midepoch.errors import NoDataError, SchemaMismatchError
from midepoch.formats import EMPTY, Scan
from midepoch.index.index import IndexView, index_bytes
from midepoch.index.schemas import FileSchema, common_schema, promoted, schema_of
from midepoch.storage.listing import Listing
from midepoch.storage.local import FileStamp


def fixed(name="a.parquet", metadata=None, **types):
    return FileSchema(name, "fixed", pa.schema(list(types.items()), metadata))


def by_values(name="a.jsonl", **types):
    return FileSchema(name, "values", pa.schema(list(types.items())))


def text(name="a.csv", **types):
    return FileSchema(name, "text", pa.schema(list(types.items())))


def test_metadata_is_that_of_the_first_file():
    schemas = [fixed(metadata={"a": "1"}, x="int64"), fixed("b.parquet", metadata={"a": "2"}, x="int64")]
    assert common_schema(schemas, None).metadata == {b"a": b"1"}


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        (by_values(x="int64"), by_values("b.jsonl", x="double"), "double"),
        (by_values(x="null"), by_values("b.jsonl", x="string"), "string"),
        (text(x="int64"), text("b.csv", x="double"), "double"),
        (text(x="int64"), text("b.csv", x="string"), "string"),
        (text(x="bool"), text("b.csv", x="int64"), "string"),
        (fixed(x="int64"), fixed("b.parquet", x="int32"), "int64"),
        (fixed(x="null"), fixed("b.parquet", x="string"), "string"),
        (fixed(x="double"), text("b.csv", x="int64"), "double"),
        (fixed(x="string"), text("b.csv", x="int64"), "string"),
        (fixed(x="double"), by_values("b.jsonl", x="int64"), "double"),
        (fixed(x="int32"), by_values("b.jsonl", x="null"), "int32"),
        (by_values(x="string"), text("b.csv", x="int64"), "string"),
    ],
)
def test_types_that_one_type_can_hold(one, other, common):
    for schemas in permutations([one, other]):
        assert str(common_schema(schemas, None).field("x").type) == common


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (fixed(x="int64"), fixed("b.parquet", x="uint64")),
        (fixed(x="int64"), fixed("b.parquet", x="string")),
        (fixed(x="int64"), text("b.csv", x="double")),
        (fixed(x="int64"), text("b.csv", x="string")),
        (fixed(x="int64"), by_values("b.jsonl", x="double")),
        (by_values(x="int64"), by_values("b.jsonl", x="string")),
        (by_values(x="int64"), text("b.csv", x="string")),
    ],
)
def test_types_that_no_type_holds_name_both_files_and_the_remedy(one, other):
    for schemas in permutations([one, other]):
        with pytest.raises(SchemaMismatchError, match=r"The column 'x' is .* in .* and .* in .*columns=") as caught:
            common_schema(schemas, None)
        for schema in schemas:
            assert f"{schema.schema.field('x').type} in {schema.name}" in str(caught.value)


def test_the_order_of_files_does_not_decide_the_type():
    schemas = [fixed(x="int32"), by_values("b.jsonl", x="int64"), fixed("c.parquet", y="int8", x="int64")]
    for one in permutations(schemas):
        found = common_schema(one, None, union=True)
        assert found.field("x").type == pa.int64()
        assert found.names == list(dict.fromkeys(name for schema in one for name in schema.schema.names))


def test_the_error_names_the_file_that_decided_the_type():
    schemas = [by_values(x="int64"), by_values("b.jsonl", x="double"), by_values("c.jsonl", x="string")]
    with pytest.raises(SchemaMismatchError, match=r"double in b\.jsonl and string in c\.jsonl"):
        common_schema(schemas, None)


@pytest.mark.parametrize("make", [fixed, text])
def test_a_missing_column_is_named_with_its_type_and_both_files(make):
    schemas = [make("a", x="int64"), make("b", x="int64", y="double")]
    for one in permutations(schemas):
        with pytest.raises(SchemaMismatchError, match=r"b has a column 'y' \(double\) that a does not have.*columns="):
            common_schema(one, None)
    with pytest.raises(SchemaMismatchError, match=r"a has no column 'y'\. It has: x"):
        common_schema(schemas, ["y"])


def test_a_file_whose_values_tell_its_columns_may_lack_some():
    schemas = [by_values(x="int64"), by_values("b.jsonl", y="string"), fixed(x="int64", y="string")]
    assert common_schema(schemas, None).names == ["x", "y"]
    assert common_schema(schemas, ["y"]).names == ["y"]


def test_a_column_that_no_file_has_is_an_error_even_if_any_may_lack_it():
    with pytest.raises(SchemaMismatchError, match=r"a\.jsonl has no column 'z'\. It has: x"):
        common_schema([by_values(x="int64"), by_values("b.jsonl", y="string")], ["z"])


def test_a_column_that_a_file_has_twice_is_refused():
    twice = FileSchema("a.parquet", "fixed", pa.schema([("x", "int64"), ("x", "string"), ("y", "bool")]))
    with pytest.raises(SchemaMismatchError, match=r"a\.parquet has the column 'x' more than once"):
        common_schema([twice], ["y"])


def view_of(*scans):
    names = tuple(f"{number}.file" for number in range(len(scans)))
    listing = Listing("", "/data", names, tuple(FileStamp(3, 0) for _ in scans))
    return IndexView("/data", index_bytes(listing, scans))


def test_files_of_one_schema_and_two_formats_are_told_apart():
    """Types that a CSV file has are a guess, and those of Parquet are not."""
    integers, strings = pa.schema([("x", "int64")]), pa.schema([("x", "string")])
    view = view_of(Scan("csv", integers, []), Scan("csv", strings, []))
    assert schema_of(view, None) == strings
    view = view_of(Scan("csv", integers, []), Scan("parquet", integers, []), Scan("csv", strings, []))
    with pytest.raises(SchemaMismatchError, match=r"int64 in .\.file and string in 2\.file"):
        schema_of(view, None)


def test_a_source_of_empty_files_is_an_error_that_names_one():
    with pytest.raises(NoDataError, match=r"/data/0\.file is empty \(3 bytes\), and so is every other file"):
        schema_of(view_of(Scan(EMPTY, None, ()), Scan(EMPTY, None, ())), None)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_picks_in_the_order_asked_for(tmp_path, kind):
    batch = pa.record_batch({"a": pa.array([1]), "b": pa.array(["x"]), "c": pa.array([0.5])})
    path = write(tmp_path / "a.data", batch, kind)
    dataset = me.read(path, columns=["c", "a"])
    assert [list(row.items()) for row in dataset] == [[("c", 0.5), ("a", 1)]]
    assert dataset.schema.names == ["c", "a"]


def test_columns_as_one_string_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"pass \['x'\]"):
        me.read(write_numbers(tmp_path / "a.arrow", 0, 4), columns="x")


@pytest.mark.parametrize("kind", KINDS)
def test_columns_may_come_in_another_order(tmp_path, kind):
    write(tmp_path / "a.arrow", pa.record_batch({"x": pa.array([1]), "y": pa.array(["a"])}), kind)
    write(tmp_path / "b.arrow", pa.record_batch({"y": pa.array(["b"]), "x": pa.array([2])}), kind)
    rows = [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]
    assert list(map(repr, me.read(tmp_path))) == list(map(repr, rows))
    (batch,) = me.read(tmp_path).batch(2)
    assert batch == {"x": [1, 2], "y": ["a", "b"]}


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_differ_in_nullability_and_metadata_are_read_together(tmp_path, kind):
    strict = pa.schema([pa.field("x", pa.int64(), nullable=False, metadata={"a": "b"})], metadata={"c": "d"})
    write(tmp_path / "a.arrow", pa.record_batch([pa.array([1, 2, 3])], schema=strict), kind)
    write(tmp_path / "b.arrow", pa.record_batch({"x": pa.array([4, None])}), kind)
    assert values(me.read(tmp_path)) == [1, 2, 3, 4, None]
    assert [batch["x"] for batch in me.read(tmp_path).batch(4)] == [[1, 2, 3, 4], [None]]
    assert {row["x"] for row in me.read(tmp_path).shuffle(seed=1)} == {1, 2, 3, 4, None}
    (batch,) = me.read(tmp_path).with_format("arrow").batch(5)
    assert batch["x"].to_pylist() == [1, 2, 3, 4, None]


SIZED = pa.list_(pa.int8(), 2)
PAIRS = [
    (pa.null(), pa.list_(pa.string()), pa.list_(pa.string())),
    (pa.int8(), pa.int64(), pa.int64()),
    (pa.uint8(), pa.uint32(), pa.uint32()),
    (pa.int8(), pa.uint8(), pa.int16()),
    (pa.int64(), pa.uint32(), pa.int64()),
    (pa.int64(), pa.uint64(), None),
    (pa.float16(), pa.float64(), pa.float64()),
    (pa.float32(), pa.float64(), pa.float64()),
    (pa.int32(), pa.float64(), None),
    (pa.string(), pa.large_string(), pa.large_string()),
    (pa.string(), pa.string_view(), pa.string()),
    (pa.dictionary(pa.int8(), pa.string()), pa.string(), pa.string()),
    (pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string()), pa.large_string()),
    (pa.dictionary(pa.int8(), pa.int32()), pa.int64(), pa.int64()),
    (pa.binary(), pa.large_binary(), pa.large_binary()),
    (pa.string(), pa.binary(), None),
    (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
    (pa.list_(pa.int32()), pa.large_list(pa.int16()), pa.large_list(pa.int32())),
    (SIZED, pa.list_(pa.int16(), 2), pa.list_(pa.int16(), 2)),
    (SIZED, pa.list_(pa.int8(), 3), None),
    (SIZED, pa.list_(pa.int8()), None),
    (pa.list_(pa.int32()), pa.list_(pa.string()), None),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int32())])),
    (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())]), None),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.string())]), None),
    (pa.timestamp("s"), pa.timestamp("ms"), None),
    (pa.bool_(), pa.int8(), None),
]


@pytest.mark.parametrize(("one", "other", "both"), PAIRS, ids=str)
def test_both_orders_give_the_same_type(one, other, both):
    assert promoted(one, other) == promoted(other, one) == both
    assert promoted(one, one) == one
    if both is not None:
        assert promoted(one, both) == promoted(both, other) == both
