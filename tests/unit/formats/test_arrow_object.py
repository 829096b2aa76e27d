"""Record batches of an object: whole, or some rows by a few small requests; headers are fetched once."""

import io

import numpy as np
import pyarrow as pa
import pytest

from midepoch.errors import DataChangedError, DataFormatError
from midepoch.formats import Block, arrow, arrow_object
from midepoch.index.build import StoredBlocks
from midepoch.storage.ranges import LEAST_BYTES
from objects import stored

ROWS = 20_000


def table(batches=3, width=100):
    rng = np.random.default_rng(0)
    count = batches * ROWS
    data = pa.py_buffer(rng.bytes(count * width))
    offsets = pa.py_buffer((np.arange(count + 1) * width).astype(np.int32))
    return pa.table({"id": np.arange(count), "noise": pa.Array.from_buffers(pa.binary(), count, [None, offsets, data])})


def content_of(data, make=pa.ipc.new_stream, rows=ROWS, **options):
    sink = io.BytesIO()
    with make(sink, data.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(data, max_chunksize=rows)
    return sink.getvalue()


def opened(content, names=None):
    """A reader of an object, its record batches, and the client that remembers requests."""
    file, client = stored(content)
    scan = arrow.scan(file)
    wanted = scan.schema if names is None else pa.schema([scan.schema.field(name) for name in names])
    reader = StoredBlocks(file, lambda: arrow.open_blocks(file, scan.schema, wanted), lambda: None)
    file._recent = ()
    client.read.clear()
    return reader, [Block(number, *location) for number, location in enumerate(scan.blocks)], client


def rows_of(block, first, rows):
    return block._replace(first=first, rows=rows)


@pytest.mark.parametrize("make", [pa.ipc.new_stream, pa.ipc.new_file])
def test_some_rows_are_fetched_by_small_requests(make):
    data = table()
    reader, blocks, client = opened(content_of(data, make))
    read = reader.read(rows_of(blocks[1], 5000, 1000))
    assert read.equals(data.slice(ROWS + 5000, 1000).combine_chunks().to_batches()[0])
    assert len(client.read) == 4  # header, ids, offsets, data
    assert read["id"].buffers()[1].address % 8 == 0
    assert sum(nbytes for _, nbytes in client.read) < 1000 * (8 + 4 + 100) + 4096 + 1000
    client.read.clear()
    assert reader.read(rows_of(blocks[1], 0, 1000))["id"][0].as_py() == ROWS
    assert len(client.read) == 3  # the header is known


def test_runs_of_rows_that_lie_side_by_side_share_requests():
    data = table()
    reader, blocks, client = opened(content_of(data))
    wanted = [rows_of(blocks[0], 2000, 1000), rows_of(blocks[0], 3000, 1000), rows_of(blocks[2], 0, 500)]
    read = list(reader.read_all(wanted))
    starts = [2000, 3000, 2 * ROWS]
    assert [batch["id"][0].as_py() for batch in read] == starts
    assert [batch.num_rows for batch in read] == [1000, 1000, 500]
    noise = [
        data["noise"][first : first + batch.num_rows].to_pylist() for first, batch in zip(starts, read, strict=True)
    ]
    assert [batch["noise"].to_pylist() for batch in read] == noise
    assert len(client.read) <= 2 + 3 + 3


def test_runs_that_share_a_request_do_not_hold_the_memory_of_each_other():
    data = table()
    reader, blocks, client = opened(content_of(data))
    read = list(reader.read_all([rows_of(blocks[0], first, 100) for first in range(0, 2000, 400)]))
    assert [batch["id"][0].as_py() for batch in read] == list(range(0, 2000, 400))
    assert len(client.read) <= 4  # all runs together, because they lie near each other
    buffers = [
        buffer for batch in read for column in batch.columns for buffer in column.buffers() if buffer is not None
    ]
    assert all(buffer.parent is None or buffer.parent.size <= 2 * buffer.size for buffer in buffers)
    assert all(buffer.address % 8 == 0 for buffer in buffers)


def test_a_whole_record_batch_is_one_request():
    data = table()
    reader, blocks, client = opened(content_of(data))
    assert pa.Table.from_batches(reader.read_all(blocks)).equals(data)
    begin, end = blocks[0].offset - blocks[0].offset % 64, blocks[2].offset + blocks[2].length
    assert client.read == [(begin, end - begin)]


def test_most_rows_of_a_record_batch_are_fetched_as_a_whole():
    data = table()
    reader, blocks, client = opened(content_of(data))
    wanted = [rows_of(blocks[0], first, 1000) for first in range(0, ROWS, 1000)]
    read = list(reader.read_all(wanted))
    assert pa.Table.from_batches(read).equals(data.slice(0, ROWS).combine_chunks())
    assert client.read[1:] == [(blocks[0].offset - blocks[0].offset % 64, blocks[0].length + blocks[0].offset % 64)]


@pytest.mark.parametrize("case", ["compressed", "view", "small"])
def test_rows_that_need_their_whole_record_batch_do_not_hold_its_memory(case):
    data = table(1, width=0 if case == "small" else 100)
    if case == "view":
        data = data.set_column(1, "noise", pa.array(data["noise"].to_pylist(), pa.binary_view()))
    compression = "lz4" if case == "compressed" else None
    reader, blocks, client = opened(content_of(data, compression=compression))
    read = reader.read(rows_of(blocks[0], 777, 100))
    assert read["id"].to_pylist() == list(range(777, 877))
    assert read["noise"].to_pylist() == data["noise"][777:877].to_pylist()
    assert case == "view" or all(
        buffer is None or buffer.size < 20_000 for column in read.columns for buffer in column.buffers()
    )
    assert max(nbytes for _, nbytes in client.read) >= blocks[0].length


def test_headers_are_kept_up_to_a_limit(monkeypatch):
    data = table(4, width=20)
    reader, blocks, client = opened(content_of(data, rows=ROWS))
    for _ in range(2):
        for block in blocks:
            assert reader.read(rows_of(block, 8, 8))["id"][0].as_py() == block.number * ROWS + 8
    assert len(client.read) == 2 * 4 * 3 + 4
    kept = reader._reader._object._layouts
    monkeypatch.setattr(arrow_object, "KEPT_HEADER_BYTES", reader._reader._object._header_bytes // 2)
    kept.clear()
    reader._reader._object._header_bytes = 0
    client.read.clear()
    for _ in range(2):
        for block in blocks:
            reader.read(rows_of(block, 8, 8))
            assert len(kept) <= 2
    assert len(client.read) == 2 * 4 * 3 + 8


def test_a_long_header_is_fetched_in_full():
    data = pa.table({f"column_{number}": np.arange(ROWS) + number for number in range(150)})
    reader, blocks, _ = opened(content_of(data), names=["column_7", "column_149"])
    read = reader.read(rows_of(blocks[0], 9, 3))
    assert read.to_pydict() == {"column_7": [16, 17, 18], "column_149": [158, 159, 160]}


def test_only_the_wanted_columns_are_fetched():
    data = table()
    reader, blocks, client = opened(content_of(data), names=["id"])
    assert reader.read(rows_of(blocks[2], 10, 1000))["id"].to_pylist() == list(range(2 * ROWS + 10, 2 * ROWS + 1010))
    assert sum(nbytes for _, nbytes in client.read) < 8 * 1000 + 4096 + 200


def test_rows_of_an_object_that_is_replaced_during_the_rounds_are_not_returned(monkeypatch):
    for turn in range(4):
        data = table()
        reader, blocks, client = opened(content_of(data))
        plain, count = type(client).read_at, iter(range(100))

        def read_at(nbytes, offset, client=client, plain=plain, count=count, turn=turn):
            if next(count) == turn:
                client.version = "2"
                client.content = bytes(len(client.content))
            return plain(client, nbytes, offset)

        monkeypatch.setattr(client, "read_at", read_at)
        reader._reader._path._handle = None
        with pytest.raises(DataChangedError, match="another version"):
            reader.read(rows_of(blocks[1], 5000, 1000))


def test_a_broken_record_batch_is_named():
    data = table(1)
    reader, blocks, client = opened(content_of(data))
    begin, end = blocks[0].offset, blocks[0].offset + LEAST_BYTES
    client.content = client.content[:begin] + bytes(LEAST_BYTES) + client.content[end:]
    with pytest.raises(DataFormatError, match=f"s3://bucket/x is broken at byte {blocks[0].offset}"):
        reader.read(rows_of(blocks[0], 5000, 1000))


def test_rows_of_local_files_are_slices(tmp_path):
    data = table(1)
    (tmp_path / "a.arrow").write_bytes(content_of(data))
    scan = arrow.scan(str(tmp_path / "a.arrow"))
    reader = arrow.open_blocks(str(tmp_path / "a.arrow"), scan.schema, scan.schema)
    block = Block(0, *scan.blocks[0])
    assert reader.read(rows_of(block, 70, 10))["id"].to_pylist() == list(range(70, 80))
    assert [batch.num_rows for batch in reader.read_all([block, rows_of(block, 5, 6)])] == [ROWS, 6]
