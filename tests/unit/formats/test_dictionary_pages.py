"""Texts that a Parquet file has once and its rows repeat: they are given up before they fill the memory."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from midepoch.formats import dictionary_pages, parquet
from midepoch.formats.base import Block
from midepoch.formats.dictionary_pages import UNREADABLE, dictionary_page, longest_text, rows_at_a_time

ROWS = 2_000


def repeated(text, rows=ROWS, compression="zstd", **options):
    """A file in which all rows have one long text."""
    codes = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(rows), "x": codes}), sink, compression=compression, **options)
    return sink.getvalue()


@pytest.fixture
def _small(monkeypatch):
    monkeypatch.setattr(dictionary_pages, "MOST_BYTES", 1 << 22)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
def test_a_small_file_of_one_long_text_in_many_rows_is_refused(tmp_path, compression):
    path = tmp_path / "a.parquet"
    path.write_bytes(repeated("a" * 10_000, compression=compression, store_schema=False))  # 20 MB
    dataset = me.read(path, max_record_bytes="1MiB")
    with pytest.raises(me.DataFormatError, match=r"a\.parquet, row group 0: .*more than max_record_bytes \(1,0"):
        list(dataset)
    assert [row["id"] for row in me.read(path)] == list(range(ROWS)), "rows that take several steps are whole"
    assert {row["x"] for row in me.read(path)} == {"a" * 10_000}


@pytest.mark.usefixtures("_small")
def test_few_rows_are_decoded_at_a_time(monkeypatch):
    seen = []

    class Counted(pq.ParquetFile):
        def iter_batches(self, **options):
            for batch in super().iter_batches(**options):
                seen.append(batch.nbytes)
                yield batch

    monkeypatch.setattr(pq, "ParquetFile", Counted)

    content = pa.BufferReader(repeated("a" * 100_000, store_schema=False))
    monkeypatch.setattr(parquet, "open_file", lambda path: content)
    scan = parquet.scan("a")
    blocks = parquet.open_blocks("a", scan.schema, scan.schema, 1 << 20)
    with pytest.raises(me.DataFormatError, match="max_record_bytes"):
        blocks.read(Block(0, *scan.blocks[0]))
    assert max(seen) <= 2 << 22
    assert sum(seen) < ROWS * 100_000 / 10


def test_texts_of_usual_files_are_decoded_at_once():
    rng = np.random.default_rng(0)
    table = pa.table({"w": rng.integers(0, 5_000, 100_000).astype(str), "t": [f"{n}" * 20 for n in range(100_000)]})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    file = pq.ParquetFile(sink)
    assert rows_at_a_time(pa.BufferReader(sink.getvalue()), file.metadata.row_group(0), [0, 1]) is None
    assert rows_at_a_time(pa.BufferReader(sink.getvalue()), file.metadata.row_group(0), []) is None


def test_no_byte_outside_of_the_columns_is_read():
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": ["a"] * 3, "y": ["b"] * 3}), sink, compression="none", write_statistics=False)
    group = pq.ParquetFile(sink).metadata.row_group(0)
    seen = []

    class File:
        def read_at(self, nbytes, offset):
            seen.append((offset, offset + nbytes))
            return sink.getvalue()[offset : offset + nbytes]

    assert rows_at_a_time(File(), group, [0, 1]) is None
    starts = [group.column(leaf).dictionary_page_offset for leaf in (0, 1)]
    ends = [start + group.column(leaf).total_compressed_size for leaf, start in enumerate(starts)]
    assert [begin for begin, _ in seen] == starts
    assert all(end <= last for (_, end), last in zip(seen, ends, strict=True))


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "brotli", "lz4"])
@pytest.mark.parametrize("is_checked", [True, False])
def test_the_header_of_a_dictionary_and_its_longest_text(compression, is_checked):
    texts = ["a", "", "b" * 5_000, "c" * 300]
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": texts * 10}), sink, compression=compression, write_page_checksum=is_checked)
    content, file = sink.getvalue(), pa.BufferReader(sink.getvalue())
    chunk = pq.ParquetFile(sink).metadata.row_group(0).column(0)
    begin = chunk.dictionary_page_offset
    page = dictionary_page(content[begin:][:64])
    assert page is not None
    assert (page.inflated, page.values) == (sum(map(len, texts)) + 16, 4)
    assert begin + page.begin + page.stored == chunk.data_page_offset
    found = longest_text(file.read_at(page.stored, begin + page.begin), page, chunk)
    assert found == 5_000
    assert dictionary_page(content[chunk.data_page_offset :][:64]) is None


@pytest.mark.parametrize("header", [b"", bytes(64), b"\x15", b"\x15" + b"\xff" * 63, b"\x15\x04\x15\x02\x18\x01a" * 9])
def test_what_is_no_header_may_be_as_large_as_any(header):
    assert dictionary_page(header) is UNREADABLE


@pytest.mark.parametrize("is_checked", [True, False])
def test_page_checksums_are_compared_where_they_were_written(tmp_path, is_checked):
    content = bytearray(repeated("unlikely", compression="none", write_page_checksum=is_checked, use_dictionary=False))
    content[content.index(b"unlikely", 20_000)] = ord("U")
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    if is_checked:
        with pytest.raises(me.DataFormatError, match=r"row group 0 cannot be decoded: .*CRC"):
            list(me.read(path))
    else:
        assert {row["x"] for row in me.read(path)} == {"Unlikely", "unlikely"}
