"""Parquet: every row group is a block."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me


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
