"""How often the rows of a Parquet column use the same text of its dictionary, counted from their codes.

Texts that differ are each used once, however many rows there are: so they cannot become larger than their dictionary.
"""

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from midepoch.formats.page_content import UncountableError, values_at
from midepoch.formats.parquet_pages import DATA, Page, unsigned

PLAIN, LENGTHS_FIRST, CODED = 0, 6, (2, 8)
"""Encodings by their numbers: two of texts as they are, and those of codes."""
MOST_CODES, MOST_RUNS, MOST_TEXTS, MOST_BITS = 1 << 17, 4096, 1 << 20, 32
"""Of larger pages and dictionaries nothing is counted, because that would take too long."""
PADDING = 7
"""Codes come in groups of eight, so the last group may have some that no row uses."""
LENGTH = struct.Struct("<I")


class Codes(NamedTuple):
    """The codes of a page: some that come many times in a row, each with how often, and others with few bits each."""

    repeated: list[tuple[int, int]]
    packed: bytes
    bits: int


def most_uses(
    pages: Sequence[Page], texts: int, levels: tuple[bool, bool], read: Callable[[Page], bytes | None]
) -> int | None:
    """How often one of ``texts`` texts of a dictionary is used at most; None if that cannot be said.

    ``levels`` says whether the column has definition levels and repetition levels. ``read`` returns the bytes of a page
    once decompressed, if it can. Codes that Arrow would not decode may be counted too, and none is left out.
    """
    try:
        coded = [page for page in pages if _has_codes(page)]
        if texts > MOST_TEXTS or sum(page.values for page in coded) > MOST_CODES:
            return None
        codes = [_codes(read(page), page, levels) for page in coded]
        # The threads that decode wait for each other where NumPy is used, and most texts differ.
        if len(codes) == 1 and not codes[0].repeated and _are_rising(codes[0]):
            return 1 + PADDING
        uses = np.zeros(max(1, texts), np.int64)
        for one in codes:
            for code, count in one.repeated:
                uses[code] += count
            numbers = _unpacked(one)
            if numbers.max(initial=0) >= len(uses):
                return None
            uses += np.bincount(numbers, minlength=len(uses))
    except (UncountableError, IndexError, struct.error):  # forged pages may end early or have codes that no text has
        return None
    return int(uses.max())


def _has_codes(page: Page) -> bool:
    """True if a page has codes that can be counted, and false if it has texts."""
    if page.kind != DATA:
        raise UncountableError
    if page.encodings[0] in (PLAIN, LENGTHS_FIRST):
        return False
    if page.encodings[0] not in CODED or page.inflated > LENGTH.size * MOST_CODES:
        raise UncountableError
    return True


def _codes(content: bytes | None, page: Page, levels: tuple[bool, bool]) -> Codes:
    """The codes of a page."""
    if content is None:
        raise UncountableError
    at, values = values_at(content, page, levels), page.values
    if at >= len(content):  # all values are null
        return Codes([], b"", 1)
    bits, at = content[at], at + 1
    repeated, packed = list[tuple[int, int]](), list[bytes]()
    while at < len(content):
        header, at = unsigned(content, at)
        size = (header >> 1) * bits if header & 1 else (bits + 7) // 8
        if header & 1:
            packed.append(content[at : at + size])
        else:
            repeated.append((int.from_bytes(content[at : at + size], "little"), min(header >> 1, values)))
        at += size
        if len(repeated) + len(packed) > MOST_RUNS:
            raise UncountableError
    if bits > MOST_BITS:
        raise UncountableError
    if bits == 0:
        return Codes([(0, values)], b"", 1)
    return Codes(repeated, b"".join(packed)[: (values * bits + 7) // 8], bits)


def _are_rising(codes: Codes) -> bool:
    """True if codes count from 0 on, as far as whole groups of eight: each row has a text that no row before it has."""
    whole = len(codes.packed) // codes.bits * codes.bits
    return codes.packed[:whole] == _rising(codes.bits)[:whole]


@cache
def _rising(bits: int) -> bytes:
    """All codes of so many bits, packed."""
    codes = np.arange(1 << min(bits, MOST_CODES.bit_length() - 1), dtype="<u4")
    unpacked = np.unpackbits(codes.view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    return np.packbits(unpacked[:, :bits], bitorder="little").tobytes()


def _unpacked(codes: Codes) -> "npt.NDArray[np.uint16] | npt.NDArray[np.uint32]":
    """The packed codes as numbers."""
    bits = np.unpackbits(np.frombuffer(codes.packed, np.uint8), bitorder="little")
    count, kind = len(bits) // codes.bits, np.dtype("<u2" if codes.bits <= 16 else "<u4")
    padded = np.zeros((count, 8 * kind.itemsize), np.uint8)
    padded[:, : codes.bits] = bits[: count * codes.bits].reshape(count, codes.bits)
    return np.packbits(padded, bitorder="little").view(kind)
