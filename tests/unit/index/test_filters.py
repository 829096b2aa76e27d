"""Filters as expressions: needed columns, masks, descriptions."""

import datetime as dt
import math
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from midepoch.errors import SchemaMismatchError
from midepoch.index import filters
from midepoch.index.build import open_index
from midepoch.index.filters import SHOWN_CHARACTERS, Predicate, Where
from midepoch.index.schemas import HiveIndex

field = pc.field
SCHEMA = pa.schema(
    [("x", "int64"), ("xx", "int64"), ("s", "string"), ("deep", pa.struct([("x", "int64")])), ("f", "double")]
)


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


@pytest.fixture
def files(tmp_path):
    """Two folders, each with a file of three row groups of ten rows."""
    for year in (1, 2):
        folder = tmp_path / "data" / f"year={year}"
        folder.mkdir(parents=True)
        table = pa.table({"x": range(30 * year, 30 * year + 30), "f": [math.nan] * 30})
        pq.write_table(table, folder / "a.parquet", row_group_size=10)
    return tmp_path / "data"


def blocks(index, expression):
    return np.flatnonzero(Where.of(index, expression).blocks).tolist()


def test_many_files_are_decided_in_several_batches(files, kept, monkeypatch):
    monkeypatch.setattr(filters, "FILES_AT_ONCE", 1)
    assert blocks(open_index(files, index_dir=kept), field("x").isin([31, 89])) == [0, 5]


def test_a_decision_is_saved_beside_the_index_for_each_filter_and_partitioning(files, kept, monkeypatch):
    index = open_index(files, index_dir=kept)
    first = blocks(index, field("x") < 45)
    assert len(list(kept.glob("*.kept"))) == 1
    blocks(index, field("x") < 46)
    assert len(list(kept.glob("*.kept"))) == 2
    blocks(HiveIndex(index), field("x") < 45)
    assert len(list(kept.glob("*.kept"))) == 3
    monkeypatch.setattr(filters, "_decide", lambda *_: pytest.fail("decided again"))
    assert blocks(index, field("x") < 45) == first


def test_a_saved_decision_that_is_damaged_or_of_another_size_is_not_used(tmp_path):
    path = tmp_path / "a.kept"
    mask = np.array([True, False, True] * 5)
    filters._save(path, mask)
    assert filters._load(path, 15).tolist() == mask.tolist()
    assert filters._load(path, 17) is None
    assert filters._load(path, 7) is None
    content = path.read_bytes()
    for number in range(len(content)):
        path.write_bytes(content[:number] + bytes([content[number] ^ 1]) + content[number + 1 :])
        assert filters._load(path, 15) is None
    path.write_bytes(content[:-1])
    assert filters._load(path, 15) is None
    assert filters._load(tmp_path / "missing", 15) is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").touch()
    filters._save(tmp_path / "file" / "a.kept", np.ones(3, bool))


def test_decisions_that_were_swapped_are_not_used(files, kept):
    index = open_index(files, index_dir=kept)
    filters = [field("x") < 5, field("x") > 80]
    expected = [blocks(index, one) for one in filters]
    assert expected[0] != expected[1]
    first, second = kept.glob("*.kept")
    names = first.name, second.name
    first.rename(kept / "between")
    second.rename(kept / names[0])
    (kept / "between").rename(kept / names[1])
    assert [blocks(index, one) for one in filters] == expected


def test_a_filter_may_use_columns_that_all_files_share_though_others_differ(tmp_path, kept):
    pq.write_table(pa.table({"x": [1], "only": [1], "s": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [2], "s": ["a"]}), tmp_path / "b.parquet")
    index = open_index(tmp_path, index_dir=kept)
    assert blocks(index, field("x") == 2) == [1]
    for name in ("only", "s"):
        with pytest.raises(SchemaMismatchError, match=rf"the column '{name}', which does not exist\. There are: x\."):
            Where.of(index, field(name) == 1)


def test_folder_columns_stay_usable_when_files_differ(files, kept):
    pq.write_table(pa.table({"x": [1], "more": [1]}), files / "year=2" / "b.parquet")
    index = HiveIndex(open_index(files, index_dir=kept))
    assert blocks(index, field("year") == 1) == [0, 1, 2]
    with pytest.raises(SchemaMismatchError, match=r"'more', which does not exist\. There are: x, year\."):
        Where.of(index, field("more") == 1)
