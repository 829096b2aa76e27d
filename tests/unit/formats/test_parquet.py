"""Parquet: every row group is a block."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from files import write_numbers
from midepoch.formats import FORMATS, Block, parquet, scan_file


def test_a_block_that_cannot_be_decoded_names_the_file(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(2000)}), path, row_group_size=1000, use_dictionary=False, compression="snappy")
    damaged = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    damaged[start : start + 400] = b"\xff" * 400
    path.write_bytes(damaged)
    with pytest.raises(me.DataFormatError, match=r"a\.parquet: row group 1 cannot be decoded"):
        list(me.read(path))


@pytest.mark.parametrize("is_checked", [True, False])
def test_page_checksums_are_compared_where_they_were_written(tmp_path, is_checked):
    path, options = tmp_path / "a.parquet", {"compression": "none", "use_dictionary": False}
    pq.write_table(pa.table({"x": ["unlikely"] * 2000}), path, write_page_checksum=is_checked, **options)
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(b"unlikely", 2000)] = ord("U")
    path.write_bytes(damaged)
    if is_checked:
        with pytest.raises(me.DataFormatError, match=r"row group 0 cannot be decoded: .*CRC"):
            list(me.read(path))
    else:
        assert {row["x"] for row in me.read(path)} == {"Unlikely", "unlikely"}


def test_threads_that_read_a_file_side_by_side_never_share_a_reader(tmp_path, monkeypatch):
    """Arrow would crash. Readers that are idle are used again."""
    path = write_numbers(tmp_path / "a.parquet", 0, 40, "parquet", rows=4)
    scan = scan_file(str(path))
    blocks = [Block(number, *place) for number, place in enumerate(scan.blocks)]
    reader = FORMATS["parquet"].open_blocks(str(path), scan.schema, scan.schema)
    both, made = Barrier(2), []

    class Watched:
        def __init__(self, *_arguments, **_options):
            self.inside = []
            made.append(self)

        def read_row_group(self, number, **options):
            self.inside.append(number)
            both.wait()
            alone = self.inside == [number]
            self.inside.remove(number)
            return pa.table({"x": [number if alone else -1]})

    reader._idle.clear()
    monkeypatch.setattr(parquet.pq, "ParquetFile", Watched)
    with ThreadPoolExecutor(2) as pool:
        up, down = (
            pool.submit(lambda step=step: [reader.read(one)["x"][0].as_py() for one in blocks[::step]])
            for step in (1, -1)
        )
    assert up.result() == list(range(10))
    assert down.result() == list(range(9, -1, -1))
    assert len(made) == 2
