"""Hive partitions: folders as columns."""

import json
import pickle

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import midepoch as me
from midepoch.errors import CheckpointMismatchError, DataFormatError, SchemaMismatchError
from midepoch.sources.blocks import FileBlocks
from midepoch.testing import assert_elastic, assert_resumes
from worlds import FORMATS, ids, write_files

field = pc.field


def put(path, first, rows=4, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": range(first, first + rows), **more}), path, row_group_size=2)


@pytest.fixture
def root(tmp_path):
    for number, (year, place) in enumerate([(2023, "x"), (2023, "y z"), (2024, "x"), (2025, None)]):
        name = "__HIVE_DEFAULT_PARTITION__" if place is None else place.replace(" ", "%20")
        put(tmp_path / "data" / f"year={year}" / f"place={name}" / "a.parquet", 4 * number)
    return tmp_path / "data"


@pytest.fixture
def files_opened(monkeypatch):
    seen, true = set(), FileBlocks._reader
    monkeypatch.setattr(FileBlocks, "_reader", lambda self, file: (seen.add(file), true(self, file))[1])
    return seen


def test_folders_are_columns_with_types(root):
    dataset = me.read(root, partitioning="hive")
    assert dataset.schema == pa.schema([("id", "int64"), ("year", "int64"), ("place", "string")])
    rows = list(dataset)
    assert rows[5] == {"id": 5, "year": 2023, "place": "y z"}
    assert rows[-1] == {"id": 15, "year": 2025, "place": None}
    theirs = ds.dataset(root, partitioning=ds.HivePartitioning.discover()).to_table().to_pylist()
    assert rows == sorted(theirs, key=lambda row: row["id"])
    assert len(dataset) == 16


@pytest.mark.parametrize("filters", [field("year") == 2024, [("year", "==", 2024)]], ids=["expression", "list"])
def test_a_filter_on_a_key_says_how_folders_become_columns(root, filters):
    with pytest.raises(
        SchemaMismatchError, match=r"the column 'year'.*folder is named year=…: pass partitioning='hive'"
    ):
        me.read(root, filters=filters)
    with pytest.raises(SchemaMismatchError, match=r"the column 'month', which does not exist\. There are: id\.$"):
        me.read(root, filters=field("month") == 2)


@pytest.mark.parametrize("kinds", [FORMATS, ["orc"], ["jsonl"], ["csv"]])
def test_files_of_every_format_get_the_columns_of_their_folders(tmp_path, kinds):
    for year in (1, 2):
        write_files(tmp_path / "data" / f"year={year}", [20, 7, 9], kinds)
    dataset = me.read(tmp_path / "data", partitioning="hive")
    assert [(row["year"], row["id"]) for row in dataset] == [(year, number) for year in (1, 2) for number in range(36)]
    assert_resumes(dataset.shuffle(1, level="row"), every=30)
    only = me.read(tmp_path / "data", partitioning="hive", filters=(field("year") == 2) & (field("id") < 5))
    assert list(only.select_columns(["year", "id"])) == [{"year": 2, "id": number} for number in range(5)]


def test_partition_columns_alone_open_no_file(root, monkeypatch):
    dataset = me.read(root, partitioning="hive").select_columns(["place", "year"])
    monkeypatch.setattr("midepoch.index.build.FileIndex.open", None)
    assert [tuple(row.values()) for row in dataset][::4] == [("x", 2023), ("y z", 2023), ("x", 2024), (None, 2025)]
    assert (
        next(iter(me.read(root, partitioning="hive", columns=["year"]).shuffle(1).batch(16)))["year"].count(2023) == 8
    )


def test_filters_on_folders_open_only_the_files_in_them(root, files_opened):
    dataset = me.read(root, partitioning="hive", filters=(field("year") == 2023) & (field("place") != "x"))
    assert ids(dataset) == [4, 5, 6, 7]
    assert files_opened == {1}
    files_opened.clear()
    assert ids(me.read(root, partitioning="hive", filters=field("place").is_null())) == [12, 13, 14, 15]
    assert files_opened == {3}
    assert ids(me.read(root, partitioning="hive", filters=(field("year") > 2023) & (field("id") < 9))) == [8]
    assert ids(me.read(root, partitioning="hive", filters=[("year", "in", [2024, 2025])])) == list(range(8, 16))


def test_a_value_for_which_the_filter_cannot_be_computed_is_an_error_when_it_is_read(root):
    put(root / "year=0" / "place=x" / "a.parquet", 100)
    dataset = me.read(root, partitioning="hive", filters=pc.divide(pc.scalar(4047), field("year")) == 2)
    assert dataset._plan.pipeline.source.where.blocks.sum() == 6
    with pytest.raises(DataFormatError, match=r"row 0 of year=0/place=x/a\.parquet: divide by zero"):
        list(dataset)


def test_partitions_resume_exactly_and_can_be_pickled(root):
    dataset = me.read(root, partitioning="hive", filters=field("id") != 3).shuffle(1, window=5).lanes(3)
    assert_resumes(dataset)
    assert_elastic(dataset, [(2, 1), (1, 2)], steps=2)
    assert sorted(ids(pickle.loads(pickle.dumps(dataset)))) == [0, 1, 2, *range(4, 16)]


def test_a_state_names_the_partitioning(root):
    state = json.loads(json.dumps(me.read(root, partitioning="hive").state_dict()))
    me.read(root, partitioning="hive").load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match=r"read\(partitioning='hive'\)"):
        me.read(root).load_state_dict(state)


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (["1", "-2"], "int64", [1, -2]),
        (["01", "2"], "int64", [1, 2]),
        (["1", "b"], "string", ["1", "b"]),
        (["1", str(2**63)], "string", ["1", str(2**63)]),
        (["1", "__HIVE_DEFAULT_PARTITION__"], "int64", [1, None]),
        (["__HIVE_DEFAULT_PARTITION__"] * 2, "string", [None, None]),
        (["1.5", "2"], "string", ["1.5", "2"]),
        (["a=b", ""], "string", ["a=b", ""]),
        (["a%2Fb", "%C3%A9"], "string", ["a/b", "é"]),
        (["١", "2"], "string", ["١", "2"]),
    ],
)
def test_types_and_values(tmp_path, texts, kind, values):
    for number, value in enumerate(texts):
        put(tmp_path / "data" / f"p{number}" / f"key%20one={value}" / "a.parquet", number, rows=1)
    dataset = me.read(tmp_path / "data", partitioning="hive")
    assert str(dataset.schema.field("key one").type) == kind
    assert [row["key one"] for row in dataset] == values


def test_the_value_of_the_folder_replaces_that_of_the_file(tmp_path):
    put(tmp_path / "data" / "year=1" / "a.parquet", 0, year=["old"] * 4)
    put(tmp_path / "data" / "year=2" / "a.parquet", 4)
    dataset = me.read(tmp_path / "data" / "year=1", columns=["year"])
    assert next(iter(dataset)) == {"year": "old"}
    dataset = me.read(tmp_path / "data", columns=["year", "id"], partitioning="hive", filters=field("year") == 1)
    assert next(iter(dataset)) == {"year": 1, "id": 0}
    put(tmp_path / "data" / "year=2" / "a.parquet", 4, year=["old"] * 4)
    assert list(me.read(tmp_path / "data", partitioning="hive"))[4] == {"id": 4, "year": 2}


def test_folders_that_make_no_columns_are_refused(tmp_path, root):
    with pytest.raises(ValueError, match="partitioning is 'spark'"):
        me.read(root, partitioning="spark")
    with pytest.raises(SchemaMismatchError, match="no folder with files is named key=value"):
        me.read(root / "year=2024" / "place=x", partitioning="hive")
    with pytest.raises(SchemaMismatchError, match="There are: id, year, place"):
        me.read(root, partitioning="hive", filters=field("nope") == 1)
    put(root / "year=7" / "a.parquet", 0)
    with pytest.raises(SchemaMismatchError, match=r"year=7/a\.parquet lies in no folder place=…"):
        me.read(root, partitioning="hive")
    put(tmp_path / "twice" / "a=1" / "a=2" / "a.parquet", 0)
    with pytest.raises(SchemaMismatchError, match="lies in two folders a=…"):
        me.read(tmp_path / "twice", partitioning="hive")
