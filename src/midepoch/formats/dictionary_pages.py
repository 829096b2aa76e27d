"""How much memory the texts of a Parquet row group may take: a dictionary holds each once, and the rows repeat it.

What the footer says of sizes is not asked, only the dictionary itself, which has to be as its header says.
"""

import struct
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

MOST_BYTES = 1 << 30
"""What the texts that are decoded at a time may take at most, if each were the longest of the dictionary."""
HEADER_BYTES = 64
LENGTH = struct.Struct("<I")
FIRST_FIELD, DATA_PAGES = 0x15, (0, 3)
"""How a header begins, and the kinds of pages that hold rows."""
CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "ZSTD": "zstd", "BROTLI": "brotli", "LZ4": "lz4_raw"}
TRUE, FALSE, INT, STRUCT = 1, 2, 5, 12
"""The numbers of types in Thrift's compact protocol."""


class Page(NamedTuple):
    """A page that is a dictionary: where its bytes begin after its header, how many they are and become, its values."""

    begin: int
    stored: int
    inflated: int
    values: int


UNREADABLE = Page(0, 0, (1 << 31) - 1, 0)
"""A page whose header cannot be read: it may be as large as any."""


def rows_at_a_time(file: pa.NativeFile, group: pq.RowGroupMetaData, leaves: list[int]) -> int | None:
    """How many rows of a row group to decode at a time; None if all of them cannot become too large."""
    most = 0
    for chunk in map(group.column, leaves):
        if chunk.physical_type not in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
            continue
        begin = chunk.dictionary_page_offset or chunk.data_page_offset
        length = max(0, chunk.total_compressed_size)  # more was perhaps not fetched
        page = dictionary_page(file.read_at(min(HEADER_BYTES, length), begin))
        if page is None:
            continue
        values = max(chunk.num_values, group.num_rows)
        longest = page.inflated
        if values * longest > MOST_BYTES and page is not UNREADABLE:
            longest = longest_text(file.read_at(min(page.stored, length), begin + page.begin), page, chunk)
        most += values * longest
    return None if most <= MOST_BYTES else max(1, group.num_rows * MOST_BYTES // most)


def longest_text(content: bytes, page: Page, chunk: pq.ColumnChunkMetaData) -> int:
    """The bytes of the longest value of a dictionary; all of them if it cannot be read."""
    if chunk.physical_type == "FIXED_LEN_BYTE_ARRAY":
        return page.inflated // max(1, page.values)
    if chunk.compression in CODECS:
        try:
            content = pa.Codec(CODECS[chunk.compression]).decompress(content, page.inflated, asbytes=True)
        except (pa.ArrowException, OSError):
            return page.inflated
    elif chunk.compression != "UNCOMPRESSED":
        return page.inflated
    position = longest = 0
    length_at, end = LENGTH.unpack_from, len(content) - 4
    while position <= end:
        (length,) = length_at(content, position)
        if length > longest:
            longest = length
        position += length + 4
    return min(longest, page.inflated)


def dictionary_page(header: bytes) -> Page | None:
    """The dictionary that begins with this header; None if it is the header of a page of rows."""
    try:
        if header[0] == FIRST_FIELD and _number(header, 1)[0] in DATA_PAGES:
            return None
        fields, begin = _fields(header, 0)
        return Page(begin, abs(fields[3]), abs(fields[2]), fields[7])
    except (IndexError, KeyError):
        return UNREADABLE


def _fields(header: bytes, at: int) -> tuple[dict[int, int], int]:
    """The numbers of a struct by the number of their field, and where it ends. An inner struct counts as its first."""
    fields, number = dict[int, int](), 0
    while header[at]:
        kind, step = header[at] & 15, header[at] >> 4
        at += 1
        if step:
            number += step
        else:
            number, at = _number(header, at)
        if kind == STRUCT:
            inner, at = _fields(header, at)
            fields[number] = inner.get(1, 0)
        elif kind == INT:
            fields[number], at = _number(header, at)
        elif kind not in (TRUE, FALSE):
            raise IndexError(kind)
    return fields, at + 1


def _number(header: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = header[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
