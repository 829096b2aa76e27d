"""Rows picked from slices of batches and tables, for every nesting of types that Arrow gets wrong."""

import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from files import write
from midepoch.values.take import keep, take

PAIR = pa.list_(pa.list_(pa.int16(), 2), 2)


def pair(number):
    return [[4 * number, 4 * number + 1], [4 * number + 2, 4 * number + 3]]


class Matrix(pa.ExtensionType):
    def __init__(self):
        super().__init__(PAIR, "unit.matrix")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, serialized):
        return cls()


NESTED = {
    "as an extension": (Matrix(), pair),
    "fixed": (pa.list_(pa.int16(), 2), lambda n: [n, n + 1]),
    "fixed of fixed": (PAIR, pair),
    "three deep": (pa.list_(PAIR, 2), lambda n: [pair(n), pair(n + 1)]),
    "with nulls": (PAIR, lambda n: pair(n) if n % 3 else None),
    "in a struct": (pa.struct({"a": PAIR, "b": pa.int8()}), lambda n: {"a": pair(n), "b": n}),
    "in a list": (pa.list_(PAIR), lambda n: [pair(n)] * (n % 3)),
    "in a map": (pa.map_(pa.string(), PAIR), lambda n: [("k", pair(n))]),
    "of strings": (pa.list_(pa.list_(pa.string(), 1), 2), lambda n: [[f"a{n}"], [f"b{n}"]]),
    "of lists": (pa.list_(pa.list_(pa.int16()), 2), lambda n: [[n], [n, n]]),
}


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("start", [0, 7])
def test_take_and_keep_pick_the_rows_of_the_slice(name, start):
    kind, make = NESTED[name]
    values = [make(number) for number in range(20)]
    whole = pa.record_batch({"id": range(20), "v": pa.array(values, kind)}).slice(start)
    rows = whole.to_pylist()
    indices, mask = np.array([5, 0, 3, 3, 9]), np.arange(len(rows)) % 2 == 0
    for data in (whole, pa.Table.from_batches([whole.slice(0, 4), whole.slice(4)])):
        assert take(data, indices).to_pylist() == [rows[index] for index in indices]
        assert keep(data, mask).to_pylist() == rows[::2]
        assert take(data, indices).schema == whole.schema


def plain(value):
    """Arrays and tensors as lists."""
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize("form", ["python", "numpy", "torch", "arrow"])
@pytest.mark.parametrize("kind", ["stream", "parquet"])
@pytest.mark.parametrize(("block", "run"), [(25, 1024), (25, 10), (100, 1024), (100, 30)])
def test_matrices_are_right_after_skip_take_shuffle_filter_and_batch(tmp_path, monkeypatch, form, kind, block, run):
    monkeypatch.setattr("midepoch.sources.lane.RUN_ROWS", run)
    monkeypatch.setattr("midepoch.sources.lane.NARROW_BYTES", 0)
    rows = pa.record_batch({"id": range(100), "v": pa.array([pair(number) for number in range(100)], PAIR)})
    path = write(tmp_path / "a.arrow", [rows.slice(start, block) for start in range(0, 100, block)], kind)

    def check(dataset):
        seen = []
        for item in dataset.with_format(form):
            columns = item.to_pydict() if form == "arrow" else item
            numbers = plain(columns["id"])
            batched = isinstance(numbers, list)
            for number, value in (
                zip(numbers, plain(columns["v"]), strict=True) if batched else [(numbers, columns["v"])]
            ):
                assert plain(value) == pair(number)
                seen.append(number)
        return len(seen)

    read = me.read(path)
    for dataset in (
        read.skip(13).take(40),
        read.skip(13).take(40).shuffle(seed=1, level="row"),
        read.skip(13).take(40).shuffle(seed=1, window=20),
        read.skip(13).take(40).shuffle(seed=1).select_columns(["v", "id"]),
        me.read(path).skip(13).take(40).filter(lambda columns: [True] * len(columns["id"]), batched=True),
    ):
        assert check(dataset) == 40
        assert check(dataset.batch(7)) == 40
    kept = me.read(path, filters=[("id", ">", 12), ("id", "<", 53)])
    assert check(kept.shuffle(seed=1)) == 40
    assert check(kept.batch(7)) == 40
