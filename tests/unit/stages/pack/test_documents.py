"""Rows as documents: the same flat columns from files, lists, arrays and single items."""

from itertools import repeat

import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from in_memory import CONTEXT
from midepoch.stages.flow import Flow, RowRun
from midepoch.stages.pack.documents import DocumentReader, Documents, PackSpec
from midepoch.stages.pack.stream import PackStream
from midepoch.values.rows import Rows

ROWS = [[1, 2, 3], [], [4], [5, 6]]


def spec(**options):
    defaults = {"length": 4, "column": "input_ids", "overlong": "cut", "eos": None, "pad": None, "labels": None}
    return PackSpec(**(defaults | {"number": 1} | options))


def run_of(**columns):
    """A run of an Arrow batch."""
    batch = pa.record_batch(columns)
    numbers = np.arange(batch.num_rows)
    return RowRun(Rows(batch), numbers[:, None] + 1, numbers)


def flow_of(single, **columns):
    run = run_of(**columns)
    if single:
        return Flow(single_items=Flow(row_runs=iter([run])).as_single_items())
    return Flow(row_runs=iter([run]))


def reader(**options):
    return DocumentReader(spec(**options), CONTEXT)


def read(run, **options):
    documents = reader(**options).read(run)
    return {name: column.tolist() for name, column in documents.columns.items()}, documents.lengths.tolist()


def test_the_values_of_all_documents_in_one_array():
    assert read(run_of(input_ids=ROWS)) == ({"input_ids": [1, 2, 3, 4, 5, 6]}, [3, 0, 1, 2])


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("make", [list, lambda row: np.array(row, np.int64)], ids=["lists", "arrays"])
def test_windows_of_single_items_are_those_of_runs(single, make):
    columns = {"input_ids": ROWS, "text": list("abcd")}
    inputs = flow_of(single, **columns)
    if single:
        items = [({**item, "input_ids": make(item["input_ids"])}, *rest) for item, *rest in inputs.as_single_items()]
        inputs = Flow(single_items=iter(items))
    runs = list(reader().runs(inputs, repeat(2)))
    assert [name for run in runs for name in run.rows.names] == ["input_ids"] * len(runs), "other columns are left out"
    assert sum(len(run) for run in runs) == 4
    values = [value for run in runs for value in read(run)[0]["input_ids"]]
    assert values == [1, 2, 3, 4, 5, 6]


def test_of_single_items_as_many_are_read_as_are_asked_for():
    asked = []

    def items():
        for number, row in enumerate([*ROWS, [7, 8]]):
            asked.append(number)
            yield {"input_ids": row}, (number + 1,), number

    runs = reader().runs(Flow(single_items=items()), iter([1, 2, 4]))
    assert [(len(next(runs)), len(asked)) for _ in range(3)] == [(1, 1), (2, 3), (2, 5)]


@pytest.mark.parametrize("mask", [[1, 0, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]])
def test_some_of_the_documents(mask):
    documents = Documents({"input_ids": np.arange(1, 7)}, np.array([3, 0, 1, 2]), np.arange(4), np.zeros((4, 1)))
    kept = documents.keep(np.array(mask, bool))
    due = [values for values, keep in zip([[1, 2, 3], [], [4], [5, 6]], mask, strict=True) if keep]
    assert kept.columns["input_ids"].tolist() == [value for values in due for value in values]
    assert kept.lengths.tolist() == list(map(len, due))
    assert kept.keys.tolist() == np.flatnonzero(mask).tolist()


@pytest.mark.parametrize("rows", [[], [[]]], ids=["no row", "an empty row"])
def test_a_cursor_inside_a_document_that_is_gone(rows):
    runs = [run_of(input_ids=pa.array(rows, pa.list_(pa.int64())))] if rows else []
    with pytest.raises(me.CheckpointMismatchError, match="2 outputs of a group were delivered"):
        list(PackStream(spec=spec()).read(Flow(row_runs=iter(runs)), (5, 2), CONTEXT))
