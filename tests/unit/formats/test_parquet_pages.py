"""Headers of pages, against what pyarrow writes."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from midepoch.formats.parquet_pages import DATA, DATA_V2, DICTIONARY, UnreadablePageError, page_at, pages_of

TEXTS = ["a", "", "b" * 5_000, "c" * 300]


def written(table, **options):
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    chunk = pq.ParquetFile(sink).metadata.row_group(0).column(0)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    return sink.getvalue(), chunk, begin, begin + chunk.total_compressed_size


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "brotli", "lz4"])
@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_all_pages_of_a_column(compression, is_checked, version):
    options = {"compression": compression, "write_page_checksum": is_checked, "data_page_version": version}
    content, chunk, begin, end = written(pa.table({"x": TEXTS * 10}), **options)
    file = pa.BufferReader(content)
    first = page_at(file, begin, end)
    assert (first.kind, first.inflated, first.values) == (DICTIONARY, sum(map(len, TEXTS)) + 16, 4)
    assert first.begin + first.stored == chunk.data_page_offset
    second = page_at(file, chunk.data_page_offset, end)
    assert (second.kind, second.values) == (DATA if version == "1.0" else DATA_V2, 40)
    assert second.begin + second.stored == end
    assert pages_of(file, begin, end, 40) == (first.inflated + second.inflated, 40, first, [second])
    assert pages_of(file, begin, end, 0) == (0, 0, None, [])


def test_many_pages_and_their_values():
    table = pa.table({"x": range(50_000)})
    content, _, begin, end = written(table, use_dictionary=False, data_page_size=1_000, compression="none")
    pages = pages_of(pa.BufferReader(content), begin, end, 50_000)
    assert (pages.values, pages.dictionary) == (50_000, None)
    assert 400_000 <= pages.inflated < 410_000


def test_headers_with_long_statistics_are_read_whole():
    text = "x" * 3_000
    content, _, begin, end = written(pa.table({"x": [text]}), use_dictionary=False, compression="none")
    assert pages_of(pa.BufferReader(content), begin, end, 1).values == 1


def test_a_dictionary_after_rows_is_found_and_a_second_one_is_refused():
    plain, _, begin, end = written(pa.table({"x": ["p"] * 5}), use_dictionary=False, compression="none")
    coded, _, start, stop = written(pa.table({"x": ["long text"] * 5}), compression="none")
    both = pa.BufferReader(plain[begin:end] + coded[start:stop])
    pages = pages_of(both, 0, both.size(), 10)
    assert pages.values == 10
    assert pages.dictionary is not None
    twice = pa.BufferReader(coded[start:stop] * 2)
    with pytest.raises(UnreadablePageError):
        pages_of(twice, 0, twice.size(), 10)


@pytest.mark.parametrize("header", [b"", bytes(64), b"\x15", b"\x15" + b"\xff" * 63, b"\x15\x04\x15\x02\x18\x01a" * 9])
def test_what_is_no_header_is_refused(header):
    with pytest.raises(UnreadablePageError):
        page_at(pa.BufferReader(header), 0, len(header))


def test_no_byte_outside_of_the_column_is_read():
    content, _, begin, end = written(pa.table({"x": TEXTS * 10, "y": TEXTS * 10}))
    seen = []

    class File:
        def read_at(self, nbytes, offset):
            seen.append((offset, offset + nbytes))
            return content[offset : offset + nbytes]

    assert pages_of(File(), begin, end, 40).values == 40
    assert seen[0][0] == begin
    assert max(stop for _, stop in seen) <= end
