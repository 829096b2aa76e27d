"""Rows that users name, as numbers of the dataset."""

import pyarrow as pa
import pytest

import midepoch as me
from files import write_numbers
from midepoch.dataset import file_rows
from midepoch.order.selection import Without
from midepoch.sources.edits import without_rows


@pytest.fixture
def rows(tmp_path):
    paths = [write_numbers(tmp_path / f"{number}.arrow", number * 5, number * 5 + 5) for number in range(3)]
    return file_rows(me.read(paths), "test")


def test_pairs_and_tables_name_the_same_rows(rows):
    table = pa.table({"step": [1, 1], "file": ["2.arrow", "0.arrow"], "row": [4, 1]})
    for named in ([("2.arrow", 4), ("0.arrow", 1), ("0.arrow", 1)], table):
        [edit] = without_rows(rows, named).steps
        assert isinstance(edit, Without)
        assert edit.rows.tolist() == [1, 14]
        assert without_rows(rows, named).size == 13


def test_rows_that_are_out_already_change_nothing(rows):
    once = without_rows(rows, [("1.arrow", 0)])
    assert without_rows(once, [("1.arrow", 0)]) is once
    assert without_rows(once, []) is once
    assert without_rows(once, [("1.arrow", 0), ("1.arrow", 1)]).size == 13
    assert without_rows(once, [("1.arrow", 1)]).edits == 2
