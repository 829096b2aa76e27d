"""The pages of a column of a Parquet row group, from their headers: what they really have, whatever the footer says."""

from typing import NamedTuple

import pyarrow as pa

DICTIONARY, DATA, DATA_V2 = 2, 0, 3
"""The kinds of pages that hold values. Others hold none."""
VALUES_IN = {DATA: 5, DICTIONARY: 7, DATA_V2: 8}
"""The field of a header that says more about a kind of page. It is a struct that begins with the number of values."""
HEADER_BYTES, LONGEST_HEADER = 8192, 1 << 24
TRUE, FALSE, INT32, INTEGERS, BINARY, STRUCT = 1, 2, 5, (4, 5, 6), 8, 12
"""The types of Thrift's compact protocol, by their numbers. A header has no integers but those of 32 bits; others are
passed over, as Arrow does."""
WIDTHS = {3: 1, 7: 8}
"""Other types, with their bytes: a byte and a float."""
MOST_FIELDS, MOST_SHIFT = (1 << 15) - 1, 63
"""Larger numbers of fields are other ones to Arrow, which cuts them off. Numbers have at most 64 bits."""


class Page(NamedTuple):
    """A page: where its bytes begin after its header, how many they are and become, and how many values it has."""

    kind: int
    begin: int
    stored: int
    inflated: int
    values: int
    encodings: tuple[int | None, ...] = ()
    """How its values, its definition levels and its repetition levels are encoded: only the values of ``DATA_V2``."""
    content: bytes = b""
    """Its bytes as they are stored, if they were read together with its header."""
    level_bytes: int = 0
    """The bytes of the levels of ``DATA_V2``. They come first and are not compressed."""
    is_compressed: bool | None = True
    """False if its values are not compressed, although other pages of the column are; None if that is not sure."""


class Pages(NamedTuple):
    """All pages of a column: the bytes and values of those with rows, and the page with the dictionary, if any."""

    inflated: int
    values: int
    dictionary: Page | None
    data: list[Page]


class UnreadablePageError(Exception):
    """There is no header where a page should begin."""


def pages_of(
    file: pa.NativeFile,
    begin: int,
    end: int,
    most: int,
    *,
    has_codec: bool = True,
    always_compressed: bool | None = False,
) -> Pages:
    """The pages from ``begin`` on, until ``most`` values have been found, as Arrow reads them.

    Without a codec no page of the column is compressed. ``always_compressed`` says what pages are that are said not to
    be compressed, although the column has one; None if that is not sure.

    No byte after ``end`` is read: more was perhaps not fetched. It raises ``UnreadablePageError`` if there are fewer
    values, because Arrow may find others after the end.
    """
    inflated = values = 0
    dictionary, data = None, list[Page]()
    while values < most and begin < end:
        page = page_at(file, begin, end)
        if not page.is_compressed and always_compressed is not False:
            page = page._replace(is_compressed=always_compressed)
        if not has_codec or page.is_compressed is False:
            page = page._replace(inflated=page.stored)  # whatever its header says, which Arrow does not ask
        if page.kind == DICTIONARY:
            if dictionary is not None:
                raise UnreadablePageError
            dictionary = page
        elif page.kind in (DATA, DATA_V2):
            values += page.values
            data.append(page)
        inflated += page.inflated
        begin = page.begin + page.stored
    if values < most:
        raise UnreadablePageError
    return Pages(inflated, values, dictionary, data)


def page_at(file: pa.NativeFile, begin: int, end: int) -> Page:
    """The page that begins here. Its statistics may make a header long."""
    length = HEADER_BYTES
    while True:
        header = file.read_at(min(length, end - begin), begin)
        try:
            fields, structs, size = _fields(header, 0)
            kind, inflated, stored = fields[1], fields[2], fields[3]
            of_kind = structs[VALUES_IN[kind]] if kind in VALUES_IN else {}
            values = of_kind.get(1, 0)
        except (IndexError, KeyError, RecursionError):
            if length > min(LONGEST_HEADER, end - begin):
                raise UnreadablePageError from None
            length *= 16
            continue
        if stored < 0 or inflated < 0 or values < 0:
            raise UnreadablePageError
        content = header[size : size + stored] if size + stored <= len(header) else b""
        encodings: tuple[int | None, ...] = ()
        level_bytes, is_compressed = 0, True
        if kind == DATA:
            encodings = of_kind.get(2), of_kind.get(3), of_kind.get(4)
        elif kind == DATA_V2:
            encodings, levels = (of_kind.get(4),), (of_kind.get(5, 0), of_kind.get(6, 0))
            if min(levels) < 0:
                raise UnreadablePageError
            level_bytes, is_compressed = sum(levels), of_kind.get(7, TRUE) == TRUE
        return Page(kind, begin + size, stored, inflated, values, encodings, content, level_bytes, is_compressed)


def _fields(header: bytes, at: int) -> tuple[dict[int, int], dict[int, dict[int, int]], int]:
    """The numbers of a struct by the number of their field, those of its inner structs, and where it ends."""
    fields: dict[int, int] = {}
    structs: dict[int, dict[int, int]] = {}
    number = 0
    while head := header[at]:
        kind, step = head & 15, head >> 4
        at += 1
        if step:
            number += step
        else:
            before = number
            number, at = _number(header, at)
            if number <= before:  # a field that comes twice may be another one to Arrow
                raise KeyError(number)
        if kind == INT32:
            value = header[at]
            if value < 0x80:  # most are short
                fields[number], at = (value >> 1) ^ -(value & 1), at + 1
            else:
                fields[number], at = _number(header, at)
        elif kind == BINARY:
            length, at = unsigned(header, at)
            at += length
        elif kind == STRUCT:
            structs[number], _, at = _fields(header, at)
        elif kind in INTEGERS:
            while header[at] >= 0x80:
                at += 1
            at += 1
        elif kind in (TRUE, FALSE):
            fields[number] = kind
        else:
            at += WIDTHS[kind]
    if number > MOST_FIELDS:
        raise KeyError(number)
    return fields, structs, at + 1


def _number(header: bytes, at: int) -> tuple[int, int]:
    value, at = unsigned(header, at)
    if value >> 32:  # Arrow would cut it off
        raise KeyError(value)
    return (value >> 1) ^ -(value & 1), at


def unsigned(header: bytes, at: int) -> tuple[int, int]:
    """The number of variable length that begins here, and where it ends. It raises ``IndexError`` if it has no end."""
    value = shift = 0
    while shift <= MOST_SHIFT:
        byte = header[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise IndexError
