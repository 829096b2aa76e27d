"""The few pieces of a flatbuffer that Arrow's message headers need."""

import struct
from collections.abc import Iterator


def table_at(data: bytes, position: int) -> int:
    """Where the table or vector begins to which the offset at ``position`` points."""
    (distance,) = struct.unpack_from("<I", data, position)
    return position + int(distance)


def field_at(data: bytes, table: int, number: int) -> int:
    """The position of field ``number`` of a table, or 0 if the field has its default."""
    vtable: int = table - struct.unpack_from("<i", data, table)[0]
    entry = 4 + 2 * number
    if entry >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    distance: int = struct.unpack_from("<H", data, vtable + entry)[0]
    return table + distance if distance else 0


def long_at(data: bytes, position: int) -> int:
    """The 64-bit integer at a position; 0, the default, for position 0."""
    return int(struct.unpack_from("<q", data, position)[0]) if position else 0


def pairs_at(data: bytes, position: int) -> Iterator[tuple[int, int]]:
    """The elements of a vector of structs of two 64-bit integers; none for position 0."""
    if not position:
        return iter(())
    vector = table_at(data, position)
    (count,) = struct.unpack_from("<I", data, vector)
    return struct.iter_unpack("<qq", data[vector + 4 : vector + 4 + 16 * count])
