"""Functions, filters and batches: what they get, what they may return, and what is refused."""

import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from worlds import ids, jitter, plus_one


def test_a_map_lays_its_result_over_the_item(folder):
    row = next(iter(me.read(folder).map(plus_one)))
    assert row == {"id": 0, "text": "row 0", "tokens": [], "maybe": None, "next": 1}
    assert next(iter(me.read(folder).map(plus_one, remove_columns=["text", "tokens", "maybe"]))) == {"id": 0, "next": 1}
    assert next(iter(me.read(folder).map(lambda row: row["id"] * 2).skip(4))) == 8


def test_arrow_functions_get_and_return_record_batches(folder):
    def double(batch):
        return pa.RecordBatch.from_pydict({"id": pa.compute.multiply(batch["id"], 2)})

    doubled = me.read(folder).with_format("arrow").map(double, batched=True)
    assert ids(doubled.batch(8)) == [2 * number for number in range(60)]
    kept = me.read(folder).with_format("arrow").filter(lambda batch: pa.compute.less(batch["id"], 5), batched=True)
    assert ids(kept.batch(8)) == [0, 1, 2, 3, 4]


def test_random_numbers_depend_on_seed_epoch_and_row_alone(folder):
    def noise(dataset, epoch=0):
        dataset.set_epoch(epoch)
        return {row["id"]: row["noise"] for row in dataset}

    first = noise(me.read(folder).shuffle(1).map(jitter, with_rng=True))
    assert first == noise(me.read(folder).map(jitter, with_rng=True).shuffle(1).lanes(7))
    assert first != noise(me.read(folder).shuffle(1).map(jitter, with_rng=True), epoch=1)
    assert first != noise(me.read(folder).shuffle(2).map(jitter, with_rng=True))
    assert len(set(first.values())) == 60


def test_batches_are_columns(folder):
    batch = next(iter(me.read(folder).batch(3)))
    assert batch == {
        "id": [0, 1, 2],
        "text": ["row 0", "row 1", "row 2"],
        "tokens": [[], [1], [2, 2]],
        "maybe": [None, 1, 2],
    }
    arrays = next(iter(me.read(folder).with_format("numpy").batch(3)))
    assert arrays["id"].dtype == np.int64
    mapped = next(iter(me.read(folder).map(plus_one).batch(3)))
    assert mapped["next"] == [1, 2, 3]


def test_columns_of_a_batched_function_may_be_of_any_kind(folder):
    for make in (tuple, list, np.array, pa.array, lambda column: pa.chunked_array([column])):
        dataset = (
            me.read(folder)
            .select_columns("id")
            .map(lambda columns, make=make: {"id": make(columns["id"])}, batched=True)
        )
        assert list(dataset.filter(lambda columns: [True] * len(columns["id"]), batched=True)) == [
            {"id": number} for number in range(60)
        ]


def test_a_batched_function_with_changing_columns_raises(folder):
    def moody(columns):
        return {"a" if columns["id"][0] == 0 else "b": columns["id"]}

    options = {"batched": True, "batch_size": 10, "remove_columns": ["id", "text", "tokens", "maybe"]}
    with pytest.raises(ValueError, match="Let it return the same columns every time"):
        list(me.read(folder).map(moody, **options).batch(7))
    with pytest.raises(me.SchemaMismatchError, match="no column 'nope'"):
        list(me.read(folder).map(moody, **options).select_columns("nope"))
