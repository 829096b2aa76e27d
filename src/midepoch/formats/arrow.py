"""Arrow IPC streams and files: a block is a record batch, a view of the mapped file where that is on this machine.

Both kinds are a schema followed by messages. Each message has a small header with its kind, its length and its rows, so
one walk over the headers finds every record batch without reading any.
"""

import struct
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import NamedTuple

import pyarrow as pa

from midepoch._common.checks import cached_property
from midepoch.errors import DataFormatError
from midepoch.formats.arrow_object import ArrowObject
from midepoch.formats.arrow_ranges import can_read_rows
from midepoch.formats.base import Block, Format, Scan, as_read, read_as
from midepoch.formats.flatbuffers import field_at, four_fields_at, long_at, table_at
from midepoch.formats.inflation import MAX_RECORD_BYTES, InflationError, check_message
from midepoch.storage.arrow_checks import check_offsets
from midepoch.storage.location import Location, open_bytes, open_file
from midepoch.storage.maps import PROCESS_MAPS

CONTINUATION = b"\xff\xff\xff\xff"
FILE_MAGIC = b"ARROW1"
HEAD_BYTES = 1024
MOST_ROWS = 1 << 48
"""More rows than any record batch has. The rows of all files together must fit 64 bits."""
LENGTH = struct.Struct("<i")
SCHEMA, DICTIONARY, RECORD_BATCH = 1, 2, 3


class Message(NamedTuple):
    """One message of a stream: ``length`` covers header and body."""

    kind: int
    offset: int
    length: int
    rows: int
    is_compressed: bool = False


def is_legacy_stream(head: bytes) -> bool:
    """True if these first bytes can be a stream as written before Arrow 0.15, which begins with a length.

    The length is padded. That of what gzip wrote without a time, as Java does, would be odd.
    """
    length = int.from_bytes(head[:4], "little")
    return len(head) == 8 and 0 < length < 1 << 24 and length % 4 == 0 and head[5:8] == b"\0\0\0"


def scan(path: Location, limit: int = MAX_RECORD_BYTES) -> Scan:
    """The schema and the record batches of a stream or file, from the message headers."""
    with open_file(path) as file:
        messages = list(_messages(file, path, file.size()))
        if not messages or messages[0].kind != SCHEMA:
            raise DataFormatError(
                f"{path} does not begin with an Arrow schema. It is damaged, or no Arrow file: write it again."
            )
        own = _parse_schema(pa.py_buffer(file.read_at(messages[0].length, messages[0].offset)), path)
        for message in messages:
            if not message.is_compressed:
                _check_rows(path, message, message.length, own)
        has_dictionaries = any(message.kind == DICTIONARY for message in messages)
        # A store would get many requests here, so what it has is checked when it is read, except for dictionaries.
        if isinstance(path, str) or has_dictionaries:
            _check_inflation(file, path, messages, limit, own)
    batches = [message for message in messages if message.kind == RECORD_BATCH]
    blocks = [(message.offset, message.length, message.rows) for message in batches]
    is_compressed = any(message.is_compressed for message in batches)
    divisible = not is_compressed and all(can_read_rows(field.type) for field in own)
    return Scan("arrow", as_read(own), blocks, divisible=divisible)


def open_blocks(path: Location, own: pa.Schema, wanted: pa.Schema, limit: int = MAX_RECORD_BYTES) -> "ArrowBlocks":
    """Open a file, mapped if it is on this machine."""
    return ArrowBlocks(path, wanted, limit)


class ArrowBlocks:
    """An Arrow file. On this machine its record batches are views of the map; from a store each read fetches one."""

    def __init__(self, path: Location, wanted: pa.Schema, limit: int = MAX_RECORD_BYTES) -> None:
        self._path, self._wanted, self._limit = path, wanted, limit
        self._map = _mapped(path) if isinstance(path, str) else None
        self._is_file = self._bytes(0, len(FILE_MAGIC)).to_pybytes() == FILE_MAGIC
        self.schema = _parse_schema(self._first_message(), path)
        self._has_dictionaries = any(holds_dictionary(field.type) for field in self.schema)
        self._object: ArrowObject | None = None
        if not isinstance(path, str) and not self._has_dictionaries:
            self._object = ArrowObject(path, self.schema, wanted.names, limit)
        self._are_checked = bytearray()
        """Whether each block of the map was checked. What a store sends is checked each time."""
        self._lock = Lock()  # threads read blocks of one object in parallel, and Arrow's file reader allows only one

    def read(self, block: Block) -> pa.RecordBatch:
        return next(self.read_all([block]))

    def read_all(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        """The rows of each of these blocks. From a store, the bytes of all are fetched together."""
        batches = map(self._read, blocks) if self._object is None else map(self._checked, self._object.read_all(blocks))
        for block in blocks:
            try:
                data = read_as(next(batches), self._wanted)
            except (pa.ArrowException, OSError, EOFError, KeyError) as error:  # KeyError: the index has other columns
                raise DataFormatError(f"{self._path} is broken at byte {block.offset:,}: {error}") from error
            yield data

    def is_view(self, data: pa.Table | pa.RecordBatch) -> bool:
        """True if a record batch lies in the map; compressed ones and some with dictionaries do not."""
        if self._map is None:
            return False
        begin, end = self._map.address, self._map.address + self._map.size
        firsts = (next(filter(None, column.buffers()), None) for column in data.columns)
        return all(first is None or begin <= first.address < end for first in firsts)

    def _bytes(self, offset: int, length: int) -> pa.Buffer:
        """Bytes of the file: a view of the map, or one request."""
        if self._map is not None:
            return self._map.slice(offset, min(length, self._map.size - offset))
        return pa.py_buffer(open_bytes(self._path).read_at(length, offset))

    def _first_message(self) -> pa.Buffer:
        start = 8 if self._is_file else 0
        if self._map is not None:
            return self._map.slice(start)
        with open_file(self._path) as file:
            first = next(_messages(file, self._path, file.size()))
        return self._bytes(first.offset, first.length)

    def _read(self, block: Block) -> pa.RecordBatch:
        data = self._read_whole(block)
        if self._map is None or self._are_checked[block.number : block.number + 1] != b"\1":
            self._checked(data)
            with self._lock:
                self._are_checked.extend(bytes(max(0, block.number + 1 - len(self._are_checked))))
                self._are_checked[block.number] = True
        return data if block.first is None else data.slice(block.first, block.rows)

    def _checked(self, data: pa.RecordBatch) -> pa.RecordBatch:
        check_offsets(data, self._wanted.names)
        return data

    def _read_whole(self, block: Block) -> pa.RecordBatch:
        if not self._has_dictionaries:
            return pa.ipc.read_record_batch(self._bytes(block.offset, block.length), self.schema)
        if self._is_file:
            with self._lock:
                return self._file.get_batch(block.number)
        # Arrow cannot read one batch of a stream against its dictionaries, so it gets a stream of the schema, the
        # dictionaries so far and this batch. This is the one case that copies a block.
        before = [message for message in self._preamble if message.offset < block.offset]
        needed = [*((message.offset, message.length) for message in before), (block.offset, block.length)]
        stream = b"".join(self._bytes(offset, length) for offset, length in needed)
        return pa.ipc.open_stream(stream).read_next_batch()

    @cached_property
    def _file(self) -> pa.ipc.RecordBatchFileReader:
        """Reads what it returns into memory: rows that leave share the memory of their dictionaries."""
        return pa.ipc.open_file(open_file(self._path))

    @cached_property
    def _preamble(self) -> list[Message]:
        return [message for message in _walk(self._path) if message.kind in (SCHEMA, DICTIONARY)]


def _parse_schema(message: pa.Buffer, path: Location) -> pa.Schema:
    try:
        schema = pa.ipc.read_schema(message)
        _decode_names(list(schema))
        return schema
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataFormatError(f"{path} has a broken Arrow schema: {error}") from error


def _decode_names(fields: Sequence[pa.Field]) -> None:
    """Raise ``UnicodeDecodeError`` if the name of a field, or of one inside of it, is not UTF-8."""
    for field in fields:
        _ = field.name
        _decode_names([field.type.field(number) for number in range(field.type.num_fields)])


def _check_rows(path: Location, message: Message, nbytes: int, schema: pa.Schema) -> None:
    """Raise if a record batch says that it has more rows than its bytes can hold: what counts rows believes it."""
    if message.rows <= 8 * nbytes:
        return
    if any(pa.types.is_primitive(field.type) or pa.types.is_string(field.type) for field in schema):
        raise DataFormatError(
            f"{path} is broken at byte {message.offset:,}: {message.rows:,} rows in {message.length:,} bytes."
        )


def _check_inflation(
    file: pa.NativeFile, path: Location, messages: Sequence[Message], limit: int, schema: pa.Schema
) -> None:
    """Raise if a compressed message would take too much memory, or has more rows than it becomes bytes for."""
    for message in messages:
        if not message.is_compressed:
            continue
        start = message.offset

        def read(nbytes: int, offset: int, start: int = start) -> bytes:
            return bytes(file.read_at(nbytes, start + offset))

        try:
            inflated = check_message(read, message.length, limit)
        except InflationError as error:
            raise DataFormatError(f"{path} at byte {start:,}: {error}.") from None
        except (struct.error, IndexError):
            raise DataFormatError(f"{path} is broken at byte {start:,}: there is no Arrow message here.") from None
        _check_rows(path, message, message.length + inflated, schema)


def _mapped(path: str) -> pa.Buffer:
    try:
        return PROCESS_MAPS.map(path)
    except OSError as error:
        raise DataFormatError(
            f"{path} cannot be mapped: {error}. Check that it can be read. If memory is short, allow the process "
            "more maps (vm.max_map_count) or more address space (ulimit -v)."
        ) from error


def holds_dictionary(kind: pa.DataType) -> bool:
    """True if a type, or a type inside it, is a dictionary type."""
    if pa.types.is_dictionary(kind):
        return True
    return any(holds_dictionary(kind.field(number).type) for number in range(kind.num_fields))


def _walk(path: Location) -> list[Message]:
    """All messages of a file. Reads by position let other threads run meanwhile."""
    with open_file(path) as file:
        return list(_messages(file, path, file.size()))


def _messages(file: pa.NativeFile, path: Location, size: int) -> Iterator[Message]:
    is_file = file.read_at(len(FILE_MAGIC), 0) == FILE_MAGIC
    if is_file and (size < 16 or file.read_at(len(FILE_MAGIC), size - len(FILE_MAGIC)) != FILE_MAGIC):
        raise _truncated(path, size)
    offset = 8 if is_file else 0
    while offset < size:
        head = file.read_at(HEAD_BYTES, offset)
        prefix = 8 if head.startswith(CONTINUATION) else 4
        if len(head) < prefix:
            raise _truncated(path, size)
        (metadata,) = LENGTH.unpack_from(head, prefix - 4)
        if metadata == 0:
            return
        if metadata < 0:
            raise DataFormatError(f"{path} is broken at byte {offset:,}: a message of negative length.")
        if offset + prefix + metadata > size:
            raise _truncated(path, size)
        if len(head) < prefix + metadata:
            head = file.read_at(prefix + metadata, offset)
        try:
            kind, body, rows, is_compressed = _parse_header(head, prefix)
        except (struct.error, IndexError):
            raise DataFormatError(f"{path} is broken at byte {offset:,}: there is no Arrow message here.") from None
        if body < 0 or not 0 <= rows <= MOST_ROWS:
            raise DataFormatError(
                f"{path} is broken at byte {offset:,}: a message of {body:,} bytes and {rows:,} rows."
            )
        length = prefix + metadata + body
        if offset + length > size:
            raise _truncated(path, size)
        yield Message(kind, offset, length, rows, is_compressed)
        offset += length


def _parse_header(head: bytes, root: int) -> tuple[int, int, int, bool]:
    """Kind, body length and rows of the flatbuffer ``Message`` at ``root``, and whether its body is compressed."""
    message = table_at(head, root)
    _, kind_at, header_at, body_at = four_fields_at(head, message)
    kind = head[kind_at] if kind_at else 0
    rows, is_compressed = 0, False
    if kind == RECORD_BATCH and header_at:
        rows_at, _, _, compression_at = four_fields_at(head, table_at(head, header_at))
        rows, is_compressed = long_at(head, rows_at), bool(compression_at)
    elif kind == DICTIONARY and header_at and (values_at := field_at(head, table_at(head, header_at), 1)):
        is_compressed = bool(field_at(head, table_at(head, values_at), 3))
    return kind, long_at(head, body_at), rows, is_compressed


def _truncated(path: Location, size: int) -> DataFormatError:
    return DataFormatError(
        f"{path} is truncated: it ends after {size:,} bytes in the middle of a message. "
        "Copy or write it again, or leave it out."
    )


def _has_magic(head: bytes) -> bool:
    return head.startswith((FILE_MAGIC, CONTINUATION)) or is_legacy_stream(head[:8])


FORMAT = Format(
    name="arrow",
    suffixes=(".arrow", ".feather", ".ipc"),
    types="fixed",
    has_magic=_has_magic,
    scan=scan,
    open_blocks=open_blocks,
    is_mapped=True,
)
