"""How much memory a Parquet row group takes: pages become large, and a dictionary holds texts once that rows repeat.

What the footer says of sizes is not asked, only the headers of pages, which have to be true to be decoded.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from midepoch.formats.dictionary_codes import most_uses
from midepoch.formats.inflation import check_inflation
from midepoch.formats.parquet_pages import Page, Pages, UnreadablePageError, pages_of
from midepoch.storage.ranges import Span

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


class Leaf(NamedTuple):
    """A column without inner columns, as the schema describes it."""

    number: int
    path: str
    kind: str
    width: int
    """The bytes of a value in memory, besides those of a text."""
    levels: tuple[bool, bool]
    """Whether it has definition levels and repetition levels: values that may be null, and lists."""


def leaves_of(metadata: pq.FileMetaData, numbers: Sequence[int]) -> list[Leaf]:
    """Some columns of a file."""
    columns = [(number, metadata.schema.column(number)) for number in numbers]
    return [
        Leaf(
            number,
            column.path,
            column.physical_type,
            column.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else WIDTHS.get(column.physical_type, 0),
            (column.max_definition_level > 0, column.max_repetition_level > 0),
        )
        for number, column in columns
    ]


def decoding_of(
    file: pa.NativeFile, metadata: pq.FileMetaData, number: int, leaves: Sequence[Leaf], limit: int
) -> Decoding:
    """How to decode columns of a row group; raise ``InflationError`` if its pages say that they become too large."""
    group = metadata.row_group(number)
    rows = group.num_rows
    inflated = texts = 0
    coded, repeats = list[str](), list[_Repeats]()
    for leaf in leaves:
        is_nested = leaf.levels[1]
        if not is_nested and leaf.kind != "BYTE_ARRAY":  # as many values as rows, whatever its pages say
            inflated += leaf.width * rows
            continue
        chunk = group.column(leaf.number)
        values = chunk.num_values
        try:
            pages = pages_of(file, *_span(chunk), values)
        except UnreadablePageError:  # decoding it fails sooner or later
            texts += LARGEST * max(values, rows)
            continue
        inflated += max(pages.inflated, leaf.width * pages.values)
        if leaf.kind != "BYTE_ARRAY" or pages.dictionary is None:
            continue
        repeat = _Repeats(file, pages, pages.dictionary, chunk, leaf)
        if is_nested and min(repeat.most, repeat.most_by_codes(), repeat.most_by_looking()) > MOST_BYTES:
            coded.append(leaf.path)
        else:
            repeats.append(repeat)
    if inflated > limit:
        check_inflation(stored_bytes(group, leaves), inflated, limit)
    most = sum(repeat.most for repeat in repeats)
    if most > MOST_BYTES:
        most = sum(repeat.most_by_codes() for repeat in repeats)
    texts += most if most <= FEW_STEPS * MOST_BYTES else sum(repeat.most_by_looking() for repeat in repeats)
    return Decoding(None if texts <= MOST_BYTES else max(1, rows * MOST_BYTES // texts), tuple(coded))


def stored_bytes(group: pq.RowGroupMetaData, leaves: Sequence[Leaf]) -> int:
    """How many bytes of the file the columns of a row group take."""
    spans = (_span(group.column(leaf.number)) for leaf in leaves)
    return sum(end - begin for begin, end in spans)


def _span(chunk: pq.ColumnChunkMetaData) -> Span:
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    return begin, begin + max(0, chunk.total_compressed_size)


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
    pages: Pages
    dictionary: Page
    chunk: pq.ColumnChunkMetaData
    leaf: Leaf

    @property
    def most(self) -> int:
        """How many bytes the values are at most, if each were all of the dictionary."""
        return self.pages.values * self.dictionary.inflated

    def most_by_codes(self) -> int:
        """The same if each text were used as often as the one that is used most."""
        uses = most_uses(self.pages.data, self.dictionary.values, self.leaf.levels, self._content)
        return self.most if uses is None else min(self.most, uses * self.dictionary.inflated)

    def most_by_looking(self) -> int:
        """The same if each were the longest text of the dictionary."""
        content = self._content(self.dictionary)
        return self.most if content is None else self.pages.values * longest_text(content)

    def _content(self, page: Page) -> bytes | None:
        """The bytes of a page once decompressed; None if they cannot be read."""
        content = page.content or self.file.read_at(page.stored, page.begin)
        compression = self.chunk.compression
        if compression == "UNCOMPRESSED":
            return content
        try:
            return bytes(pa.Codec(CODECS[compression]).decompress(content, page.inflated, asbytes=True))
        except (KeyError, pa.ArrowException, OSError):
            return None


def longest_text(content: bytes) -> int:
    """The bytes of the longest value of a dictionary."""
    position = longest = 0
    length_at, end = LENGTH.unpack_from, len(content) - 4
    while position <= end:
        (length,) = length_at(content, position)
        if length > longest:
            longest = length
        position += length + 4
    return min(longest, len(content))
