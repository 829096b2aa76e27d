"""Rows: picked, sliced, joined and converted rows hold the values that Arrow holds."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import midepoch as me
from files import write_numbers
from midepoch.testing import assert_resumes
from midepoch.values.rows import Rows, concat

TEXTS = ["", "a", "größer", "日本語", "\U0001f600", "x" * 600, None]


def parts_of(sizes):
    """Batches of these sizes, each a slice that does not start at offset 0."""
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
def test_picked_rows_are_those_at_the_indices_as_dicts_columns_and_arrow(sizes, data):
    parts = parts_of(sizes)
    rows = [row for part in parts for row in part.to_pylist()]
    indices = data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True))
    picked = concat([Rows(part) for part in parts]).take(np.array(indices, np.int64))
    expected = [rows[index] for index in indices]
    assert repr(list(picked.items())) == repr(expected)
    columns = picked.columns()
    assert all(type(column) is list for column in columns.values())
    assert repr(columns) == repr({name: [row[name] for row in expected] for name in rows[0]})
    assert repr(picked.to("arrow").columns().to_pylist()) == repr(expected)


def test_a_function_after_batch_is_called_batch_by_batch_when_asked_for(tmp_path):
    path = write_numbers(tmp_path / "a.arrow", 0, 20, rows=20)
    seen = []

    def look(batch):
        seen.append(batch["x"])
        return {"sum": sum(batch["x"])}

    iterator = iter(me.read(path).batch(3).map(look))
    assert next(iterator) == {"x": [0, 1, 2], "sum": 3}
    assert seen == [[0, 1, 2]]


def with_gaps(tmp_path, form):
    """Rows of a batched function whose values convert differently alone than within their column."""
    path = write_numbers(tmp_path / "a.arrow", 0, 24, rows=24)

    def gaps(columns):
        rows = columns["x"]
        return {
            "n": [None if row % 3 == 0 else row for row in rows],
            "tokens": [list(range(row % 4)) for row in rows],
            "mixed": [row if row % 2 else row / 2 for row in rows],
        }

    return me.read(path).map(gaps, batched=True, batch_size=8).with_format(form)


@pytest.mark.parametrize("form", ["python", "numpy", "torch", "arrow"])
def test_a_row_of_a_batched_function_looks_the_same_after_a_resume(tmp_path, form):
    dataset = with_gaps(tmp_path, form)
    assert_resumes(dataset)
    assert_resumes(dataset.batch(3))
    assert_resumes(dataset.filter(bool) if form == "arrow" else dataset.filter(lambda row: row["x"] % 5))


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_packs_join_other_columns_of_a_batched_function_in_their_form(tmp_path, form):
    dataset = with_gaps(tmp_path, form).pack(8, column="tokens", overlong="drop", others="join")
    assert_resumes(dataset)
    kinds = {type(value) for pack in dataset for value in pack["n"]}
    assert kinds == {type(None), np.int64 if form == "numpy" else torch.Tensor}


@pytest.mark.parametrize("form", ["python", "numpy"])
def test_rows_without_columns_make_as_many_batches_as_others(tmp_path, form):
    dataset = me.read(write_numbers(tmp_path / "a.arrow", 0, 20, rows=7), columns=[]).with_format(form)
    for ordered in (dataset, dataset.shuffle(1)):
        assert list(ordered.batch(3)) == [{}] * 7
