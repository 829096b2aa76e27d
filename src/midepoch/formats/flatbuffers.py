"""The few pieces of a flatbuffer that Arrow's message headers need."""

import struct
from collections.abc import Iterator

_INT, _UNSIGNED, _LONG, _SIX_SHORTS = (struct.Struct(f"<{kind}").unpack_from for kind in ("i", "I", "q", "6H"))


def table_at(data: bytes, position: int) -> int:
    """Where the table or vector begins to which the offset at ``position`` points."""
    return position + int(_UNSIGNED(data, position)[0])


def field_at(data: bytes, table: int, number: int) -> int:
    """The position of field ``number`` of a table, or 0 if the field has its default."""
    vtable: int = table - struct.unpack_from("<i", data, table)[0]
    entry = 4 + 2 * number
    if entry >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    distance: int = struct.unpack_from("<H", data, vtable + entry)[0]
    return table + distance if distance else 0


def four_fields_at(data: bytes, table: int) -> tuple[int, int, int, int]:
    """The positions of the first four fields of a table, as :func:`field_at` has them, several times as fast."""
    vtable: int = table - _INT(data, table)[0]
    try:
        size, _, first, second, third, fourth = _SIX_SHORTS(data, vtable)
    except struct.error:  # the layout ends with the data, and has fewer fields
        size = 0
    if size < 10:
        first, second, third, fourth = (field_at(data, table, number) for number in range(4))
        return first, second, third, fourth
    return (
        table + first if first else 0,
        table + second if second else 0,
        table + third if third else 0,
        table + fourth if fourth and size >= 12 else 0,
    )


def long_at(data: bytes, position: int) -> int:
    """The 64-bit integer at a position; 0, the default, for position 0."""
    return int(_LONG(data, position)[0]) if position else 0


def pairs_at(data: bytes, position: int) -> Iterator[tuple[int, int]]:
    """The elements of a vector of structs of two 64-bit integers; none for position 0."""
    if not position:
        return iter(())
    vector = table_at(data, position)
    (count,) = struct.unpack_from("<I", data, vector)
    return struct.iter_unpack("<qq", data[vector + 4 : vector + 4 + 16 * count])
