"""Blocks of objects: what is fetched together, and which error wins."""

import os

import pyarrow as pa
import pytest

from midepoch import formats
from midepoch.errors import DataChangedError, DataFormatError, StoreError
from midepoch.formats import Block, parquet
from midepoch.index.remote import StoredBlocks
from objects import parquet_bytes, stored

CHANGED = DataChangedError("the object was replaced")
BROKEN = DataFormatError("not a file of this format")


def batch(number):
    return pa.record_batch({"x": [number]})


BLOCKS = [Block(number, 10 * number, 10, 1) for number in range(3)]


class Object:
    """An object that notes what is done with it."""

    def __init__(self):
        self.log, self.failure = [], None

    def fetch(self, spans):
        self.log.append(("fetch", list(spans)))
        return self

    def open(self):
        return None


class PlainReader:
    def __init__(self, file):
        self._file = file

    def read(self, block):
        self._file.log.append(("read", block.number))
        return batch(block.number)


class SpannedReader(PlainReader):
    def spans(self, block):
        return [(block.offset, block.offset + block.length)]

    def decode(self, block, file):
        self._file.log.append(("decode", block.number))
        return batch(block.number)


@pytest.fixture
def file():
    return Object()


@pytest.fixture
def forgotten():
    return []


@pytest.fixture
def opened(file, forgotten):
    def make(reader):
        return StoredBlocks(file, lambda: reader(file), lambda: forgotten.append(True))

    return make


def numbers(batches):
    return [data["x"][0].as_py() for data in batches]


def test_blocks_whose_bytes_are_known_are_fetched_together(file, opened):
    assert numbers(opened(SpannedReader).read_all(BLOCKS)) == [0, 1, 2]
    spans = [(0, 10), (10, 20), (20, 30)]
    assert file.log == [("fetch", spans), ("decode", 0), ("decode", 1), ("decode", 2)]


def test_other_blocks_are_read_as_their_reader_reads_them(file, opened):
    assert numbers(opened(PlainReader).read_all(BLOCKS)) == [0, 1, 2]
    assert file.log == [("read", 0), ("read", 1), ("read", 2)]
    assert opened(PlainReader).read(BLOCKS[2])["x"].to_pylist() == [2]


def fail(error):
    raise error


@pytest.mark.parametrize("raised", [CHANGED, BROKEN], ids=["by the object", "by a format that hid it"])
def test_the_index_of_a_replaced_object_is_forgotten(file, opened, forgotten, raised):
    file.failure = None if raised is CHANGED else CHANGED
    with pytest.raises(DataChangedError, match="replaced"):
        opened(lambda _: fail(raised))
    assert forgotten == [True]


def test_a_broken_object_is_reported_as_broken_and_its_index_stays(opened, forgotten):
    with pytest.raises(DataFormatError, match="not a file"):
        opened(lambda _: fail(BROKEN))
    assert forgotten == []


def test_an_error_of_the_store_is_reported_in_place_of_what_a_format_made_of_it(file, opened, forgotten):
    file.failure = StoreError("403 Forbidden")
    with pytest.raises(StoreError, match="403"):
        opened(lambda _: fail(BROKEN))
    assert forgotten == []


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


def open_object(content, names):
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
    reader, blocks, client, file = open_object(content, names)
    assert len(blocks) == 6
    wanted = [span for block in blocks[1:5] for span in reader._reader.spans(block)]
    file.fetch(wanted)
    asked = sorted(client.read)
    file._recent = ()
    client.read.clear()
    read = list(reader.read_all(blocks[1:5]))
    assert sorted(client.read) == asked
    assert read == [local.read(block) for block in blocks[1:5]]
    assert [data.num_rows for data in read] == [10] * 4
    if names == table.column_names:
        assert len(client.read) == 1


def test_bytes_that_were_not_foreseen_are_fetched(monkeypatch):
    table = nested().select(["id", "noise"])
    content = parquet_bytes(table, 10, compression="none")
    spans = parquet.ParquetBlocks.spans
    monkeypatch.setattr(
        parquet.ParquetBlocks, "spans", lambda self, block: [(begin, end - 1) for begin, end in spans(self, block)]
    )
    reader, blocks, _, _ = open_object(content, table.column_names)
    assert pa.concat_tables(reader.read_all(blocks)).select(["id"]) == table.select(["id"])
