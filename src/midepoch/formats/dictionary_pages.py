"""How much memory a Parquet row group takes: pages become large, and a dictionary holds texts once that rows repeat.

What the footer says of sizes is not asked, only the headers of pages, which have to be true to be decoded.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from midepoch.formats.inflation import check_inflation
from midepoch.formats.parquet_pages import Page, UnreadablePageError, pages_of

MOST_BYTES = 1 << 30
"""What the texts that are decoded at a time may take at most, if each were the longest of the dictionary."""
FEW_STEPS = 16
"""A row group that fits so many steps, even if each text were all of its dictionary, is decoded in steps: that costs
less than to decompress the dictionaries first, only to know their longest texts."""
LARGEST = (1 << 31) - 1
"""A page whose header cannot be read may be as large as any."""
LENGTH = struct.Struct("<I")
CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "ZSTD": "zstd", "BROTLI": "brotli", "LZ4": "lz4_raw"}
WIDTHS = {"INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
"""The bytes of a number in memory, by its physical type, and of the offset of a text."""


class Decoding(NamedTuple):
    """How a row group is decoded without filling the memory."""

    rows: int | None = None
    """How many rows at a time; None if all of them cannot become too large."""
    coded: tuple[str, ...] = ()
    """The texts inside of lists that are decoded as dictionaries first, because even a single row may be too large."""


def decoding_of(
    file: pa.NativeFile, metadata: pq.FileMetaData, number: int, leaves: Sequence[int], limit: int
) -> Decoding:
    """How to decode columns of a row group; raise ``InflationError`` if its pages say that they become too large."""
    group = metadata.row_group(number)
    stored = inflated = texts = 0
    coded, repeats = list[str](), list[_Repeats]()
    for leaf in leaves:
        chunk, column = group.column(leaf), metadata.schema.column(leaf)
        kind, is_nested = chunk.physical_type, column.max_repetition_level > 0
        width = column.length if kind == "FIXED_LEN_BYTE_ARRAY" else WIDTHS.get(kind, 0)
        begin = chunk.dictionary_page_offset or chunk.data_page_offset
        end = begin + max(0, chunk.total_compressed_size)
        stored += end - begin
        if not is_nested and kind != "BYTE_ARRAY":  # as many values as rows, whatever its pages say
            inflated += width * group.num_rows
            continue
        try:
            pages = pages_of(file, begin, end, chunk.num_values)
        except UnreadablePageError:  # decoding it fails sooner or later
            texts += LARGEST * max(chunk.num_values, group.num_rows)
            continue
        inflated += max(pages.inflated, width * pages.values)
        if kind != "BYTE_ARRAY" or pages.dictionary is None:
            continue
        repeat = _Repeats(file, pages.dictionary, pages.values, chunk)
        if is_nested and repeat.most > MOST_BYTES and repeat.most_by_looking() > MOST_BYTES:
            coded.append(str(column.path))
        else:
            repeats.append(repeat)
    check_inflation(stored, inflated, limit)
    most = sum(repeat.most for repeat in repeats)
    texts += most if most <= FEW_STEPS * MOST_BYTES else sum(repeat.most_by_looking() for repeat in repeats)
    return Decoding(None if texts <= MOST_BYTES else max(1, group.num_rows * MOST_BYTES // texts), tuple(coded))


def coded_bytes(data: pa.Table) -> int:
    """How many bytes the columns of a table take once dictionaries inside of them are decoded."""
    return int(data.nbytes) + sum(_coded_bytes(chunk) for column in data.columns for chunk in column.chunks)


def _coded_bytes(values: pa.Array) -> int:
    if pa.types.is_dictionary(values.type):
        import pyarrow.compute as pc  # it takes a while to load, and usual files do not need it

        lengths = pc.binary_length(values.dictionary).cast(pa.int64())
        return int(lengths.take(values.indices).sum().as_py() or 0)
    if pa.types.is_struct(values.type):
        return sum(map(_coded_bytes, values.flatten()))
    if pa.types.is_map(values.type):
        return _coded_bytes(values.keys) + _coded_bytes(values.items)
    return _coded_bytes(values.flatten()) if pa.types.is_nested(values.type) else 0


class _Repeats(NamedTuple):
    """A column of texts that repeats those of a dictionary."""

    file: pa.NativeFile
    page: Page
    values: int
    chunk: pq.ColumnChunkMetaData

    @property
    def most(self) -> int:
        """How many bytes the values are at most, if each were all of the dictionary."""
        return self.values * self.page.inflated

    def most_by_looking(self) -> int:
        """The same if each were the longest text of the dictionary."""
        content = self.file.read_at(self.page.stored, self.page.begin)
        return self.values * longest_text(content, self.page, self.chunk)


def longest_text(content: bytes, page: Page, chunk: pq.ColumnChunkMetaData) -> int:
    """The bytes of the longest value of a dictionary; all of them if it cannot be read."""
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
