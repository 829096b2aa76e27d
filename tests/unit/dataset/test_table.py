"""Columns of datasets, and all of their rows at once."""

import sys

import datasets
import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from worlds import ids, is_kept, plus_one, write_files


@pytest.fixture
def dataset(tmp_path):
    return me.read(write_files(tmp_path / "data", [20, 0, 7, 33], kinds=["stream", "parquet"]))


def test_column_names_are_true(dataset):
    names = ["id", "text", "tokens", "maybe"]
    assert dataset.column_names == dataset.shuffle().filter(is_kept).batch(3).column_names == names
    assert dataset.filter(lambda rows: rows["id"], batched=True).with_format("torch").column_names == names
    assert dataset.select_columns(["text", "id"]).column_names == ["text", "id"]
    assert dataset.batch(2).select_columns(["text"]).column_names == ["text"]
    assert dataset.remove_columns("text").rename_column("id", "number").column_names == ["number", "tokens", "maybe"]
    for unknown in (
        dataset.map(plus_one),
        dataset.map(lambda rows: rows, batched=True),
        dataset.map(lambda rows: rows, batched=True, one_to_one=True),
        dataset.pack(8, column="tokens"),
        me.mix([dataset, dataset.select_columns("id")]),
        dataset.map(plus_one).select_columns("id").rename_column("id", "number"),
    ):
        assert unknown.column_names is None
        assert unknown.features is None
    assert me.mix([dataset, dataset.shuffle()]).column_names == names


def test_features_follow_their_columns(tmp_path):
    features = datasets.Features({"label": datasets.ClassLabel(names=["cat", "dog"]), "n": datasets.Value("int32")})
    opened = datasets.Dataset.from_dict({"label": [0, 1], "n": [3, 4]}, features=features)
    dataset = me.from_hf(opened)
    renamed = dataset.batch(2).rename_column("label", "class").select_columns(["class", "n"]).cast_column("n", "int64")
    assert renamed.features["class"].names == ["cat", "dog"]
    assert renamed.features["n"].dtype == "int64"
    assert dataset.features["n"].dtype == "int32"


def test_cast(dataset):
    wanted = {"id": "float32", "maybe": pa.int64(), "tokens": datasets.List(datasets.Value("int64"))}
    cast = dataset.cast(wanted)
    assert list(cast) == list(dataset)
    assert [type(row["id"]) for row in cast.head(1)] == [float]
    schema = next(iter(cast.with_format("arrow").batch(5))).schema
    assert schema.types == [pa.float32(), pa.string(), pa.list_(pa.int64()), pa.int64()]
    assert next(iter(dataset.cast_column("id", "int16").with_format("numpy").batch(5)))["id"].dtype == np.int16
    assert next(iter(dataset.with_format("numpy").batch(5).cast_column("id", "int16")))["id"].dtype == np.int16
    assert dataset.cast(pa.schema([("id", pa.string())])).head(1)[0]["id"] == "0"
    assert dataset.map(plus_one).cast_column("next", "string").head(1)[0]["next"] == "1"
    assert dataset.map(plus_one).with_format("numpy").cast_column("next", "int8").head(1)[0]["next"].dtype == np.int8
    one_by_one = dataset.map(lambda rows: rows, batched=True).cast_column("id", "string")
    assert [row["id"] for row in one_by_one] == [str(number) for number in range(60)]
    shuffled = dataset.shuffle(seed=3)
    assert list(shuffled.cast_column("id", "int32")) == list(shuffled)
    me.testing.assert_resumes(shuffled.cast(wanted).batch(7))


def test_wrong_casts(dataset):
    with pytest.raises(me.SchemaMismatchError, match="cast_column: there is no column 'nothing'"):
        dataset.cast_column("nothing", "int8")
    with pytest.raises(ValueError, match="cast: 'integer' is not a type of Arrow"):
        dataset.cast({"id": "integer"})
    with pytest.raises(TypeError, match="Media are decoded by dataset"):
        dataset.cast_column("text", datasets.Image())
    with pytest.raises(me.SchemaMismatchError, match=r"cast: values of the column 'text' do not fit the type int8"):
        list(dataset.cast({"text": "int8"}))
    with pytest.raises(TypeError, match="cast_column needs items that are dicts, got a int"):
        list(dataset.map(lambda row: 1).cast_column("id", "int8"))
    state = dataset.cast_column("id", "int16").state_dict()
    with pytest.raises(me.CheckpointMismatchError, match="cast_column"):
        dataset.cast_column("id", "int32").load_state_dict(state)


def test_add_column(dataset):
    squares = np.arange(60) ** 2
    added = dataset.add_column("square", squares)
    assert added.column_names == ["id", "text", "tokens", "maybe", "square"]
    for one in (added, added.shuffle(seed=3), added.shuffle(seed=3, level="row"), added.select([7, 3]).shard(2, 0)):
        rows = list(one)
        assert rows
        assert all(row["square"] == row["id"] ** 2 for row in rows)
    late = dataset.map(plus_one).filter(is_kept).add_column("square", squares.tolist()).with_format("numpy").batch(4)
    assert all((batch["square"] == batch["id"] ** 2).all() for batch in late)
    in_arrow = dataset.with_format("arrow").map(lambda row: row).add_column("square", pa.array(squares))
    assert [row["square"].to_pylist() for row in in_arrow.head(3)] == [[0], [1], [4]]
    me.testing.assert_elastic(added.shuffle(seed=3).batch(3).lanes(4), [(2, 1), (1, 2)])
    with pytest.raises(me.CheckpointMismatchError, match="add_column"):
        dataset.add_column("square", squares + 1).load_state_dict(added.state_dict())


def test_wrong_columns(dataset):
    with pytest.raises(ValueError, match="there are 3 values for 60 rows"):
        dataset.add_column("x", [1, 2, 3])
    with pytest.raises(me.SchemaMismatchError, match="there is a column 'id' already"):
        dataset.add_column("id", range(60))
    with pytest.raises(me.SchemaMismatchError, match="there is a column 'next' already"):
        list(dataset.map(plus_one).add_column("next", range(60)))
    with pytest.raises(ValueError, match="Put add_column directly after read"):
        dataset.shuffle().add_column("x", range(60))
    with pytest.raises(ValueError, match="add_column after batch is not possible"):
        dataset.batch(2).add_column("x", range(60))


def test_a_column_alone(dataset):
    shuffled = dataset.shuffle(seed=3)
    assert list(shuffled["id"]) == list(shuffled["id"]) == ids(shuffled.to_list())
    assert len(dataset["id"]) == 60
    assert list(dataset.map(plus_one)["next"]) == list(range(1, 61))
    nested = dataset.map(lambda row: {"in": {"id": row["id"]}})
    assert list(nested["in"]["id"]) == list(range(60))
    list(shuffled)
    assert shuffled.epoch == 1
    assert list(shuffled["id"]) == ids(shuffled), "the present epoch"
    with pytest.raises(me.SchemaMismatchError, match="There is no column 'nothing'"):
        dataset["nothing"]
    with pytest.raises(TypeError, match=r"dataset\[5\] is not possible.*dataset\.select"):
        dataset[5]
    with pytest.raises(TypeError, match=r"list\(dataset\['id'\]\)"):
        dataset["id"][5]


def test_all_rows(dataset):
    assert dataset.repeat().to_list() == list(dataset)
    frame = dataset.to_pandas()
    assert frame["id"].tolist() == list(range(60))
    assert list(frame.columns) == dataset.column_names
    assert dataset.map(plus_one).to_pandas()["next"].tolist() == list(range(1, 61))
    assert dataset.batch(7).to_pandas()["id"].tolist() == list(range(60))
    parts = list(dataset.shuffle(seed=2).to_pandas(batch_size=25, batched=True))
    assert [len(part) for part in parts] == [25, 25, 10]
    assert [number for part in parts for number in part["id"]] == ids(dataset.shuffle(seed=2))
    assert list(dataset.take(0).to_pandas().columns) == dataset.column_names


def test_without_pandas_the_error_names_the_extra(dataset, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(me.MissingExtraError, match=r"to_pandas needs pandas.*'midepoch\[pandas\]'"):
        dataset.to_pandas()


def test_the_number_of_files(dataset):
    assert dataset.num_shards == dataset.n_shards == 4
    assert me.mix([dataset, dataset.map(plus_one)]).num_shards == 8
