"""Iceberg tables whose data files do not have the columns of the table: rows are those that pyiceberg reads."""

import json
import os
import re
from decimal import Decimal
from itertools import islice
from uuid import UUID

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, example, given, settings

import midepoch as me

pytest.importorskip("pyiceberg")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyiceberg"),
    pytest.mark.filterwarnings("ignore:Delete operation did not match:UserWarning"),
]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory):
    from pyiceberg.catalog import load_catalog

    folder = tmp_path_factory.mktemp("iceberg")
    made = load_catalog("tests", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/house")
    made.create_namespace("db")
    yield made
    made.close()


def new_table(catalog, fields, *, partition_by=None, **properties):
    """A table of (name, type) columns with the ids 1, 2, …"""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import NestedField

    columns = [NestedField(number, name, kind, False) for number, (name, kind) in enumerate(fields.items(), 1)]
    source_ids = [number for number, name in enumerate(fields, 1) if name == partition_by]
    spec = [PartitionField(number, 1000, IdentityTransform(), "part") for number in source_ids]
    name = f"db.t{len(catalog.list_tables('db'))}"
    return catalog.create_table(name, Schema(*columns), partition_spec=PartitionSpec(*spec), properties=properties)


def names(**ids):
    return {"schema.name-mapping.default": json.dumps([{"field-id": ids[name], "names": [name]} for name in ids])}


def add_file(table, url, rows, *, partition=(), content="DATA", equality=None):
    """Let the table have a file, as other writers leave it."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    path = url.removeprefix("file://").removeprefix("file:")
    pq.write_table(rows, path)
    unknown = dict.fromkeys(("key_metadata", "split_offsets", "sort_order_id"))
    counts = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
    file = DataFile.from_args(
        content=DataFileContent[content],
        file_path=url,
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=len(rows),
        file_size_in_bytes=os.path.getsize(path),
        spec_id=table.spec().spec_id,
        equality_ids=equality,
        **unknown,
        **{name: {} for name in counts},
    )
    with table.transaction() as change, change.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(file)


def opened(table, **options):
    return me.IcebergDataset(table, rank=0, num_ranks=1, **options)


def scanned(table, **options):
    return sorted(repr(plain(row)) for row in table.scan(**options).to_arrow().to_pylist())


def read(table, **options):
    return sorted(repr(plain(row)) for row in opened(table, **options))


def plain(row):
    return {name: value.bytes if isinstance(value, UUID) else value for name, value in row.items()}


def test_columns_of_partitions_that_files_lack_have_the_value_of_the_partition(catalog, tmp_path):
    from pyiceberg.types import LongType, StringType

    table = new_table(catalog, {"id": LongType(), "p": StringType()}, partition_by="p", **names(id=1, p=2))
    add_file(table, f"file://{tmp_path}/0", pa.table({"id": [1, 2]}), partition=("a",))
    add_file(table, f"file://{tmp_path}/1", pa.table({"id": [3]}), partition=("b",))
    add_file(table, f"file://{tmp_path}/2", pa.table({"id": [4]}), partition=(None,))
    assert [row["p"] for row in opened(table)] == ["a", "a", "b", None]
    for wanted in ("p == 'a'", "p == 'b'", "p is null", "p is not null and id > 1"):
        assert read(table, scan_filter=wanted) == scanned(table, row_filter=wanted)
    with table.update_schema() as change:
        change.rename_column("p", "q")
    assert read(table) == scanned(table)
    assert read(table, columns=["q"]) == scanned(table, selected_fields=("q",))


KINDS = {
    "int": 5,
    "long": 5,
    "date": 18_000,
    "timestamp": 10**15,
    "timestamptz": 10**15,
    "time": 10**6,
    "uuid": UUID(int=7),
    "fixed[3]": b"abc",
    "binary": b"ab",
    "decimal(9, 2)": Decimal("1.25"),
    "boolean": True,
    "float": 1.5,
    "double": 1.5,
    "string": "x",
}


def test_values_of_partitions_have_every_type(catalog, tmp_path):
    from pyiceberg.schema import Schema

    for number, (kind, value) in enumerate(KINDS.items()):
        field = {"id": 2, "name": "p", "type": kind, "required": False}
        made = Schema.model_validate({"type": "struct", "fields": [field]}).fields[0].field_type
        table = new_table(catalog, {"id": made, "p": made}, partition_by="p", **names(id=1, p=2))
        add_file(table, f"file://{tmp_path}/{number}", pa.table({"id": pa.nulls(1, pa.int64())}), partition=(value,))
        assert read(table, columns=["p"]) == scanned(table, selected_fields=("p",)) != [repr({"p": None})], kind


def test_columns_that_files_lack_have_their_default_values(catalog):
    from pyiceberg.types import LongType, NestedField, StringType, StructType

    inner = StructType(NestedField(3, "a", LongType(), False))
    table = new_table(catalog, {"id": LongType(), "s": inner})
    table.append(pa.table({"id": [1, 2, 3], "s": [{"a": 1}, None, {"a": None}]}))
    with table.update_schema() as change:
        change.add_column("x", LongType(), default_value=7, required=True)
        change.add_column(("s", "y"), StringType(), default_value="in")
    assert read(table) == scanned(table)
    assert next(iter(opened(table))) == {"id": 1, "s": {"a": 1, "y": "in"}, "x": 7}
    for wanted in ("x == 7", "x is null"):
        assert read(table, scan_filter=wanted) == scanned(table, row_filter=wanted)
    with table.update_schema(allow_incompatible_changes=True) as change:
        change.add_column("r", LongType(), required=True)
    with pytest.raises(me.DataFormatError, match=r"it lacks 'r', which is never null in the table"):
        read(table)
    assert read(table, columns=["id", "x"]) == scanned(table, selected_fields=("id", "x"))


def test_files_without_ids_are_read_by_the_names_that_the_table_maps(catalog, tmp_path):
    from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

    def struct(first):
        return StructType(NestedField(first, "a", LongType(), False), NestedField(first + 1, "b", LongType(), False))

    kinds = {
        "id": LongType(),
        "s": struct(10),
        "l": ListType(20, struct(21), False),
        "m": MapType(30, StringType(), 31, struct(32), False),
    }
    table = new_table(catalog, kinds)
    pair = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    columns = {
        "id": [1, 2],
        "s": pa.array([{"a": 1, "b": 2}, None], pair),
        "l": pa.array([[{"a": 3, "b": 4}], []], pa.list_(pair)),
        "m": pa.array([[("k", {"a": 5, "b": 6})], []], pa.map_(pa.string(), pair)),
    }
    pq.write_table(pa.table(columns), tmp_path / "0.parquet")
    table.add_files([f"file://{tmp_path}/0.parquet"])
    expected = {"id": 1, "s": {"a": 1, "b": 2}, "l": [{"a": 3, "b": 4}], "m": [("k", {"a": 5, "b": 6})]}
    assert next(iter(opened(table))) == expected
    for path in (("s", "a"), ("l", "element", "a"), ("m", "value", "b"), "id"):
        with table.update_schema() as change:
            change.rename_column(path, "z")
        assert read(table) == scanned(table), path
    assert next(iter(opened(table)))["l"] == [{"z": 3, "b": 4}]
    with table.transaction() as change:
        change.remove_properties("schema.name-mapping.default")
    with pytest.raises(me.DataFormatError, match=r"0\.parquet has columns without ids.*schema\.name-mapping\.default"):
        opened(table)


def test_filters_name_fields_of_structs(catalog):
    from pyiceberg.types import LongType, NestedField, StructType

    table = new_table(catalog, {"x": LongType(), "s": StructType(NestedField(3, "x", LongType(), False))})
    table.append(pa.table({"x": [1, 2, 3, 4], "s": [{"x": 4}, {"x": 3}, {"x": 2}, None]}))
    for wanted in ("s.x > 2", "x > 2", "s.x is null", "s.x == 2 and x == 3"):
        assert read(table, scan_filter=wanted) == scanned(table, row_filter=wanted)
    assert [row["x"] for row in opened(table, scan_filter="s.x > 2")] == [1, 2]


@pytest.mark.parametrize("scheme", ["file://", "file:", ""])
def test_names_of_files_may_have_any_characters(catalog, tmp_path, scheme):
    from pyiceberg.types import LongType

    table = new_table(catalog, {"id": LongType()}, **names(id=1))
    pq.write_table(pa.table({"id": [99]}), tmp_path / "x y.parquet")
    pq.write_table(pa.table({"id": [99]}), tmp_path / "a1.parquet")
    for number, name in enumerate(["x%20y.parquet", "a[1].parquet", "a*.parquet", "ü.parquet", "b c.parquet", "none"]):
        add_file(table, f"{scheme}{tmp_path}/{name}", pa.table({"id": [number]}))
    assert sorted(row["id"] for row in opened(table)) == list(range(6))
    assert read(table) == scanned(table)


def test_types_of_files_become_those_of_the_table_without_loss(catalog, tmp_path):
    from pyiceberg.types import DoubleType, FloatType, ListType, LongType, StringType, TimestampType, TimestamptzType

    times = [1_234_567_891, -1_234_567_891, None]
    kept = [
        (LongType(), pa.array([1, -2], pa.int8())),
        (LongType(), pa.array([1, 2], pa.uint64())),
        (DoubleType(), pa.array([1.5, None], pa.float16())),
        (StringType(), pa.array(["a", "b", None]).dictionary_encode()),
        (TimestampType(), pa.array(times, pa.timestamp("ns"))),
        (TimestampType(), pa.array(times, pa.timestamp("us", "UTC"))),
        (TimestamptzType(), pa.array(times, pa.timestamp("ns", "UTC"))),
        (TimestamptzType(), pa.array(times, pa.timestamp("ms"))),
    ]
    lost = [
        (FloatType(), pa.array([1.1])),
        (LongType(), pa.array([1.0])),
        (StringType(), pa.array([1])),
        (LongType(), pa.array([1 << 63], pa.uint64())),
    ]
    for number, (kind, values) in enumerate([*kept, *lost]):
        table = new_table(catalog, {"x": kind}, **names(x=1))
        add_file(table, f"file://{tmp_path}/{number}", pa.table({"x": values}))
        if number < len(kept):
            assert read(table) == scanned(table), kind
        else:
            with pytest.raises(me.DataFormatError, match=f"/{number}: 'x' is {values.type}, which does not become"):
                read(table)
    mapping = [{"field-id": 1, "names": ["x"], "fields": [{"field-id": 2, "names": ["element"]}]}]
    properties = {"schema.name-mapping.default": json.dumps(mapping)}
    table = new_table(catalog, {"x": ListType(2, LongType(), False)}, **properties)
    add_file(table, f"file://{tmp_path}/list", pa.table({"x": pa.array([[1, 2], None], pa.list_(pa.int32(), 2))}))
    assert [row["x"] for row in opened(table)] == [[1, 2], None]


def test_equality_deletes_are_refused(catalog, tmp_path):
    from pyiceberg.types import LongType

    table = new_table(catalog, {"id": LongType()}, **names(id=1))
    add_file(table, f"file://{tmp_path}/0", pa.table({"id": [1, 2]}))
    gone = pa.table({"id": [2]})
    add_file(table, f"file://{tmp_path}/1", gone, content="EQUALITY_DELETES", equality=[1])
    with pytest.raises(me.DataFormatError, match=r"equality deletes.*compact the table"):
        opened(table)


# A table under random changes. Each change is a function of the table and of numbers that hypothesis draws.


def _fields(table):
    """The paths of columns and of fields inside of them, with their types."""
    from pyiceberg.types import ListType, MapType, StructType

    def walk(struct, before):
        for field in struct.fields:
            path, kind = (*before, field.name), field.field_type
            yield path, field
            if isinstance(kind, ListType):
                path, kind = (*path, "element"), kind.element_type
            elif isinstance(kind, MapType):
                path, kind = (*path, "value"), kind.value_type
            if isinstance(kind, StructType):
                yield from walk(kind, path)

    return list(walk(table.schema().as_struct(), ()))


def _siblings(table, path):
    return [other for other, _ in _fields(table) if other[:-1] == path[:-1]]


def _value(kind, number):
    from pyiceberg.types import ListType, MapType, StringType, StructType

    if isinstance(kind, StructType):
        return {field.name: _value(field.field_type, number + n) for n, field in enumerate(kind.fields)}
    if isinstance(kind, ListType):
        return [_value(kind.element_type, number + n) for n in range(number % 3)]
    if isinstance(kind, MapType):
        return [(key, _value(kind.value_type, number)) for key in "xy"[: number % 3]]
    if number % 7 == 0:
        return None
    return f"text {number % 3}" if isinstance(kind, StringType) else number % 50


def append(table, number, path):
    fields = table.schema().fields
    rows = [{one.name: _value(one.field_type, number + 11 * n) for one in fields} for n in range(1 + number % 6)]
    table.append(pa.Table.from_pylist(rows, table.schema().as_arrow()))


def add(table, number, path):
    from pyiceberg.types import LongType, StringType

    name = ("new", "a", "b", "id")[number % 4]
    if (*path[:-1], name) in _siblings(table, path):
        return
    with table.update_schema() as change:
        if number % 3:
            change.add_column((*path[:-1], name), LongType(), default_value=number if number % 2 else None)
        else:
            change.add_column((*path[:-1], name), StringType())


def drop(table, number, path):
    used = {field.source_id for spec in table.specs().values() for field in spec.fields}
    if len(_siblings(table, path)) > 1 and dict(_fields(table))[path].field_id not in used:
        with table.update_schema(allow_incompatible_changes=True) as change:
            change.delete_column(path)


def rename(table, number, path):
    name = ("other", "a", "b", "id")[number % 4]
    if (*path[:-1], name) not in _siblings(table, path):
        with table.update_schema() as change:
            change.rename_column(path, name)


def swap(table, number, path):
    others = [other for other in _siblings(table, path) if other != path]
    if others:
        other = others[number % len(others)]
        for old, new in ((path, "between"), (other, path[-1]), ((*path[:-1], "between"), other[-1])):
            with table.update_schema() as change:
                change.rename_column(old, new)


def widen(table, number, path):
    from pyiceberg.types import IntegerType, LongType

    if isinstance(dict(_fields(table))[path].field_type, IntegerType):
        with table.update_schema() as change:
            change.update_column(path, field_type=LongType())


def move(table, number, path):
    with table.update_schema() as change:
        change.move_first(path)


def partition(table, number, path):
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import IntegerType, LongType, StringType

    with table.update_spec() as change:
        if table.spec().fields:
            change.remove_field(table.spec().fields[0].name)
            return
        kinds = (IntegerType, LongType, StringType)
        tops = [field for field in table.schema().fields if isinstance(field.field_type, kinds)]
        if tops:
            change.add_field(tops[number % len(tops)].name, IdentityTransform(), f"part{len(table.specs())}_{number}")


def delete_rows(table, number, path):
    tasks = [task for task in table.scan().plan_files() if task.file.spec_id == table.spec().spec_id]
    if tasks and not table.spec().fields:
        file = tasks[number % len(tasks)].file
        where = f"{table.location()}/deletes-{number}-{len(table.snapshots())}"
        positions = pa.array([number % file.record_count], pa.int64())
        add_file(table, where, pa.table({"file_path": [file.file_path], "pos": positions}), content="POSITION_DELETES")


def changing_table(catalog):
    """A table with some rows and nested columns."""
    from pyiceberg.types import IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType

    def struct(first):
        pair = (NestedField(first, "a", IntegerType(), False), NestedField(first + 1, "b", IntegerType(), False))
        return StructType(*pair)

    kinds = {
        "id": LongType(),
        "n": IntegerType(),
        "p": struct(10),
        "l": ListType(20, struct(21), False),
        "m": MapType(30, StringType(), 31, struct(32), False),
        "s": StringType(),
    }
    table = new_table(catalog, kinds, **{"write.parquet.row-group-limit": "3"})
    append(table, 5, ())
    return table


def apply(table, changes):
    for change, number in changes:
        paths = [path for path, _ in _fields(table)]
        change(table, number, paths[number % len(paths)])


unshrunk = settings(max_examples=20, phases=(Phase.explicit, Phase.reuse, Phase.generate))
"""A failure is as clear without the minutes that it takes to find a smaller one."""
CHANGES = [append, append, add, drop, rename, swap, widen, move, partition, delete_rows]
EVERY_CHANGE = [(change, number) for change in CHANGES for number in (4, 15, 26)]
LISTS_OF_CHANGES = st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 10**6)), max_size=6)


@unshrunk
@given(
    changes=st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 10**6)), min_size=3, max_size=10),
    cut=st.integers(0, 10**6),
    shuffle=st.booleans(),
)
@example(changes=EVERY_CHANGE, cut=7, shuffle=False)
def test_E7_a_table_under_random_changes_is_read_as_pyiceberg_reads_it(catalog, changes, cut, shuffle):
    table = changing_table(catalog)
    apply(table, changes)
    earlier = table.snapshots()[cut % len(table.snapshots())].snapshot_id
    assert read(table, snapshot_id=earlier) == scanned(table, snapshot_id=earlier)
    whole = list(opened(table, shuffle=shuffle))
    assert sorted(map(repr, whole)) == scanned(table)
    first = opened(table, shuffle=shuffle)
    got = list(islice(first, cut % len(whole)))
    again = opened(table, shuffle=shuffle)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert got + list(again) == whole


@unshrunk
@given(earlier=LISTS_OF_CHANGES, later=LISTS_OF_CHANGES, cut=st.integers(0, 10**6), shuffle=st.booleans())
@example(earlier=EVERY_CHANGE[::2], later=EVERY_CHANGE[1::2], cut=5, shuffle=True)
def test_E7_a_checkpoint_resumes_whatever_became_of_the_table(catalog, earlier, later, cut, shuffle):
    table = changing_table(catalog)
    apply(table, earlier)
    whole = list(opened(table, shuffle=shuffle))
    first = opened(table, shuffle=shuffle)
    got = list(islice(first, cut % len(whole)))
    state = json.loads(json.dumps(first.state_dict()))
    apply(table, later)
    again = opened(table, shuffle=shuffle)
    try:
        again.load_state_dict(state)
    except me.CheckpointMismatchError as error:
        named = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", str(error))}
        again = opened(table, shuffle=shuffle, **named)
        again.load_state_dict(state)
    assert got + list(again) == whole
