"""Rows and pools of them: what is picked, cut and joined is what Arrow holds."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from midepoch.rows import Picked, Pool, Rows
from unit.files import numbers, values, write, write_numbers

TEXTS = ["", "a", "größer", "日本語", "\U0001f600", "x" * 600, None]


def parts_of(sizes):
    """Batches of such sizes, each a slice that does not begin at offset 0."""
    total = sum(sizes)
    columns = {
        "number": pa.array(range(-1, total), pa.int32()),
        "text": pa.array([TEXTS[number % len(TEXTS)] for number in range(-1, total)]),
        "score": pa.array([number / 7 for number in range(-1, total)], pa.float32()),
    }
    whole, starts = pa.record_batch(columns), np.cumsum([1, *sizes])
    return [whole.slice(int(start), size) for start, size in zip(starts, sizes, strict=False)]


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_picked_rows_are_those_at_the_places_in_every_shape(sizes, data):
    parts = parts_of(sizes)
    rows = [row for part in parts for row in part.to_pylist()]
    places = data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True))
    picked = Rows(Picked(Pool(parts), np.array(places, np.int64)))
    expected = [rows[place] for place in places]
    assert repr(list(picked.items())) == repr(expected)
    columns = picked.columns()
    assert all(type(column) is list for column in columns.values())
    assert repr(columns) == repr({name: [row[name] for row in expected] for name in rows[0]})
    assert repr(picked.to("arrow").columns().to_pylist()) == repr(expected)


@pytest.mark.parametrize("rows", [1, 2, 1024, 1025, 2049])
def test_a_shuffle_whose_last_run_has_one_row_gives_rows_not_their_parts(tmp_path, rows):
    dataset = me.read(write_numbers(tmp_path / "a.arrow", 0, rows, rows=100)).shuffle(1)
    assert sorted(values(dataset)) == list(range(rows))
    assert sorted(value for batch in dataset.batch(1) for value in batch["x"]) == list(range(rows))


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_runs_that_are_no_multiple_of_a_batch_lose_only_the_rest_of_the_lane(tmp_path, lanes):
    path = write(tmp_path / "a.arrow", [numbers(start, start + 3) for start in range(0, 42, 3)])
    dataset = me.read(path).lanes(lanes)
    for size in (2, 4, 7, 50):
        whole = [batch for batch in dataset.batch(size) if len(batch["x"]) == size]
        assert list(dataset.batch(size, drop_last=True)) == whole


def test_batches_of_python_columns_go_on_into_functions_one_by_one(tmp_path):
    path = write_numbers(tmp_path / "a.arrow", 0, 20, rows=20)
    seen = []

    def look(batch):
        seen.append(batch["x"])
        return {"sum": sum(batch["x"])}

    iterator = iter(me.read(path).batch(3).map(look))
    assert next(iterator) == {"x": [0, 1, 2], "sum": 3}
    assert seen == [[0, 1, 2]]
