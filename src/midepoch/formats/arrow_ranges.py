"""Some rows of an Arrow record batch: which bytes of the file they need, and the arrays that these bytes make.

A record batch has a few buffers for each column, and rows need a slice of each. Offsets say where the values of strings
and lists lie, so offsets are fetched first, and values in another round. Functions here do not fetch. They are
generators that yield the spans they need and receive the bytes, so all columns of all blocks share a round of requests.
"""

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from midepoch.formats.flatbuffers import field_at, long_at, pairs_at, table_at
from midepoch.storage.ranges import LEAST_BYTES, Span

T = TypeVar("T")
Fetching: TypeAlias = Generator[Sequence[Span], Sequence[pa.Buffer], T]
"""Yields spans of the file, receives their bytes, and returns what they make."""

CONTINUATION = b"\xff\xff\xff\xff"
ALIGNMENT = 64
"""Ranges begin at multiples of this, so that values in memory are aligned as they are in the file."""

FIXED = (pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary)
LONG_OFFSETS = (pa.types.is_large_binary, pa.types.is_large_string, pa.types.is_large_list)
STRINGS = (pa.types.is_binary, pa.types.is_string, pa.types.is_large_binary, pa.types.is_large_string)
LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_map)
ALIGNED_CHILDREN = (pa.types.is_struct, pa.types.is_fixed_size_list)


class Column(NamedTuple):
    """Where a column of a record batch lies, or a column inside it. Buffers are spans of the file."""

    type: pa.DataType
    length: int
    nulls: int
    buffers: tuple[Span, ...]
    children: "tuple[Column, ...]"


class Layout(NamedTuple):
    """Where the columns of a record batch lie."""

    rows: int
    columns: tuple[tuple[pa.Field, Column], ...]

    def cost(self, rows: int) -> int:
        """The bytes that some rows need, estimated, with each request counted as the bytes that cost as much."""
        lengths = [end - begin for _, column in self.columns for begin, end in _buffers(column) if end > begin]
        return sum(lengths) * rows // max(1, self.rows) + len(lengths) * LEAST_BYTES


def can_read_rows(kind: pa.DataType) -> bool:
    """True if some rows of a column of this type can be read without the others."""
    kind = _storage(kind)
    known = (pa.types.is_null, *FIXED, *STRINGS, *LISTS, *ALIGNED_CHILDREN)
    return _is(kind, known) and all(can_read_rows(field.type) for field in _fields(kind))


def header_length(head: bytes) -> int:
    """The length of a message header, with what comes before it. ``head`` has at least its first 8 bytes."""
    return sum(_prefix(head))


def parse_layout(header: bytes, offset: int, length: int, schema: pa.Schema, names: Sequence[str]) -> Layout | None:
    """The layout of some columns of the record batch at ``offset``, from its header; None if it is compressed."""
    prefix, metadata = _prefix(header)
    batch = table_at(header, field_at(header, table_at(header, prefix), 2))
    if field_at(header, batch, 3):
        return None
    body, end = offset + prefix + metadata, offset + length
    nodes = pairs_at(header, field_at(header, batch, 1))
    spans = ((body + begin, body + begin + size) for begin, size in pairs_at(header, field_at(header, batch, 2)))
    buffers = (_within(span, (body, end)) for span in spans)
    columns = [(field, _column(field.type, nodes, buffers)) for field in schema]
    rows = long_at(header, field_at(header, batch, 0))
    return Layout(rows, tuple((field, column) for field, column in columns if field.name in names))


def read_rows(layout: Layout, first: int, rows: int) -> Fetching[pa.RecordBatch]:
    """The rows of a record batch from ``first`` on."""
    if first + rows > layout.rows:
        raise pa.ArrowInvalid(f"it has {layout.rows:,} rows, and rows up to {first + rows:,} are wanted")
    if not layout.columns:
        return pa.RecordBatch.from_arrays([pa.nulls(rows)], [""]).select([])
    arrays = yield from together([_array(column, first, rows) for _, column in layout.columns])
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([field for field, _ in layout.columns]))


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
    kind = _storage(column.type)
    if first + rows > column.length:
        raise pa.ArrowInvalid(f"a column has {column.length:,} values, and {first + rows:,} are needed")
    if pa.types.is_null(kind):
        array = pa.nulls(rows)
    elif not rows:
        array = pa.array([], kind)
    else:
        array = yield from _values(kind, column, first, rows)
    return array if kind is column.type else column.type.wrap_array(array)


def _values(kind: pa.DataType, column: Column, first: int, rows: int) -> Fetching[pa.Array]:
    """At least one value of a column that is not an extension and has buffers."""
    begin, end = column.buffers[0]
    validity = _bits((begin, end), first, rows) if column.nulls and end > begin else _nothing()
    if pa.types.is_boolean(kind):
        buffers = yield from together([validity, _bits(column.buffers[1], first, rows)])
        return pa.Array.from_buffers(kind, rows, buffers)
    if _is(kind, FIXED):
        buffers = yield from together([validity, _items(column.buffers[1], kind.bit_width // 8, first, rows)])
        return pa.Array.from_buffers(kind, rows, buffers)
    if _is(kind, ALIGNED_CHILDREN):
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else 1
        children = together([_array(child, first * size, rows * size) for child in column.children])
        valid, arrays = yield from together([validity, children])
        return pa.Array.from_buffers(kind, rows, [valid], children=arrays)
    width = 8 if _is(kind, LONG_OFFSETS) else 4
    valid, stored = yield from together([validity, _items(column.buffers[1], width, first, rows + 1)])
    offsets = np.frombuffer(stored, f"<i{width}")
    begin, end = int(offsets[0]), int(offsets[-1])
    if begin < 0 or (offsets[1:] < offsets[:-1]).any():
        raise pa.ArrowInvalid("the offsets of a column are not in order")
    rebased = pa.py_buffer(offsets - offsets[0])
    if _is(kind, LISTS):
        child = yield from _array(column.children[0], begin, end - begin)
        return pa.Array.from_buffers(kind, rows, [valid, rebased], children=[child])
    data = yield from _items(column.buffers[2], 1, begin, end - begin)
    return pa.Array.from_buffers(kind, rows, [valid, rebased, data])


def _nothing() -> Fetching[None]:
    return None
    yield


def _items(buffer: Span, width: int, first: int, count: int) -> Fetching[pa.Buffer]:
    """Items of ``width`` bytes."""
    begin = buffer[0] + first * width
    (data,) = yield [_within((begin, begin + count * width), buffer)]
    return data


def _bits(buffer: Span, first: int, count: int) -> Fetching[pa.Buffer]:
    """Bits, moved so that they begin with a byte."""
    begin, end = first // 8, (first + count + 7) // 8
    data = yield from _items(buffer, 1, begin, end - begin)
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


def _column(kind: pa.DataType, nodes: Iterator[tuple[int, int]], buffers: Iterator[Span]) -> Column:
    """The next column. Nodes and buffers are listed depth first, in the order of the schema."""
    storage = _storage(kind)
    length, nulls = next(nodes, (-1, 0))
    count = _buffer_count(storage)
    own = tuple(islice(buffers, count))
    if length < 0 or len(own) < count:
        raise pa.ArrowInvalid("its header has fewer columns than the schema")
    return Column(kind, length, nulls, own, tuple(_column(field.type, nodes, buffers) for field in _fields(storage)))


def _buffer_count(kind: pa.DataType) -> int:
    """How many buffers a column has: validity, then offsets or values, then the bytes of strings."""
    if pa.types.is_null(kind):
        return 0
    if _is(kind, ALIGNED_CHILDREN):
        return 1
    return 3 if _is(kind, STRINGS) else 2


def _buffers(column: Column) -> Iterator[Span]:
    yield from column.buffers
    for child in column.children:
        yield from _buffers(child)


def _is(kind: pa.DataType, kinds: Sequence[Callable[[pa.DataType], bool]]) -> bool:
    return any(is_kind(kind) for is_kind in kinds)


def _storage(kind: pa.DataType) -> pa.DataType:
    """The type in which the values of an extension type are stored; other types are their own."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _fields(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(number) for number in range(kind.num_fields)]


def _prefix(head: bytes) -> tuple[int, int]:
    """The bytes before a message header and of the header. Streams from before Arrow 0.15 have no continuation mark."""
    prefix = 8 if head.startswith(CONTINUATION) else 4
    (metadata,) = struct.unpack_from("<I", head, prefix - 4)
    return prefix, metadata
