"""How much memory a Parquet row group takes: pages become large, and texts that rows repeat are stored once.

What the footer says of sizes is not asked, only the headers of pages, which have to be true to be decoded.
"""

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from midepoch.formats.dictionary_codes import most_uses
from midepoch.formats.inflation import InflationError, check_inflation
from midepoch.formats.page_content import LZ4, UncountableError, beginning_of, contents_of
from midepoch.formats.parquet_pages import Page, Pages, UnreadablePageError, pages_of
from midepoch.formats.parquet_writers import mistakes_in
from midepoch.formats.shared_prefixes import LENGTHS_FIRST, PREFIXES, shared_bytes
from midepoch.storage.objects import Span

MOST_BYTES = 1 << 30
"""What the texts that are decoded at a time may take at most, if each were the longest of the dictionary."""
FEW_STEPS = 16
"""A row group that fits so many steps, even if each text were all of its dictionary, is decoded in steps: that costs
less than to decompress the dictionaries first, only to know their longest texts."""
MOST_LENGTHS = 8 << 30
"""What Arrow allocates at most for the lengths of texts, because a forged page may say that it has so many."""
LENGTHS_END, BYTES_OF_LENGTH = 4096, 3
"""Levels and lengths of usual texts end after so many bytes, and so many more for each text."""
LENGTH = struct.Struct("<I")
TEXTS = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
WIDTHS = {"BOOLEAN": 0, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
"""The bytes of a number in memory, by its physical type, and of the offset of a text."""
LEVEL_BYTES = 4
"""The bytes of the levels of a value inside of lists, while it is decoded."""


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
            WIDTHS.get(column.physical_type, max(4, column.length)),
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
    always_compressed, padding = mistakes_in(metadata)
    inflated = 0
    flat, nested, sharing = list[_Repeats](), list[_Repeats](), list[_Sharing]()
    for leaf in leaves:
        is_nested = leaf.levels[1]
        if not is_nested and leaf.kind not in TEXTS:  # as many values as rows, whatever its pages say
            inflated += leaf.width * rows
            continue
        chunk = group.column(leaf.number)
        begin, end = span_of(chunk)
        try:
            pages = pages_of(
                file,
                begin,
                end + padding,
                chunk.num_values,
                has_codec=chunk.compression != "UNCOMPRESSED",
                always_compressed=always_compressed,
            )
        except UnreadablePageError:
            raise InflationError(
                f"a page of the column {leaf.path!r} cannot be read, so that its size is unknown: the file is damaged. "
                "Copy or write it again"
            ) from None
        inflated += max(pages.inflated, max(leaf.width, LEVEL_BYTES) * pages.values)
        if leaf.kind in TEXTS:
            if pages.dictionary is not None and leaf.kind == "BYTE_ARRAY":
                (nested if is_nested else flat).append(_Repeats(file, pages, pages.dictionary, chunk, leaf))
            shared = [page for page in pages.data if page.encodings[0] in (LENGTHS_FIRST, PREFIXES)]
            if shared:
                sharing.append(_Sharing(file, shared, chunk, leaf))
    if inflated > limit:
        check_inflation(stored_bytes(group, leaves), inflated, limit)
    if sharing:
        inflated += sum(texts.bytes_besides() for texts in sharing)
        check_inflation(stored_bytes(group, leaves), inflated, limit)
    return Decoding(_rows_at_a_time(flat) if flat else None, _too_large_for_a_row(nested) if nested else ())


def _too_large_for_a_row(repeats: Sequence["_Repeats"]) -> tuple[str, ...]:
    """The columns inside of lists that are too large together, if a single row has all of their texts."""
    coded, room = list[str](), MOST_BYTES
    for texts in repeats:
        sizes = (size() for size in (texts.most, texts.most_by_codes, texts.most_by_looking))
        size = next((size for size in sizes if size <= room), None)
        if size is None:
            coded.append(texts.leaf.path)
        else:
            room -= size
    return tuple(coded)


def _rows_at_a_time(repeats: Sequence["_Repeats"]) -> int | None:
    """How many rows of columns outside of lists are decoded at a time; None for all of them."""
    values = longest = 0
    for texts in repeats:
        values, longest = max(values, texts.pages.values), longest + texts.dictionary.inflated
    if values * longest <= MOST_BYTES or sum(texts.most_by_codes() for texts in repeats) <= MOST_BYTES:
        return None
    if values * longest > FEW_STEPS * MOST_BYTES:
        longest = sum(texts.longest() for texts in repeats)
    return None if values * longest <= MOST_BYTES else max(1, MOST_BYTES // longest)


def stored_bytes(group: pq.RowGroupMetaData, leaves: Sequence[Leaf]) -> int:
    """How many bytes of the file the columns of a row group take. Those of forged columns may be the same ones."""
    stored = counted = 0
    for begin, end in sorted(span_of(group.column(leaf.number)) for leaf in leaves):
        stored += max(0, end - max(begin, counted))
        counted = max(counted, end)
    return stored


def span_of(chunk: pq.ColumnChunkMetaData) -> Span:
    """Where a column of a row group lies. Its dictionary comes first, if it has one, or else it counts for nothing."""
    begin, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
    if dictionary is not None and 0 < dictionary < begin:
        begin = dictionary
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

    def most(self) -> int:
        """How many bytes the values are at most, if each were all of the dictionary."""
        return self.pages.values * self.dictionary.inflated

    def most_by_codes(self) -> int:
        """The same if each text were used as often as the one that is used most."""
        uses = most_uses(self.pages.data, self.dictionary.values, self.leaf.levels, self._content)
        return self.most() if uses is None else min(self.most(), uses * self.dictionary.inflated)

    def most_by_looking(self) -> int:
        """The same if each were the longest text of the dictionary."""
        return self.pages.values * self.longest()

    def longest(self) -> int:
        """The bytes of the longest text of the dictionary, which has to be decompressed."""
        content = self._content(self.dictionary)
        return self.dictionary.inflated if content is None else longest_text(content)

    def _content(self, page: Page) -> bytes | None:
        """The bytes of a page once decompressed; None if they are not known for sure."""
        contents = contents_of(self.file, page, self.chunk.compression)
        return contents[0] if len(contents) == 1 else None


class _Sharing(NamedTuple):
    """A column of texts of which some pages have the lengths before the texts."""

    file: pa.NativeFile
    pages: list[Page]
    chunk: pq.ColumnChunkMetaData
    leaf: Leaf

    def bytes_besides(self) -> int:
        """How many bytes the values take besides those of their pages. Forged pages may take any number of them."""
        return sum(map(self._bytes_besides, self.pages))

    def _bytes_besides(self, page: Page) -> int:
        compression, levels = self.chunk.compression, self.leaf.levels
        beginning = beginning_of(self.file, page, compression, LENGTHS_END + BYTES_OF_LENGTH * page.values)
        if beginning is not None:
            with suppress(UncountableError):
                return shared_bytes(beginning, page, levels)
        contents = contents_of(self.file, page, compression)
        try:
            if not contents and compression in LZ4:  # Arrow may have another way to decompress it
                raise UncountableError
            # Without any, Arrow cannot decode the page either.
            return max((shared_bytes(content, page, levels) for content in contents), default=0)
        except UncountableError:
            return page.values * page.inflated + MOST_LENGTHS


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
