"""Parquet: every row group is a block."""

import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from files import write_numbers
from midepoch.formats import FORMATS, Block, scan_file


def test_a_block_that_cannot_be_decoded_names_the_file(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(2000)}), path, row_group_size=1000, use_dictionary=False, compression="snappy")
    damaged = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    damaged[start : start + 400] = b"\xff" * 400
    path.write_bytes(damaged)
    with pytest.raises(me.DataFormatError, match=r"a\.parquet: row group 1 cannot be decoded"):
        list(me.read(path))


def test_two_threads_read_a_parquet_file_one_at_a_time(tmp_path):
    """The one that reads ahead, and the one that needs another row group of the same file: Arrow would crash."""
    path = write_numbers(tmp_path / "a.parquet", 0, 40, "parquet", rows=4)
    scan = scan_file(str(path))
    blocks = [Block(number, *place) for number, place in enumerate(scan.blocks)]
    reader = FORMATS["parquet"].open_blocks(str(path), scan.schema, scan.schema)
    inside = []

    class Watched:
        def read_row_group(self, number, **options):
            inside.append(number)
            time.sleep(0.002)
            alone = inside == [number]
            inside.remove(number)
            return pa.table({"x": [number if alone else -1]})

    reader._file = Watched()
    with ThreadPoolExecutor(2) as pool:
        up, down = (
            pool.submit(lambda step=step: [reader.read(one)["x"][0].as_py() for one in blocks[::step]])
            for step in (1, -1)
        )
    assert up.result() == list(range(10))
    assert down.result() == list(range(9, -1, -1))
