"""Files of one dataset whose schemas drift are read as one table."""

import pickle

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc
import pytest

import midepoch as me
from worlds import SUFFIXES, write

TABLES = [
    pa.table(
        {"id": pa.array(range(10), pa.int32()), "text": pa.array(map("a{}".format, range(10)), pa.large_string())}
    ),
    pa.table({"id": pa.array(range(10, 17), pa.int64()), "text": [f"b{n}" for n in range(7)], "score": [0.5] * 7}),
    pa.table(
        {
            "score": pa.array([None, 1.5, 2.5], pa.float32()),
            "id": pa.array([17, 18, 19], pa.uint8()),
            "text": pa.nulls(3),
            "tags": [["x"], None, []],
        }
    ),
]
TYPES = {"id": pa.int64(), "text": pa.large_string(), "score": pa.float64(), "tags": pa.list_(pa.string())}


def expected(names):
    whole = pa.concat_tables(TABLES, promote_options="permissive").select(names)
    return whole.to_pylist()


@pytest.fixture(params=["parquet", "file"])
def folder(tmp_path, request):
    for number, table in enumerate(TABLES):
        write(tmp_path / f"{number}{SUFFIXES[request.param]}", table, request.param, 4)
    return tmp_path


def test_E7_the_union_of_columns_with_promoted_types(folder):
    dataset = me.read(folder, schema="union")
    assert dict(zip(dataset.schema.names, dataset.schema.types, strict=True)) == TYPES
    assert list(dataset) == expected(list(TYPES))
    arrow = pa.Table.from_batches(list(dataset.with_format("arrow").batch(7)))
    assert arrow.schema.types == list(TYPES.values())
    assert arrow.to_pylist() == expected(list(TYPES))
    some = me.read(folder, schema="union", columns=["tags", "id"])
    assert list(some) == expected(["tags", "id"])
    assert list(me.read(folder, schema="union", columns=["tags"])) == expected(["tags"])
    assert list(pickle.loads(pickle.dumps(dataset))) == expected(list(TYPES))


def test_E7_promotions_need_no_option_where_all_files_have_the_columns(folder):
    dataset = me.read(folder, columns=["id", "text"])
    assert list(dataset) == expected(["id", "text"])
    with pytest.raises(me.SchemaMismatchError, match=r"that 0\.\w+ does not have\. Pass schema='union' to read nulls"):
        me.read(folder)


@pytest.mark.parametrize("level", ["file", "block", "row"])
def test_E7_drifting_files_shuffle_and_resume(folder, level):
    dataset = me.read(folder, schema="union").shuffle(seed=3, level=level, window=5)
    assert sorted(row["id"] for row in dataset) == list(range(20))
    me.testing.assert_resumes(dataset)
    me.testing.assert_elastic(dataset.lanes(3), [(2, 1), (1, 1), (3, 2)])


def test_E7_filters_see_promoted_values_and_nulls(folder):
    for keep, wanted in (
        (pc.field("id") > 12, lambda row: row["id"] > 12),
        (pc.field("score") > 1, lambda row: (row["score"] or 0) > 1),
        (pc.field("tags").is_null(), lambda row: row["tags"] is None),
        ((pc.field("score").is_null()) & (pc.field("id") < 18), lambda row: row["score"] is None and row["id"] < 18),
    ):
        found = list(me.read(folder, schema="union", filters=keep))
        assert found == [row for row in expected(list(TYPES)) if wanted(row)]


def test_E7_a_given_schema(folder):
    given = pa.schema([("text", pa.large_string()), ("id", pa.int64()), ("new", pa.int8())])
    rows = [{**row, "new": None} for row in expected(["text", "id"])]
    dataset = me.read(folder, schema=given)
    assert dataset.schema == given
    assert list(dataset) == rows
    assert list(me.read(folder, schema=given, columns=["new", "id"])) == [
        {"new": None, "id": row["id"]} for row in rows
    ]
    with pytest.raises(me.SchemaMismatchError, match=r"The column 'id' is int64 in 1\.\w+, which does not fit int32"):
        me.read(folder, schema=pa.schema([("id", pa.int32())]))
    with pytest.raises(me.SchemaMismatchError, match=r"The schema has no column 'y'\. It has: text, id, new"):
        me.read(folder, schema=given, columns=["y"])
    with pytest.raises(ValueError, match=r"schema is 'joined'; it can be 'union', a pyarrow\.Schema, or left out"):
        me.read(folder, schema="joined")


def test_E7_in_a_store_in_orc_and_in_partitions(folder, tmp_path_factory):
    memory = fsspec.filesystem("memory")
    for path in folder.iterdir():
        memory.pipe(f"/drift-{folder.name}/{path.name}", path.read_bytes())
    assert list(me.read(f"memory://drift-{folder.name}", schema="union")) == expected(list(TYPES))
    other = tmp_path_factory.mktemp("orc")
    for number, table in enumerate(TABLES):
        if number < 2:
            write(other / f"{number}.orc", table, "orc", 4)
    assert [row["score"] for row in me.read(other, schema="union")] == [None] * 10 + [0.5] * 7
    hive = tmp_path_factory.mktemp("hive")
    for number, path in enumerate(sorted(folder.iterdir())):
        (hive / f"part={number}").mkdir()
        (hive / f"part={number}" / path.name).write_bytes(path.read_bytes())
    rows = list(me.read(hive, schema="union", partitioning="hive"))
    assert [row.pop("part") for row in rows] == [0] * 10 + [1] * 7 + [2] * 3
    assert rows == expected(list(TYPES))
