"""Stages that cast and add columns, on every kind of rows that can reach them."""

import numpy as np
import pyarrow as pa
import pytest

from midepoch.stages.columns import AddColumn, CastColumns
from midepoch.stages.flow import Flow, RowRun
from midepoch.values.rows import Rows

BATCH = pa.RecordBatch.from_pydict({"id": [5, 6, 7], "name": ["a", "b", "c"]})
CAST = CastColumns(name="cast", types=(("id", pa.string()),))
ADD = AddColumn.of("more", pa.array(range(10)))


def kinds():
    yield Rows(BATCH)
    yield Rows(BATCH.to_pydict())


def items(stage, rows):
    run = RowRun(rows, np.arange(3)[:, None] + 1, np.array([2, 0, 9]))
    return [item for item, _, _ in stage.flow(Flow(row_runs=iter([run])), (0,), None).as_single_items()]


@pytest.mark.parametrize("rows", list(kinds()), ids=lambda rows: type(rows.data).__name__)
def test_columns_of_any_rows(rows):
    assert [row["id"] for row in items(CAST, rows)] == ["5", "6", "7"]
    assert [row["more"] for row in items(ADD, rows)] == [2, 0, 9]


def test_schemas():
    assert CAST.item_schema(BATCH.schema).types == [pa.string(), pa.string()]
    assert ADD.item_schema(BATCH.schema).names == ["id", "name", "more"]
    assert CAST.item_schema(None) is ADD.item_schema(None) is None


def test_what_a_state_remembers():
    assert CAST.describe() == {"op": "cast", "types": [["id", "string"]]}
    assert AddColumn.of("more", pa.array(range(10))) == ADD != AddColumn.of("more", pa.array(range(1, 11)))
