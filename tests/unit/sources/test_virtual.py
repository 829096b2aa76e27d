"""Virtual blocks: each is a run of rows of one block of the index, and together they are all rows."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midepoch.formats import Scan
from midepoch.index.encode import index_bytes
from midepoch.index.index import IndexView
from midepoch.order.windows import virtual_counts, virtual_starts
from midepoch.sources.virtual import VirtualBlocks
from midepoch.storage.listing import Listing
from midepoch.storage.local import FileStamp

SCANS = st.builds(
    lambda rows, divisible: Scan(
        "arrow", pa.schema([("x", pa.int64())]), [(8 * n, 10 * n, n) for n in rows], divisible=divisible
    ),
    st.lists(st.sampled_from([0, 1, 127, 128, 129, 1000, 5000]), max_size=4),
    st.booleans(),
)


def view_of(scans):
    names = tuple(f"f{number}" for number in range(len(scans)))
    return IndexView("", index_bytes(Listing("", "", names, tuple(FileStamp(1, 1) for _ in scans)), scans))


@given(st.lists(SCANS, min_size=1, max_size=4))
def test_virtual_blocks_divide_the_rows_of_the_index(scans):
    view = view_of(scans)
    blocks = VirtualBlocks(view, virtual_starts(view.blocks, virtual_counts(view.blocks)))
    rows, lengths = [], 0
    for number in range(len(blocks.block_starts) - 1):
        first, end = blocks.block_starts[number : number + 2].tolist()
        if first == end:
            continue
        file, block = blocks.block(number)
        assert file == blocks.file_of(number)
        assert blocks.first_blocks[file] <= number < blocks.first_blocks[file + 1]
        whole = view.block(int(view.first_blocks[file]) + block.number)[1]
        assert (block.offset, block.length) == (whole.offset, whole.length)
        assert block.first is not None or block == whole
        in_file = int(view.block_starts[int(view.first_blocks[file]) + block.number]) + (block.first or 0)
        rows += range(in_file, in_file + block.rows)
        assert (first, end - first) == (in_file, block.rows)
        assert view.divisible[file] or block.first is None
        assert 10 * block.rows == blocks.block_lengths[number]
        lengths += blocks.block_lengths[number]
    assert rows == list(range(view.rows))
    assert lengths == view.block_lengths.sum()
    assert len(blocks.first_blocks) == len(scans) + 1


@pytest.mark.parametrize("rows", [1, 128])
def test_a_record_batch_that_is_not_divided_is_whole(rows):
    view = view_of([Scan("arrow", pa.schema([]), [(0, 1000, rows)], divisible=True)])
    blocks = VirtualBlocks(view, np.array([0, rows]))
    assert blocks.block(0) == view.block(0)


def test_lengths_are_rounded_up():
    view = view_of([Scan("arrow", pa.schema([]), [(0, 1000, 3)], divisible=True)])
    assert VirtualBlocks(view, np.array([0, 1, 2, 3])).block_lengths.tolist() == [334, 334, 334]
