"""Rows as documents: the same flat columns from files, lists, arrays and single items."""

import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from in_memory import CONTEXT
from midepoch.stages.flow import Flow, RowRun
from midepoch.stages.pack.documents import DocumentReader, Documents, PackSpec
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


def test_each_document_ends_with_eos():
    columns, lengths = read(run_of(input_ids=ROWS, token_type_ids=[[7, 8, 9], [], [1], [2, 3]]), eos=99)
    assert lengths == [4, 1, 2, 3]
    assert columns["input_ids"] == [1, 2, 3, 99, 99, 4, 99, 5, 6, 99]
    assert columns["token_type_ids"] == [7, 8, 9, 9, 0, 1, 1, 2, 3, 3], "the type of the token before it"


def test_masks_cover_eos_and_labels_learn_it():
    ones = [[1] * len(row) for row in ROWS]
    columns, _ = read(run_of(input_ids=ROWS, attention_mask=ones, labels=ROWS), eos=99)
    assert columns["attention_mask"] == [1] * 10
    assert columns["labels"] == columns["input_ids"]


def test_tokens_can_be_their_own_labels():
    columns, _ = read(run_of(input_ids=pa.array(ROWS, pa.list_(pa.uint16()))), labels="input_ids")
    assert columns["labels"] == columns["input_ids"]


def test_labels_have_a_type_that_can_hold_the_ignored_one():
    run = run_of(input_ids=pa.array(ROWS, pa.list_(pa.uint16())))
    documents = reader(labels="input_ids").read(run)
    assert (documents.columns["input_ids"].dtype, documents.columns["labels"].dtype) == (np.uint16, np.int32)


def test_columns_along_the_tokens_must_be_as_long():
    with pytest.raises(ValueError, match="'labels' has 2 values and 'input_ids' has 1 token in one row") as raised:
        read(run_of(input_ids=ROWS, labels=[[1, 2, 3], [], [4, 4], [5, 6]]))
    assert raised.value.__notes__ == ["midepoch: in pack, at row 2 of memory"]


@pytest.mark.parametrize("rows", [[[1], None], [[1], [2, None]]])
def test_a_null_names_its_row(rows):
    with pytest.raises(ValueError, match="'input_ids' holds a null") as raised:
        read(run_of(input_ids=rows))
    assert raised.value.__notes__ == ["midepoch: in pack, at row 1 of memory"]


def test_a_token_that_does_not_fit_the_type_is_refused():
    with pytest.raises(ValueError, match=r"eos=300 does not fit the type of 'input_ids', uint8"):
        read(run_of(input_ids=pa.array(ROWS, pa.list_(pa.uint8()))), eos=300)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("make", [list, lambda row: np.array(row, np.int64)], ids=["lists", "arrays"])
def test_windows_of_single_items_are_those_of_runs(single, make):
    columns = {"input_ids": ROWS, "text": list("abcd")}
    inputs = flow_of(single, **columns)
    if single:
        items = [({**item, "input_ids": make(item["input_ids"])}, *rest) for item, *rest in inputs.as_single_items()]
        inputs = Flow(single_items=iter(items))
    runs = list(reader().windows(inputs, 2))
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


def test_rows_must_have_the_same_columns():
    items = iter([({"input_ids": [1]}, (1,), 0), ({"input_ids": [1], "labels": [1]}, (2,), 1)])
    with pytest.raises(ValueError, match=r"columns \['input_ids'\] to pack and another \['input_ids', 'labels'\]"):
        list(reader().windows(Flow(single_items=items), 2))


def test_items_must_be_rows():
    with pytest.raises(TypeError, match="pack needs rows, dicts of columns, but got a int"):
        list(reader().windows(Flow(single_items=iter([(3, (1,), 0)])), 2))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["text"], "it holds a str"),
        ([[[1], [2]]], "an array of 2 dimensions"),
        ([[0.5]], "values of the type float64"),
        ([[1 << 70]], "numbers beyond 64 bits|of the type object"),
    ],
)
def test_values_that_are_no_lists_of_integers_are_refused(values, message):
    run = RowRun(Rows({"input_ids": values}), np.ones((len(values), 1), np.int64), np.arange(len(values)))
    with pytest.raises(me.SchemaMismatchError, match=message):
        read(run)


def test_values_of_different_types_are_refused():
    values = [np.array([1], np.int32), np.array([1], np.int64)]
    run = RowRun(Rows({"input_ids": values}), np.array([[1], [2]]), np.arange(2))
    with pytest.raises(ValueError, match="holds int32 in one row and int64 in another"):
        read(run)


@pytest.mark.parametrize("mask", [[1, 0, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]])
def test_some_of_the_documents(mask):
    documents = Documents({"input_ids": np.arange(1, 7)}, np.array([3, 0, 1, 2]), np.arange(4))
    kept = documents.keep(np.array(mask, bool))
    due = [values for values, keep in zip([[1, 2, 3], [], [4], [5, 6]], mask, strict=True) if keep]
    assert kept.columns["input_ids"].tolist() == [value for values in due for value in values]
    assert kept.lengths.tolist() == list(map(len, due))
    assert kept.keys.tolist() == np.flatnonzero(mask).tolist()
