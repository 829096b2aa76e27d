"""Tables in memory as a dataset."""

import pickle

import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from midepoch.dataset import file_rows
from midepoch.index.tables import BLOCK_ROWS, MOST_BLOCKS, NumberIndex, TableIndex


def table(start, stop, rows=4):
    values = pa.chunked_array([pa.array(range(at, min(stop, at + rows))) for at in range(start, stop, rows)], "int64")
    return pa.table({"x": values, "y": pa.chunked_array([[str(value) for value in values.to_pylist()]], "string")})


@pytest.fixture
def index():
    return TableIndex([table(0, 10), table(10, 13)], table(0, 1).schema)


def read(index, wanted):
    for number in range(len(index.view.block_rows)):
        file, block = index.view.block(number)
        yield index.open(file, wanted).read(block)


def test_each_table_is_a_file_and_each_record_batch_a_block(index):
    assert index.view.file_starts.tolist() == [0, 10, 13]
    assert index.view.block_starts.tolist() == [0, 4, 8, 10, 13]
    assert [batch["x"].to_pylist() for batch in read(index, index.schema(["x"]))] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
        [10, 11, 12],
    ]
    assert index.schema(None).names == ["x", "y"]


def test_a_pickled_index_is_the_same(index):
    copied = pickle.loads(pickle.dumps(index))
    assert copied.view.fingerprint == index.view.fingerprint
    assert [batch.to_pylist() for batch in read(copied, index.schema(None))] == [
        batch.to_pylist() for batch in read(index, index.schema(None))
    ]


def fingerprint(*tables):
    return TableIndex(tables, tables[0].schema).view.fingerprint


def test_checkpoints_know_tables_by_their_rows_and_batches():
    same = fingerprint(table(0, 10))
    assert fingerprint(table(0, 10)) == same
    assert fingerprint(table(1, 11)) != same
    assert fingerprint(table(0, 9)) != same
    few, many = (table(0, 4000, rows).select(["x"]) for rows in (2000, 1000))
    assert fingerprint(few) != fingerprint(many)
    assert fingerprint(table(0, 10), table(0, 10)) != same


def test_the_first_and_the_last_row_are_always_in_the_sample():
    values = np.arange(100_000)
    for changed in (0, -1):
        other = values.copy()
        other[changed] = -7
        assert fingerprint(pa.table({"x": other})) != fingerprint(pa.table({"x": values}))


def test_a_table_without_rows():
    empty = TableIndex([table(0, 4).slice(0, 0)], table(0, 1).schema)
    assert empty.view.rows == 0
    assert empty.schema(None).names == ["x", "y"]


@pytest.mark.parametrize("rows", [0, 1, BLOCK_ROWS, 2 * BLOCK_ROWS + 1])
def test_all_numbers_are_there_once(rows):
    index = pickle.loads(pickle.dumps(NumberIndex(rows, "list", "n")))
    assert index.view.rows == rows
    reader = index.open(0, index.schema(None))
    blocks = [index.view.block(number)[1] for number in range(len(index.view.block_rows))]
    assert [n for block in blocks for n in reader.read(block)["n"].to_pylist()] == list(range(rows))


def test_so_many_rows_that_their_blocks_would_not_fit_open_at_once():
    class Squares:
        def __len__(self):
            return 10**10

        def __getitem__(self, number):
            return number * number

    dataset = me.from_indexable(Squares())
    assert len(dataset) == 10**10
    assert len(file_rows(dataset, "").index.view.block_rows) <= MOST_BLOCKS
    assert next(iter(dataset.skip(10**10 - 1))) == (10**10 - 1) ** 2
    rows = iter(dataset.shuffle(seed=1, level="row"))
    first = [next(rows) for _ in range(3)]
    assert len({*first}) == 3
