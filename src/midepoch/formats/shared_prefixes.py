"""How large texts become that share their beginning with the text before them, counted before they are decoded.

Their page has the length of each beginning, as differences in few bits (the encoding DELTA_BINARY_PACKED), and after
that the rest of each text: a text of some MB that many rows repeat takes a few bytes for each of them.
"""

import struct
from typing import NamedTuple

import numpy as np

from midepoch._common.hashing import I64
from midepoch.formats.page_content import UncountableError, values_at
from midepoch.formats.parquet_pages import Page, unsigned

LENGTHS_FIRST, PREFIXES = 6, 7
"""Encodings of texts by their numbers: all lengths before the texts, and the same without what a text shares with the
one before."""
MOST_IN_BLOCK, AT_A_TIME = 1 << 16, 1 << 15
"""Writers have 128 to a few thousand lengths in a block. So many lengths or more are decoded at a time."""
MOST_BITS, LONGEST = 32, (1 << 31) - 1


class Lengths(NamedTuple):
    """The beginning of lengths that are stored as differences, and where their blocks begin."""

    per_block: int
    parts: int
    """A block has so many parts, each with bits of its own."""
    values: int
    first: int
    at: int


def shared_bytes(content: bytes, page: Page, levels: tuple[bool, bool]) -> int:
    """How many bytes the texts of a page take in memory besides its own, because texts share their beginnings.

    Raise ``UncountableError`` if that cannot be said, or if the page has more lengths than values: as many would be
    decoded. ``levels`` says whether the column has definition levels and repetition levels. The beginning of the
    content may be enough.
    """
    try:
        at = values_at(content, page, levels)
        if at >= max(len(content), page.inflated):  # all values are null
            return 0
        total = 0
        if page.encodings[0] == PREFIXES:
            total, at = sum_of_lengths(content, at, page.values)
        _lengths_at(content, at, page.values)
    except (IndexError, struct.error):  # forged pages may end early
        raise UncountableError from None
    return total


def sum_of_lengths(content: bytes, at: int, most: int) -> tuple[int, int]:
    """The sum of the lengths that begin here, which are ``most`` at most, and where they end."""
    lengths = _lengths_at(content, at, most)
    total, last, left, at = 0, lengths.first, lengths.values, lengths.at
    if left > 0:
        total, left = last, left - 1
    while left > 0:
        count = min(left, max(1, AT_A_TIME // lengths.per_block) * lengths.per_block)
        differences, at = _differences(content, lengths, at, count)
        values = np.cumsum(differences) + last
        if values.view(np.uint64).max() > LONGEST:  # or negative
            raise UncountableError
        total, last, left = total + int(values.sum()), int(values[-1]), left - count
    return total, at


def _lengths_at(content: bytes, at: int, most: int) -> Lengths:
    per_block, at = unsigned(content, at)
    parts, at = unsigned(content, at)
    count, at = unsigned(content, at)
    first, at = _signed(content, at)
    is_usual = 0 < parts <= per_block <= MOST_IN_BLOCK and per_block % (32 * parts) == 0
    if not is_usual or count > most or not 0 <= first <= LONGEST:
        raise UncountableError
    return Lengths(per_block, parts, count, first, at)


def _differences(content: bytes, lengths: Lengths, at: int, count: int) -> tuple[I64, int]:
    """The next differences, and where they end. The last block has only the parts that are needed."""
    parts, per_part = lengths.parts, lengths.per_block // lengths.parts
    begin, left = at, -(-count // per_part)
    least, blocks, last_parts = list[int](), list[int](), left % parts or parts
    while left > 0:
        low, at = _signed(content, at)
        least.append(low)
        blocks.append(at - begin)
        at += parts + per_part // 8 * sum(content[at : at + min(left, parts)])
        left -= parts
    if at > len(content):
        raise UncountableError
    data = np.frombuffer(content[begin:at] + bytes(8), np.uint8)
    block = np.array(blocks, np.int64)[:, None]
    widths = data[block + np.arange(parts)].astype(np.int64)
    widths[-1, last_parts:] = 0
    if widths.max() > MOST_BITS:
        raise UncountableError
    begins = block + parts + per_part // 8 * (np.cumsum(widths, axis=1) - widths)
    bit = 8 * begins[:, :, None] + np.arange(per_part) * widths[:, :, None]
    bytes_from = np.ascontiguousarray(np.ndarray(len(data) - 7, "<i8", data, strides=(1,)))
    packed = bytes_from.take(bit >> 3) >> (bit & 7) & (1 << widths[:, :, None]) - 1
    return (packed + np.array(least, np.int64)[:, None, None]).ravel()[:count], at


def _signed(content: bytes, at: int) -> tuple[int, int]:
    value, at = unsigned(content, at)
    if value > 2 * LONGEST + 1:
        raise UncountableError
    return (value >> 1) ^ -(value & 1), at
