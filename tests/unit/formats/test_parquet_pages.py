"""Headers of pages, against what pyarrow writes."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forged_pages import BINARY, INT64, LIST, STRUCT, field, header, header_v2, varint, zigzag
from midepoch.formats.parquet_pages import DATA, DATA_V2, DICTIONARY, UnreadablePageError, page_at, pages_of, unsigned

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
    assert second.encodings == ((8, 3, 3) if version == "1.0" else (8,))
    assert (second.level_bytes > 0) == (version == "2.0"), "levels of version 1 are among the values"
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


BODY = b"0123456789"
FORGED = {
    "a field that comes twice": field(5, field(2, 0) + b"\0", STRUCT),
    "a field with a number that Arrow cuts off": field(5 + (1 << 16), field(2, 0) + b"\0", STRUCT),
    "more fields than Arrow counts": bytes([0xF5, 0]) * 2_200 + field(5, field(2, 0) + b"\0", STRUCT),
    "a number that Arrow cuts off": field(9, (1 << 32) + 7),
    "a list": field(9, bytes([0x15, 0]), LIST),
    "structs in structs": bytes([0x1C]) * 5_000 + bytes(5_000),
}


@pytest.mark.parametrize("more", FORGED.values(), ids=FORGED)
def test_headers_that_arrow_reads_in_another_way_are_refused(more):
    assert page_at(pa.BufferReader(header(BODY, 3, 7) + BODY), 0, 1_000).encodings == (7, 3, 3)
    content = header(BODY, 3, 7, more=more) + BODY
    with pytest.raises(UnreadablePageError):
        page_at(pa.BufferReader(content), 0, len(content))


def test_fields_of_other_types_are_passed_over_as_arrow_does():
    more = field(9, 1 << 40, INT64) + field(10, varint(3) + b"abc", BINARY) + bytes([7]) + zigzag(11) + bytes(8)
    content = header(BODY, 3, 7, more=more) + BODY
    assert page_at(pa.BufferReader(content), 0, len(content))[:5] == (DATA, len(content) - 10, 10, 10, 3)
    as_int64 = field(1, DATA, INT64) + content[3:]
    assert content[:3] == field(1, DATA)
    with pytest.raises(UnreadablePageError):
        page_at(pa.BufferReader(as_int64), 0, len(content))


@pytest.mark.parametrize("is_compressed", [None, True, False])
def test_the_levels_of_version_2_and_whether_values_are_compressed(is_compressed):
    content = header_v2(BODY, 3, 7, 99, levels=(4, 2), is_compressed=is_compressed) + BODY
    page = page_at(pa.BufferReader(content), 0, len(content))
    assert (page.kind, page.stored, page.inflated, page.values, page.encodings) == (DATA_V2, 10, 99, 3, (7,))
    assert (page.level_bytes, page.is_compressed, page.content) == (6, is_compressed is not False, BODY)
    negative = header_v2(BODY, 3, 7, 99, levels=(-4, 9)) + BODY
    with pytest.raises(UnreadablePageError):
        page_at(pa.BufferReader(negative), 0, len(negative))


def test_fewer_values_than_the_footer_says_are_refused_because_arrow_may_find_others_after_the_end():
    content, chunk, begin, end = written(pa.table({"x": TEXTS * 10}))
    assert pages_of(pa.BufferReader(content), begin, end, 40).values == 40
    with pytest.raises(UnreadablePageError):
        pages_of(pa.BufferReader(content), begin, end, 41)
    with pytest.raises(UnreadablePageError):
        pages_of(pa.BufferReader(content), begin, chunk.data_page_offset, 40)


def test_a_number_has_an_end():
    assert unsigned(varint((1 << 64) - 1), 0) == ((1 << 64) - 1, 10)
    with pytest.raises(IndexError):
        unsigned(b"\xff" * 10_000_000, 0)


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
