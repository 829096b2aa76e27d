"""Slices of one block that follow each other are joined without a copy; others are copied together."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from midepoch.values.rows import Rows, concat
from midepoch.values.slices import BlockSlice, joined_slices

BLOCK = pa.record_batch({"x": range(100), "text": [str(number) for number in range(100)]})


def part(start, stop, block=BLOCK):
    return Rows.of_block(BlockSlice.of(block, start, stop - start))


def address(batch):
    return batch.column(1).buffers()[2].address


def test_slices_that_follow_each_other_share_the_memory_of_their_block():
    joined = concat([part(10, 20), part(20, 21), part(21, 60)])
    assert joined.data.equals(BLOCK.slice(10, 50))
    assert address(joined.data) == address(BLOCK)


def test_slices_of_slices_are_joined_too():
    joined = concat([part(0, 50).slice(10, 20), part(20, 90).slice(0, 5)])
    assert joined.slice(3, 14).data.equals(BLOCK.slice(13, 11))
    assert address(joined.data) == address(BLOCK)


@pytest.mark.parametrize(
    "others",
    [(part(21, 30),), (part(10, 20),), (part(20, 30, BLOCK.slice(0)),), (Rows(BLOCK.slice(20, 10)),)],
    ids=["a gap", "the same rows", "another block", "an unknown place"],
)
def test_other_rows_are_copied(others):
    joined = concat([part(10, 20), *others])
    assert joined.data.to_pylist() == [row for one in (part(10, 20), *others) for row in one.data.to_pylist()]
    assert address(joined.data) != address(BLOCK)


def test_rows_that_a_stage_has_changed_are_not_taken_from_the_block():
    changed = [replace(one, data=one.data.rename_columns(["y", "text"])) for one in (part(0, 10), part(10, 20))]
    assert concat(changed).data.schema.names == ["y", "text"]
    assert changed[0].slice(2, 4).data.schema.names == ["y", "text"]
    assert concat([one.select(["x"]) for one in (part(0, 10), part(10, 20))]).data.to_pydict() == {"x": [*range(20)]}


def test_no_slice_is_joined_with_rows_of_an_unknown_place():
    first = BlockSlice.of(BLOCK, 0, 10)
    assert joined_slices([None, first]) is None
    assert joined_slices([first, None]) is None
    assert joined_slices([first]).rows.equals(first.rows)


def test_batches_of_a_whole_row_group_are_not_copied(tmp_path):
    pq.write_table(pa.table({"x": range(20_000), "text": ["a" * 600] * 20_000}), tmp_path / "a.parquet")
    one, two = me.read(tmp_path / "a.parquet").with_format("arrow").batch(10_000)
    assert address(one) == address(two)
    assert one["x"].to_pylist() + two["x"].to_pylist() == list(range(20_000))
