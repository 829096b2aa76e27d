"""How often the rows of a Parquet column use the same text of its dictionary, counted from their codes.

Texts that differ are each used once, however many rows there are: so they cannot become larger than their dictionary.
"""

import struct
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from midepoch._common.types import I64
from midepoch.formats.parquet_pages import Page, unsigned

PLAIN, LENGTHS_FIRST, CODED, RUNS = 0, 6, (2, 8), 3
"""Encodings by their numbers: two of texts as they are, those of codes, and that of levels."""
MOST_CODES, MOST_RUNS, MOST_TEXTS = 1 << 17, 4096, 1 << 20
"""Of larger pages and dictionaries nothing is counted, because that would take too long."""
LENGTH = struct.Struct("<I")


def most_uses(
    pages: Sequence[Page], texts: int, levels: tuple[bool, bool], read: Callable[[Page], bytes | None]
) -> int | None:
    """How often one of ``texts`` texts of a dictionary is used at most; None if that cannot be said.

    ``levels`` says whether the column has definition levels and repetition levels. ``read`` returns the bytes of a page
    once decompressed, if it can. Codes that Arrow would not decode may be counted too, and none is left out.
    """
    if texts > MOST_TEXTS or sum(page.values for page in pages) > MOST_CODES:
        return None
    uses = np.zeros(max(1, texts), np.int64)
    for page in pages:
        encoding, *of_levels = page.encodings or (None,)
        if encoding in (PLAIN, LENGTHS_FIRST):
            continue
        are_runs = all(one == RUNS for one, exists in zip(of_levels, levels, strict=False) if exists)
        if encoding not in CODED or not are_runs or page.inflated > LENGTH.size * MOST_CODES:
            return None
        content = read(page)
        try:
            if content is None or not _count(content, sum(levels), page.values, uses):
                return None
        except (IndexError, struct.error):
            return None
    return int(uses.max())


def _count(content: bytes, levels: int, values: int, uses: I64) -> bool:
    """Count the codes of a page, and return whether that was possible. Levels come first, each with its length."""
    at = 0
    for _ in range(levels):
        at += LENGTH.size + LENGTH.unpack_from(content, at)[0]
    if at >= len(content):  # all values are null
        return True
    width, at = content[at], at + 1
    packed, runs = list[bytes](), 0
    while at < len(content) and runs < MOST_RUNS:
        header, at = unsigned(content, at)
        size = (header >> 1) * width if header & 1 else (width + 7) // 8
        if header & 1:
            packed.append(content[at : at + size])
        else:
            uses[int.from_bytes(content[at : at + size], "little")] += min(header >> 1, values)
        at, runs = at + size, runs + 1
    if runs == MOST_RUNS or width > 32:
        return False
    if width == 0:
        uses[0] += values
    elif packed:
        codes = _unpacked(b"".join(packed)[: (values * width + 7) // 8], width)
        if codes.max(initial=0) >= len(uses):
            return False
        uses += np.bincount(codes, minlength=len(uses))
    return True


def _unpacked(packed: bytes, width: int) -> "npt.NDArray[np.uint16] | npt.NDArray[np.uint32]":
    """Numbers of ``width`` bits each."""
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    count, kind = len(bits) // width, np.dtype("<u2" if width <= 16 else "<u4")
    padded = np.zeros((count, 8 * kind.itemsize), np.uint8)
    padded[:, :width] = bits[: count * width].reshape(count, width)
    return np.packbits(padded, bitorder="little").view(kind)
