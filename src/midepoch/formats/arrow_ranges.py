"""Some rows of an Arrow record batch: which bytes of the file they need, and the arrays that these bytes make.

A record batch has a few buffers for each column, and rows need a slice of each. Offsets say where the values of strings
and lists lie, so offsets are fetched first, and values in another round. Functions here do not fetch. They are
generators that yield the spans they need and receive the bytes, so all columns of all blocks share a round of requests.
"""

import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from midepoch.formats.flatbuffers import field_at, long_at, pairs_at, table_at
from midepoch.storage.objects import LEAST_BYTES, Span, joined

T = TypeVar("T")
Fetching: TypeAlias = Generator[Sequence[Span], Sequence[pa.Buffer], T]
"""Yields spans of the file, receives their bytes, and returns what they make."""

CONTINUATION = b"\xff\xff\xff\xff"
ALIGNMENT = 64
"""Ranges begin at multiples of this, so that values in memory are aligned as they are in the file."""

Kind = Literal["null", "bits", "items", "strings", "lists", "children"]
BUFFERS: Mapping[Kind, int] = {"null": 0, "bits": 2, "items": 2, "strings": 3, "lists": 2, "children": 1}
"""How many buffers a column has: validity, then values or offsets, then the bytes of strings."""

FIXED = (pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary)
LONG_OFFSETS = (pa.types.is_large_binary, pa.types.is_large_string, pa.types.is_large_list)
STRINGS = (pa.types.is_binary, pa.types.is_string, pa.types.is_large_binary, pa.types.is_large_string)
LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_map)


class Shape(NamedTuple):
    """How the values of a type are stored."""

    type: pa.DataType
    storage: pa.DataType
    """The type in which the values of an extension type are stored; other types are their own."""
    kind: Kind
    width: int
    """The bytes of an item or an offset; how many values each child has for a row."""
    children: "tuple[Shape, ...]"


class Column(NamedTuple):
    """Where a column of a record batch lies, or a column inside it. Buffers are spans of the file."""

    shape: Shape
    length: int
    nulls: int
    buffers: tuple[Span, ...]
    children: "tuple[Column, ...]"


class Layout(NamedTuple):
    """Where the columns of a record batch lie that are read."""

    rows: int
    schema: pa.Schema
    columns: tuple[Column, ...]
    buffers: tuple[Span, ...]
    """Those of the columns and of all columns inside them that are not empty."""

    def cost(self, runs: Sequence[tuple[int, int]]) -> int:
        """The bytes to fetch for runs of rows, with each request counted as the bytes that cost as much.

        It is an estimate, as if all values of a column had the same length. A run is its first row and its length.
        """
        total = max(1, self.rows)
        spans = [
            (begin + (end - begin) * first // total, begin + (end - begin) * (first + rows) // total)
            for begin, end in self.buffers
            for first, rows in runs
        ]
        return sum(end - begin + LEAST_BYTES for begin, end in joined(spans))


def can_read_rows(kind: pa.DataType) -> bool:
    """True if some rows of a column of this type can be read without the others."""
    return shape_of(kind) is not None


def shape_of(kind: pa.DataType) -> Shape | None:
    """How the values of a type are stored; None if rows cannot be read alone."""
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    children = tuple(shape_of(storage.field(number).type) for number in range(storage.num_fields))
    how = _how(storage)
    known = tuple(child for child in children if child is not None)
    return None if how is None or len(known) < len(children) else Shape(kind, storage, *how, known)


def header_length(head: bytes) -> int:
    """The length of a message header, with what comes before it. ``head`` has at least its first 8 bytes."""
    return sum(_prefix(head))


def parse_layout(
    header: bytes, offset: int, length: int, shapes: Sequence[Shape], wanted: Mapping[int, pa.Field]
) -> Layout | None:
    """The layout of the wanted columns of the record batch at ``offset``, from its header; None if it is compressed."""
    prefix, metadata = _prefix(header)
    batch = table_at(header, field_at(header, table_at(header, prefix), 2))
    if field_at(header, batch, 3):
        return None
    body, end = offset + prefix + metadata, offset + length
    nodes = pairs_at(header, field_at(header, batch, 1))
    spans = ((body + begin, body + begin + size) for begin, size in pairs_at(header, field_at(header, batch, 2)))
    buffers = (_within(span, (body, end)) for span in spans)
    all_columns = [_column(shape, nodes, buffers) for shape in shapes]
    columns = tuple(all_columns[number] for number in wanted)
    filled = tuple((begin, end) for column in columns for begin, end in _buffers(column) if end > begin)
    rows = long_at(header, field_at(header, batch, 0))
    return Layout(rows, pa.schema(wanted.values()), columns, filled)


def read_rows(layout: Layout, first: int, rows: int) -> Fetching[pa.RecordBatch]:
    """The rows of a record batch from ``first`` on."""
    if first + rows > layout.rows:
        raise pa.ArrowInvalid(f"it has {layout.rows:,} rows, and rows up to {first + rows:,} are wanted")
    if not layout.columns:
        return pa.RecordBatch.from_arrays([pa.nulls(rows)], [""]).select([])
    arrays = yield from together([_array(column, first, rows) for column in layout.columns])
    return pa.RecordBatch.from_arrays(arrays, schema=layout.schema)


def together(parts: Sequence[Fetching[T]]) -> Fetching[list[T]]:
    """What each of these returns. All of them share each round of requests."""
    results: dict[int, T] = {}
    waiting: dict[int, Sequence[Span]] = {}

    def advance(number: int, received: Sequence[pa.Buffer] | None) -> None:
        try:
            waiting[number] = parts[number].send(received)  # type: ignore[arg-type]
        except StopIteration as stop:
            waiting.pop(number, None)
            results[number] = stop.value

    for number in range(len(parts)):
        advance(number, None)
    while waiting:
        received = iter((yield [span for spans in waiting.values() for span in spans]))
        for number, spans in list(waiting.items()):
            advance(number, list(islice(received, len(spans))))
    return [results[number] for number in range(len(parts))]


def fetch_all(wanted: Fetching[T], fetch: Callable[[Sequence[Span]], Callable[[int, int], pa.Buffer]]) -> T:
    """What a generator returns, with one call of ``fetch`` a round. Of what that returns, spans are read."""
    received: list[pa.Buffer] | None = None
    try:
        while True:
            spans = wanted.send(received)  # type: ignore[arg-type]
            read = fetch([(begin - begin % ALIGNMENT, end) for begin, end in spans if end > begin])
            received = [read(end - begin, begin) if end > begin else pa.py_buffer(b"") for begin, end in spans]
    except StopIteration as stop:
        result: T = stop.value
        return result


def _array(column: Column, first: int, rows: int) -> Fetching[pa.Array]:
    """The values of a column from ``first`` on, in arrays without an offset."""
    shape = column.shape
    if first + rows > column.length:
        raise pa.ArrowInvalid(f"a column has {column.length:,} values, and {first + rows:,} are needed")
    if shape.kind == "null":
        array = pa.nulls(rows)
    elif not rows:
        array = pa.array([], shape.storage)
    elif shape.kind == "children":
        array = yield from _array_of_children(column, first, rows)
    else:
        array = yield from _array_of_values(column, first, rows)
    return array if shape.storage is shape.type else shape.type.wrap_array(array)


def _array_of_children(column: Column, first: int, rows: int) -> Fetching[pa.Array]:
    """Rows of a struct or a list of fixed size: the same rows of each child."""
    size, validity = column.shape.width, _validity(column, first, rows)
    children = together([_array(child, first * size, rows * size) for child in column.children])
    (valid, *_), arrays = yield from together([_received(validity), children])
    return pa.Array.from_buffers(
        column.shape.storage, rows, [_from_bit(valid, first, rows) if validity else None], children=arrays
    )


def _array_of_values(column: Column, first: int, rows: int) -> Fetching[pa.Array]:
    """Rows that have values or offsets of their own."""
    (kind, width), storage = column.shape[2:4], column.shape.storage
    validity = _validity(column, first, rows)
    if kind == "bits":
        span = _bits(column.buffers[1], first, rows)
    else:
        span = _items(column.buffers[1], width, first, rows if kind == "items" else rows + 1)
    *valid, data = yield [*validity, span]
    buffers = [_from_bit(valid[0], first, rows) if valid else None]
    if kind == "items":
        return pa.Array.from_buffers(storage, rows, [*buffers, data])
    if kind == "bits":
        return pa.Array.from_buffers(storage, rows, [*buffers, _from_bit(data, first, rows)])
    offsets = np.frombuffer(data, f"<i{width}")
    begin, end = int(offsets[0]), int(offsets[-1])
    if begin < 0 or (offsets[1:] < offsets[:-1]).any():
        raise pa.ArrowInvalid("the offsets of a column are not in order")
    buffers.append(pa.py_buffer(offsets - offsets[0]))
    if kind == "lists":
        child = yield from _array(column.children[0], begin, end - begin)
        return pa.Array.from_buffers(storage, rows, buffers, children=[child])
    (text,) = yield [_items(column.buffers[2], 1, begin, end - begin)]
    return pa.Array.from_buffers(storage, rows, [*buffers, text])


def _received(spans: Sequence[Span]) -> Fetching[Sequence[pa.Buffer]]:
    """The bytes of these spans."""
    return (yield spans) if spans else [None]


def _validity(column: Column, first: int, rows: int) -> list[Span]:
    """The span of the validity bits; none if no value is null."""
    begin, end = column.buffers[0]
    return [_bits((begin, end), first, rows)] if column.nulls and end > begin else []


def _items(buffer: Span, width: int, first: int, count: int) -> Span:
    """Where items of ``width`` bytes lie."""
    begin = buffer[0] + first * width
    return _within((begin, begin + count * width), buffer)


def _bits(buffer: Span, first: int, count: int) -> Span:
    """Where the bytes lie that hold these bits."""
    return _items(buffer, 1, first // 8, (first + count + 7) // 8 - first // 8)


def _from_bit(data: pa.Buffer, first: int, count: int) -> pa.Buffer:
    """Bits that may begin inside the first byte, moved so that they begin with it."""
    shift = first % 8
    if not shift:
        return data
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[shift : shift + count]
    return pa.py_buffer(np.packbits(bits, bitorder="little"))


def _within(span: Span, outer: Span) -> Span:
    """The span, if it lies in the outer one."""
    if not outer[0] <= span[0] <= span[1] <= outer[1]:
        raise pa.ArrowInvalid(f"a buffer ends after {outer[1] - outer[0]:,} bytes, and more of it is needed")
    return span


def _column(shape: Shape, nodes: Iterator[tuple[int, int]], buffers: Iterator[Span]) -> Column:
    """The next column. Nodes and buffers are listed depth first, in the order of the schema."""
    length, nulls = next(nodes, (-1, 0))
    own = tuple(islice(buffers, BUFFERS[shape.kind]))
    if length < 0 or len(own) < BUFFERS[shape.kind]:
        raise pa.ArrowInvalid("its header has fewer columns than the schema")
    return Column(shape, length, nulls, own, tuple(_column(child, nodes, buffers) for child in shape.children))


def _how(storage: pa.DataType) -> tuple[Kind, int] | None:
    """How the values of a type are stored, and their width."""
    if pa.types.is_null(storage):
        return "null", 0
    if pa.types.is_boolean(storage):
        return "bits", 0
    if _is(storage, FIXED):
        return "items", storage.bit_width // 8
    if pa.types.is_struct(storage):
        return "children", 1
    if pa.types.is_fixed_size_list(storage):
        return "children", storage.list_size
    width = 8 if _is(storage, LONG_OFFSETS) else 4
    if _is(storage, STRINGS):
        return "strings", width
    return ("lists", width) if _is(storage, LISTS) else None


def _buffers(column: Column) -> Iterator[Span]:
    yield from column.buffers
    for child in column.children:
        yield from _buffers(child)


def _is(kind: pa.DataType, kinds: Sequence[Callable[[pa.DataType], bool]]) -> bool:
    return any(is_kind(kind) for is_kind in kinds)


def _prefix(head: bytes) -> tuple[int, int]:
    """The bytes before a message header and of the header. Streams from before Arrow 0.15 have no continuation mark."""
    prefix = 8 if head.startswith(CONTINUATION) else 4
    (metadata,) = struct.unpack_from("<I", head, prefix - 4)
    return prefix, metadata
