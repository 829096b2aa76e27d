"""Limits of what a few bytes of a file may become in memory: one record of text, and one block once decompressed."""

import struct
from collections.abc import Callable

from midepoch.formats.flatbuffers import field_at, pairs_at, table_at

MAX_RECORD_BYTES = 512 << 20
"""The default of ``max_record_bytes``."""
NO_LIMIT = (1 << 63) - 1
"""The limit of files that are trusted. What they become is not looked at."""
MOST_TIMES = 100
"""A block that grows less than this many times has no limit: no small file becomes large by that."""
CONTINUATION = b"\xff\xff\xff\xff"
DICTIONARY, RECORD_BATCH = 2, 3


class InflationError(Exception):
    """A block would take too much memory once decompressed, or an unknown amount. The message has no file's name."""


def check_inflation(stored: int, inflated: int, limit: int) -> None:
    """Raise ``InflationError`` if ``stored`` bytes become so many that they can be meant to fill the memory."""
    if inflated > limit and inflated > MOST_TIMES * stored:
        raise InflationError(
            f"{stored:,} bytes become {inflated:,} bytes once decompressed, more than max_record_bytes ({limit:,}). If "
            "the file is trusted, pass a larger max_record_bytes to read, or None"
        )


def check_message(read: Callable[[int, int], bytes], length: int, limit: int) -> int:
    """Raise ``InflationError`` if an Arrow message of ``length`` bytes is compressed and becomes too large.

    Return how many bytes its compressed buffers become: before each of them the message states it. ``read`` reads a
    number of bytes of the message at an offset. Raise ``struct.error`` if there is no message.
    """
    head = read(8, 0)
    prefix = 8 if head.startswith(CONTINUATION) else 4
    body = prefix + struct.unpack_from("<I", head, prefix - 4)[0]
    header = read(min(body, length), 0)
    batch = _batch_table(header, prefix)
    if batch is None or not field_at(header, batch, 3):
        return 0
    inflated = 0
    for offset, size in pairs_at(header, field_at(header, batch, 2)):
        if size >= 8 and 0 <= offset <= length - body - 8:
            (stated,) = struct.unpack("<q", read(8, body + offset))
            inflated += max(0, stated)  # a negative number means that the buffer is not compressed
    check_inflation(length, inflated, limit)
    return inflated


def _batch_table(header: bytes, prefix: int) -> int | None:
    """Where the record batch of a message begins, or the one that holds the values of a dictionary."""
    message = table_at(header, prefix)
    kind_at, table = field_at(header, message, 1), field_at(header, message, 2)
    kind = header[kind_at] if kind_at and table else 0
    if kind == DICTIONARY:
        table = field_at(header, table_at(header, table), 1)
    return table_at(header, table) if kind in (DICTIONARY, RECORD_BATCH) and table else None
