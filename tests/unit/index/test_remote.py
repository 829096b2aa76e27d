"""Blocks of an object: fetched together, and all of one version."""

import os

import pyarrow as pa
import pytest

from midepoch import formats
from midepoch.errors import DataChangedError
from midepoch.formats import Block, parquet
from midepoch.index.remote import StoredBlocks
from objects import parquet_bytes, stored


def nested():
    """Columns of all shapes, of which the names of some are the beginnings of those of others."""
    numbers = range(60)
    return pa.table(
        {
            "id": numbers,
            "a": [{"b": number, "c": [str(number), None]} for number in numbers],
            "a.b": [number * 3 for number in numbers],
            "ab": [f"word {number % 3}" for number in numbers],
            "m": pa.array([[(str(number), number)] for number in numbers], pa.map_(pa.string(), pa.int32())),
            "none": pa.nulls(60),
            "noise": [os.urandom(20_000) for _ in numbers],
        }
    )


def opened(content, names):
    """An object of row groups, to be read block by block, and the client that remembers requests."""
    file, client = stored(content)
    scan = formats.scan_file(file)
    wanted = pa.schema([scan.schema.field(name) for name in names])
    blocks = [Block(number, *location) for number, location in enumerate(scan.blocks)]
    reader = StoredBlocks(file, lambda: parquet.open_blocks(file, scan.schema, wanted), lambda: None)
    client.read.clear()
    return reader, blocks, client, file


@pytest.mark.parametrize("version", ["1.0", "2.6"])
@pytest.mark.parametrize(
    "names", [["id"], ["a"], ["a.b"], ["ab", "id"], ["m", "none"], [], ["noise"], nested().column_names]
)
def test_the_spans_of_a_block_are_all_that_decoding_needs(names, version, tmp_path):
    table = nested()
    content = parquet_bytes(table, 10, version=version, data_page_size=3000)
    (tmp_path / "x.parquet").write_bytes(content)
    local = parquet.open_blocks(str(tmp_path / "x.parquet"), table.schema, table.select(names).schema)
    reader, blocks, client, file = opened(content, names)
    assert len(blocks) == 6
    wanted = [span for block in blocks[1:5] for span in reader._reader.spans(block)]
    file.fetch(wanted)
    asked = list(client.read)
    file._recent = ()
    client.read.clear()
    read = list(reader.read_all(blocks[1:5]))
    assert client.read == asked
    assert read == [local.read(block) for block in blocks[1:5]]
    assert [data.num_rows for data in read] == [10] * 4
    if names == table.column_names:
        assert len(client.read) == 1


def test_bytes_that_were_not_foreseen_are_fetched_and_checked(monkeypatch):
    table = nested().select(["id", "noise"])
    content = parquet_bytes(table, 10, compression="none")
    spans = parquet.ParquetBlocks.spans
    monkeypatch.setattr(
        parquet.ParquetBlocks, "spans", lambda self, block: [(begin, end - 1) for begin, end in spans(self, block)]
    )
    reader, blocks, client, _ = opened(content, table.column_names)
    assert pa.concat_tables(reader.read_all(blocks)).select(["id"]) == table.select(["id"])
    reader, blocks, client, _ = opened(content, table.column_names)
    rest = reader.read_all(blocks)
    next(rest)
    client.version = "2"
    with pytest.raises(DataChangedError, match="another version"):
        list(rest)  # gaps are fetched too, so that it is the end of the last block alone
