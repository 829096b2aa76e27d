"""Items as frames of pandas and polars, and as arrays of jax. Only pandas is installed: stand-ins do for the others."""

import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import midepoch as me
from worlds import ids, write_files


@pytest.fixture
def dataset(tmp_path):
    return me.read(write_files(tmp_path / "data", [20, 0, 7, 33], kinds=["stream", "parquet"]))


def add_next(frame):
    return frame.assign(next=frame["id"] + 1)


def is_even(frame):
    return frame["id"] % 2 == 0


def next_of(column, number):
    return {"next": column.iloc[0] + 1, "number": number}


def test_items_and_batches_are_frames(dataset):
    for form in ("pandas", "pd"):
        framed = dataset.shuffle(seed=3).with_format(form)
        row = next(iter(framed))
        assert isinstance(row, pd.DataFrame)
        assert len(row) == 1
        batches = list(framed.batch(7))
        assert [len(batch) for batch in batches] == [7] * 8 + [4]
        assert [number for batch in batches for number in batch["id"]] == ids(dataset.shuffle(seed=3))


def test_functions_get_frames(dataset):
    framed = dataset.with_format("pandas")
    made = list(framed.map(add_next, batched=True, batch_size=8).filter(is_even, batched=True).batch(10))
    assert [number for frame in made for number in frame["next"]] == list(range(1, 61, 2))
    singly = list(framed.map(add_next).filter(is_even).batch(10))
    assert [frame["next"].tolist() for frame in singly] == [frame["next"].tolist() for frame in made]
    columns = dataset.with_format("pandas").map(next_of, input_columns="id", with_indices=True)
    assert [(item["next"], item["number"]) for item in columns] == [(number + 1, number) for number in range(60)]
    with pytest.raises(me.SchemaMismatchError, match="input_columns has 'nothing'"):
        list(framed.map(next_of, input_columns="nothing"))


def test_stages_after_it(dataset):
    framed = dataset.with_format("pandas").select_columns(["id", "text"]).rename_column("id", "number").batch(7)
    assert list(next(iter(framed)).columns) == ["number", "text"]
    assert framed.column_names == ["number", "text"]
    assert isinstance(next(iter(framed.with_format("numpy")))["number"], np.ndarray)
    assert isinstance(next(iter(framed.with_format("arrow"))), pa.RecordBatch)


def plain(items):
    return [item[["id", "next"]].to_dict("list") for item in items]


def test_resumes(dataset):
    framed = dataset.shuffle(seed=3).with_format("pandas").map(add_next, batched=True, batch_size=4).batch(3)
    expected = plain(framed)
    for stop in range(0, len(expected), 3):
        first, second = framed.with_plan(framed.plan), framed.with_plan(framed.plan)
        items = iter(first)
        got = plain(next(items) for _ in range(stop))
        second.load_state_dict(first.state_dict())
        assert got + plain(second) == expected


def test_loaders(dataset):
    framed = dataset.with_format("pandas")
    assert [frame["id"].tolist() for frame in me.Loader(framed, batch_size=30, num_workers=1)] == [
        list(range(30)),
        list(range(30, 60)),
    ]
    collated = me.Loader(framed, batch_size=30, collate_fn=lambda frames: pd.concat(frames)["id"].tolist())
    assert list(collated) == [list(range(30)), list(range(30, 60))]


def test_what_is_refused(dataset):
    framed = dataset.with_format("pandas")
    for name, call in (
        ("pack", lambda: framed.pack(4, column="tokens")),
        ("cache", lambda: framed.cache("folder")),
        ("mix", lambda: me.mix([framed, framed])),
    ):
        with pytest.raises(ValueError, match=f"{name} after with_format of pandas, polars or jax is not possible"):
            call()
    with pytest.raises(ValueError, match=r"it can be 'python', .*'pandas', 'polars', 'jax'"):
        dataset.with_format("tensorflow")


@pytest.mark.parametrize("library", ["polars", "jax"])
def test_a_library_that_is_not_installed(dataset, library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, "jax.numpy", None)
    with pytest.raises(me.MissingExtraError, match=rf"needs {library}.*'midepoch\[{library}\]'"):
        dataset.with_format(library)


class Array(np.ndarray):
    """As an array of jax."""


def test_arrays_of_jax(dataset, monkeypatch):
    jax = SimpleNamespace(asarray=lambda value: np.asarray(value).view(Array), ndarray=Array)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(numpy=jax))
    monkeypatch.setitem(sys.modules, "jax.numpy", jax)
    arrays = dataset.with_format("jax")
    batch = next(iter(arrays.batch(5)))
    assert type(batch["id"]) is Array
    assert not isinstance(batch["text"], Array)

    def double(columns):
        assert type(columns["id"]) is Array
        return {"id": columns["id"] * 2}

    made = next(iter(arrays.map(double, batched=True).batch(5)))
    assert type(made["id"]) is Array
    assert made["id"].tolist() == [0, 2, 4, 6, 8]


class Frame:
    """As a frame of polars."""

    def __init__(self, batch):
        self.table = pa.Table.from_batches([batch])

    def to_arrow(self):
        return self.table


def test_frames_of_polars(dataset, monkeypatch):
    polars = SimpleNamespace(from_arrow=Frame, DataFrame=Frame, Series=pd.Series)
    monkeypatch.setitem(sys.modules, "polars", polars)
    framed = dataset.with_format("polars").map(lambda frame: frame, batched=True).batch(7)
    tables = [frame.to_arrow() for frame in framed]
    assert [number for table in tables for number in table["id"].to_pylist()] == list(range(60))
