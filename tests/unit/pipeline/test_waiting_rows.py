"""Dealing out rows of several parts: each draw gets the next row of its part, whatever the runs of the parts are."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midepoch.pipeline.waiting_rows import WaitingRows, interleaved
from midepoch.stages.flow import RowRun
from midepoch.testing import same
from midepoch.values.pool import PickedRows, RowPool
from midepoch.values.rows import Rows

FORMS = ["python", "numpy", "torch", "arrow"]


def run_of(part, start, size, form, is_picked):
    """A run of rows of a part; their numbers, and names, say which they are."""
    numbers = np.arange(start, start + size)
    columns = {"name": [f"{part}:{number}" for number in numbers.tolist()], "x": numbers + 1000 * part}
    batch = pa.record_batch(columns)
    rows = Rows(batch, form)
    if is_picked:
        rows = Rows(PickedRows(RowPool([batch.take(pa.array(range(size)[::-1]))]), np.arange(size)[::-1]), form)
    return RowRun(rows, numbers[:, None] + 1, numbers)


@given(
    parts=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    cuts=st.lists(st.integers(1, 59), max_size=3),
    form=st.sampled_from(FORMS),
    picked=st.lists(st.booleans(), min_size=4, max_size=4),
    is_salted=st.booleans(),
)
def test_each_draw_takes_the_next_row_of_its_part(parts, sizes, cuts, form, picked, is_salted):
    waiting = [WaitingRows() for _ in range(4)]
    for part, of_part in enumerate(waiting):
        start = 0
        while of_part.rows < len(parts):
            size = sizes[(part + of_part.runs) % len(sizes)]
            of_part.add([run_of(part, start, size, form, picked[part])])
            start += size
    salts = [1 << 20, 1 << 21, 1 << 22, 1 << 23] if is_salted else None
    got, keys, taken = [], [], [[] for _ in waiting]
    bounds = sorted({0, len(parts), *(cut for cut in cuts if cut < len(parts))})
    for begin, end in pairwise(bounds):
        rows, run_keys, slices = interleaved(np.array(parts[begin:end], np.int32), waiting, salts)
        assert len(rows) == len(run_keys) == end - begin
        got += [(str(row["name"]), int(row["x"])) for row in map(plain, rows.items())]
        keys += run_keys.tolist()
        for part, of_part in enumerate(slices):
            taken[part] += [cursor for some in of_part for (cursor,) in some.cursors.tolist()]
    numbers = [parts[:draw].count(part) for draw, part in enumerate(parts)]
    expected = list(zip(parts, numbers, strict=True))
    assert got == [(f"{part}:{number}", 1000 * part + number) for part, number in expected]
    assert keys == [number ^ (salts[part] if salts else 0) for part, number in expected]
    assert taken == [list(range(1, parts.count(part) + 1)) for part in range(4)]


def plain(row):
    return (
        {name: column[0].as_py() for name, column in zip(row.schema.names, row.columns, strict=True)}
        if isinstance(row, pa.RecordBatch)
        else row
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_picked", [False, True], ids=["slices", "picked"])
def test_batches_of_dealt_rows_are_those_of_one_record_batch(form, is_picked):
    waiting = [WaitingRows(), WaitingRows()]
    for part, of_part in enumerate(waiting):
        of_part.add(run_of(part, start, 5, form, is_picked) for start in (0, 5, 10))
    parts = np.array([0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 1], np.int32)
    rows, _, _ = interleaved(parts, waiting)
    numbers = [parts[:draw].tolist().count(part) for draw, part in enumerate(parts.tolist())]
    whole = pa.record_batch(
        {
            "name": [f"{part}:{number}" for part, number in zip(parts, numbers, strict=True)],
            "x": np.array(numbers) + 1000 * parts.astype(np.int64),
        }
    )
    for size in (1, 4, 11):
        assert same(list(rows.batches(size)), list(Rows(whole, form).batches(size)))
    assert same(rows.columns(), Rows(whole, form).columns())


def test_draws_that_repeat_are_dealt_the_same_way_and_cannot_be_changed():
    waiting = [WaitingRows(), WaitingRows()]
    for part, of_part in enumerate(waiting):
        of_part.add([run_of(part, 0, 9, "python", is_picked=False)])
    parts = np.array([1, 0, 1], np.int32)
    first, _, _ = interleaved(parts, waiting)
    second, _, _ = interleaved(parts, waiting)
    assert [row["name"] for row in first.items()] == ["1:0", "0:0", "1:1"]
    assert [row["name"] for row in second.items()] == ["1:2", "0:1", "1:3"]
    with pytest.raises(ValueError, match="read-only"):
        first.data.indices[0] = 1
