"""Arrow IPC streams and files: a block is a record batch, a view of the mapped file where that is on this machine.

Both kinds are a schema followed by messages. Each message has a small header with its kind, its length and its rows, so
one walk over the headers finds every record batch without reading any. Headers are flatbuffers.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import NamedTuple

import pyarrow as pa

from midepoch._common.checks import cached_property
from midepoch.errors import DataFormatError
from midepoch.formats.base import MAX_RECORD_BYTES, Block, Format, Scan, read_as
from midepoch.storage.local import check_offsets, mapped
from midepoch.storage.objects import Location, open_bytes, open_file

CONTINUATION = b"\xff\xff\xff\xff"
FILE_MAGIC = b"ARROW1"
PREFIX = 8
"""The bytes before the header of a message. Before Arrow 0.15 there were four, and such streams are not read."""
HEAD_BYTES = 1024
MOST_ROWS = 1 << 48
"""More rows than any record batch has. The rows of all files together must fit 64 bits."""
MOST_COMPRESSED = 1 << 15
"""No codec of Arrow makes bytes smaller than by this factor: zstd writes 128 KiB of one value as 4 bytes."""
SCHEMA, DICTIONARY, RECORD_BATCH = 1, 2, 3
_SIX_SHORTS, _INT, _UNSIGNED, _LONG = (struct.Struct(f"<{kind}").unpack_from for kind in ("6H", "i", "I", "q"))
NOT_SLICED = (
    pa.types.is_dictionary,
    pa.types.is_union,
    pa.types.is_run_end_encoded,
    pa.types.is_string_view,
    pa.types.is_binary_view,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
"""Types whose rows cannot be copied out of a map without reading more of their record batch."""


class IpcMessage(NamedTuple):
    """One message of a stream: ``length`` covers header and body."""

    kind: int
    offset: int
    length: int
    rows: int
    is_compressed: bool = False


def scan(path: Location, limit: int = MAX_RECORD_BYTES) -> Scan:
    """The schema and the record batches of a stream or file, from the message headers."""
    with open_file(path) as file:
        messages = list(_messages(file, path, file.size()))
        if not messages or messages[0].kind != SCHEMA:
            raise DataFormatError(
                f"{path} does not begin with an Arrow schema. It is damaged, or no Arrow file: write it again."
            )
        own = _parse_schema(pa.py_buffer(file.read_at(messages[0].length, messages[0].offset)), path)
    batches = [message for message in messages if message.kind == RECORD_BATCH]
    _check_rows(path, batches, own)
    blocks = [(message.offset, message.length, message.rows) for message in batches]
    is_compressed = any(message.is_compressed for message in batches)
    is_sliced = not any(_holds(field.type, NOT_SLICED) for field in own)
    divisible = isinstance(path, str) and is_sliced and not is_compressed
    return Scan("arrow", own, blocks, divisible=divisible)


class ArrowBlocks:
    """An Arrow file. On this machine its record batches are views of the map; from a store each read fetches one."""

    def __init__(self, path: Location, own: pa.Schema, wanted: pa.Schema) -> None:
        self._path, self._wanted = path, wanted
        with open_file(path) as file:
            first = next(_messages(file, path, file.size()), IpcMessage(SCHEMA, 0, 0, 0))
        self._is_file = first.offset > 0
        self._map = _mapped(path) if isinstance(path, str) else None
        self.schema = _parse_schema(self._bytes(first.offset, first.length), path)
        self._has_dictionaries = any(holds_dictionary(field.type) for field in self.schema)
        self._checked = set[int]()
        """The blocks of the map that were checked. What a store sends is checked each time."""
        self._lock = Lock()  # threads read blocks of one object in parallel, and Arrow's file reader allows only one

    def read(self, block: Block) -> pa.RecordBatch:
        try:
            data = self._read(block)
            if self._map is None or block.number not in self._checked:
                check_offsets(data, self._wanted.names)
                self._checked.add(block.number)
            return read_as(data, self._wanted)
        except (pa.ArrowException, OSError, EOFError, KeyError) as error:  # KeyError: the index has other columns
            raise _broken(self._path, block.offset, error) from error

    def _bytes(self, offset: int, length: int) -> pa.Buffer:
        """Bytes of the file: a view of the map, or one request."""
        if self._map is not None:
            return self._map.slice(offset, min(length, self._map.size - offset))
        return pa.py_buffer(open_bytes(self._path).read_at(length, offset))

    def _read(self, block: Block) -> pa.RecordBatch:
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
    def _preamble(self) -> list[IpcMessage]:
        with open_file(self._path) as file:
            messages = _messages(file, self._path, file.size())
            return [message for message in messages if message.kind in (SCHEMA, DICTIONARY)]


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


def _check_rows(path: Location, batches: Sequence[IpcMessage], schema: pa.Schema) -> None:
    """Raise if a record batch says that it has more rows than its bytes can hold: what counts rows believes it."""
    if not any(pa.types.is_primitive(field.type) or pa.types.is_string(field.type) for field in schema):
        return
    for batch in batches:
        if batch.rows > 8 * batch.length * (MOST_COMPRESSED if batch.is_compressed else 1):
            raise _broken(path, batch.offset, f"{batch.rows:,} rows in {batch.length:,} bytes")


def _mapped(path: str) -> pa.Buffer:
    try:
        return mapped(path)
    except OSError as error:
        raise DataFormatError(
            f"{path} cannot be mapped: {error}. Check that it can be read. If memory is short, allow the process "
            "more maps (vm.max_map_count) or more address space (ulimit -v)."
        ) from error


def holds_dictionary(kind: pa.DataType) -> bool:
    """True if a type, or a type inside it, is a dictionary type."""
    return _holds(kind, (pa.types.is_dictionary,))


def _holds(kind: pa.DataType, kinds: Sequence[Callable[[pa.DataType], bool]]) -> bool:
    """True if a type, or a type inside it, is one of these."""
    stored = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    inside = (stored.field(number).type for number in range(stored.num_fields))
    return any(is_kind(stored) for is_kind in kinds) or any(_holds(one, kinds) for one in inside)


def _messages(file: pa.NativeFile, path: Location, size: int) -> Iterator[IpcMessage]:
    is_file = file.read_at(len(FILE_MAGIC), 0) == FILE_MAGIC
    if is_file and (size < 16 or file.read_at(len(FILE_MAGIC), size - len(FILE_MAGIC)) != FILE_MAGIC):
        raise _truncated(path, size)
    offset = 8 if is_file else 0
    while offset < size:
        head = file.read_at(HEAD_BYTES, offset)
        if len(head) < PREFIX:
            raise _truncated(path, size)
        (metadata,) = _INT(head, len(CONTINUATION))
        if not head.startswith(CONTINUATION) or metadata < 0:
            raise _broken(path, offset, "there is no Arrow message here")
        if metadata == 0:
            return
        if offset + PREFIX + metadata > size:
            raise _truncated(path, size)
        if len(head) < PREFIX + metadata:
            head = file.read_at(PREFIX + metadata, offset)
        try:
            kind, body, rows, is_compressed = _parse_header(head, PREFIX)
        except (struct.error, IndexError):
            raise _broken(path, offset, "there is no Arrow message here") from None
        if body < 0 or not 0 <= rows <= MOST_ROWS:
            raise _broken(path, offset, f"a message of {body:,} bytes and {rows:,} rows")
        length = PREFIX + metadata + body
        if offset + length > size:
            raise _truncated(path, size)
        yield IpcMessage(kind, offset, length, rows, is_compressed)
        offset += length


def _parse_header(head: bytes, root: int) -> tuple[int, int, int, bool]:
    """Kind, body length and rows of the flatbuffer ``Message`` at ``root``, and whether its body is compressed."""
    head += bytes(12)  # so that the fields of a short table can be read at once
    _, kind_at, header_at, body_at = _four_fields(head, _table_at(head, root))
    kind = head[kind_at] if kind_at else 0
    rows, is_compressed = 0, False
    if kind == RECORD_BATCH and header_at:
        rows_at, _, _, compression_at = _four_fields(head, _table_at(head, header_at))
        rows, is_compressed = _long_at(head, rows_at), bool(compression_at)
    return kind, _long_at(head, body_at), rows, is_compressed


def _table_at(data: bytes, position: int) -> int:
    """Where the table begins to which the offset at ``position`` points."""
    return position + int(_UNSIGNED(data, position)[0])


def _four_fields(data: bytes, table: int) -> tuple[int, int, int, int]:
    """The positions of the first four fields of a table; 0 for one that has its default."""
    size, _, first, second, third, fourth = _SIX_SHORTS(data, table - _INT(data, table)[0])
    return (
        table + first if first and size > 4 else 0,
        table + second if second and size > 6 else 0,
        table + third if third and size > 8 else 0,
        table + fourth if fourth and size > 10 else 0,
    )


def _long_at(data: bytes, position: int) -> int:
    """The 64-bit integer at a position; 0, the default, for position 0."""
    return int(_LONG(data, position)[0]) if position else 0


def _truncated(path: Location, size: int) -> DataFormatError:
    return DataFormatError(
        f"{path} is truncated: it ends after {size:,} bytes in the middle of a message. "
        "Copy or write it again, or leave it out."
    )


def _broken(path: Location, offset: int, what: object) -> DataFormatError:
    return DataFormatError(f"{path} is broken at byte {offset:,}: {what}.")


FORMAT = Format(
    name="arrow",
    suffixes=(".arrow", ".feather", ".ipc"),
    block="record batch",
    has_magic=lambda head: head.startswith((FILE_MAGIC, CONTINUATION)),
    scan=scan,
    open_blocks=ArrowBlocks,
    is_mapped=True,
)
