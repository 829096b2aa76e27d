"""The pages of a column of a Parquet row group, from their headers: what they really have, whatever the footer says."""

from typing import NamedTuple

import pyarrow as pa

DICTIONARY, DATA, DATA_V2 = 2, 0, 3
"""The kinds of pages that hold values. Others hold none."""
VALUES_IN = {DATA: 5, DICTIONARY: 7, DATA_V2: 8}
"""The field of a header that says more about a kind of page. It is a struct that begins with the number of values."""
HEADER_BYTES, LONGEST_HEADER = 8192, 1 << 24
NUMBERS, BINARY, STRUCT = (5, 6, 4), 8, 12
"""The types of Thrift's compact protocol, by their numbers."""
WIDTHS = {1: 0, 2: 0, 3: 1, 7: 8}
"""Other types, with their bytes: true, false, a byte and a float."""


class Page(NamedTuple):
    """A page: where its bytes begin after its header, how many they are and become, and how many values it has."""

    kind: int
    begin: int
    stored: int
    inflated: int
    values: int
    encodings: tuple[int | None, ...] = ()
    """How its values, its definition levels and its repetition levels are encoded. Known only if it is ``DATA``."""
    content: bytes = b""
    """Its bytes as they are stored, if they were read together with its header."""


class Pages(NamedTuple):
    """All pages of a column: the bytes and values of those with rows, and the page with the dictionary, if any."""

    inflated: int
    values: int
    dictionary: Page | None
    data: list[Page]


class UnreadablePageError(Exception):
    """There is no header where a page should begin."""


def pages_of(file: pa.NativeFile, begin: int, end: int, most: int) -> Pages:
    """The pages from ``begin`` on, until ``most`` values have been found, as Arrow reads them.

    No byte after ``end`` is read: more was perhaps not fetched.
    """
    inflated = values = 0
    dictionary, data = None, list[Page]()
    while values < most and begin < end:
        page = page_at(file, begin, end)
        if page.kind == DICTIONARY:
            if dictionary is not None:
                raise UnreadablePageError
            dictionary = page
        elif page.kind in (DATA, DATA_V2):
            values += page.values
            data.append(page)
        inflated += page.inflated
        begin = page.begin + page.stored
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
        except (IndexError, KeyError):
            if length > min(LONGEST_HEADER, end - begin):
                raise UnreadablePageError from None
            length *= 16
            continue
        if min(stored, inflated, values) < 0:
            raise UnreadablePageError
        encodings = (of_kind.get(2), of_kind.get(3), of_kind.get(4)) if kind == DATA else ()
        content = header[size : size + stored] if size + stored <= len(header) else b""
        return Page(kind, begin + size, stored, inflated, values, encodings, content)


def _fields(header: bytes, at: int) -> tuple[dict[int, int], dict[int, dict[int, int]], int]:
    """The numbers of a struct by the number of their field, those of its inner structs, and where it ends."""
    fields, structs, number = dict[int, int](), dict[int, dict[int, int]](), 0
    while head := header[at]:
        kind, step = head & 15, head >> 4
        at += 1
        if step:
            number += step
        else:
            number, at = _number(header, at)
        if kind in NUMBERS:
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
        else:
            at += WIDTHS[kind]
    return fields, structs, at + 1


def _number(header: bytes, at: int) -> tuple[int, int]:
    value, at = unsigned(header, at)
    return (value >> 1) ^ -(value & 1), at


def unsigned(header: bytes, at: int) -> tuple[int, int]:
    """The number of variable length that begins here, and where it ends."""
    value = shift = 0
    while True:
        byte = header[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
