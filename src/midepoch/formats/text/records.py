"""What the text formats share: whole records as blocks, types that fit all values, and files compressed as a whole."""

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator
from threading import Lock
from typing import Any, Self

import numpy as np
import pyarrow as pa

from midepoch._common.checks import count
from midepoch._common.hashing import I64
from midepoch.errors import DataFormatError
from midepoch.formats.base import MAX_RECORD_BYTES, Block, Format, Scan, check_inflation, read_as, with_inner
from midepoch.storage.objects import Bytes, Location, open_bytes, open_file

CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""Codecs of pyarrow, by the bytes that a file begins with."""
PACKED_SUFFIXES = (".gz", ".zst")
SKIP_BYTES = 1 << 20

BOM = b"\xef\xbb\xbf"
NEWLINE = ord("\n")

# A block ends with the record that brings it to this many bytes or records. These numbers decide the order of a block
# shuffle: if they changed, checkpoints of shuffled text files would resume in another order.
BLOCK_BYTES, BLOCK_RECORDS = 1 << 20, 2048
# A compressed file cannot seek, so its blocks are few and large.
PACKED_BYTES = 8 << 20

READ_BYTES = 4 << 20
VALUE_BYTES = 8
"""What a value takes in memory at least, also one that is missing."""


FIX = "Correct or remove it, and open the dataset again."
ABOUT_BLOCKS = re.compile(r"^(?:(?:JSON|CSV) \w+ error: )?(?:Row #\d+: )?| in row \d+$")
"""What errors of pyarrow say besides the reason. They count rows from where it was told to begin."""


class MalformedError(Exception):
    """The bytes do not follow the format. The message says what is wrong, without the file's name."""


class Grammar(ABC):
    """A text format: how its bytes are divided into records and parsed, and what a record is called in errors."""

    place: str
    """How an error says where a record is, with its number."""
    is_line = False
    """True if each line is a record, a blank one too. Else only those count that have a row."""

    @classmethod
    def begun(cls, path: Location, file: Bytes, limit: int) -> tuple[Self, int]:
        """The grammar of a file that is scanned, and the offset of its first record. ``limit`` is max_record_bytes."""
        return cls(), text_start(file)

    @classmethod
    def known(cls, path: Location, own: pa.Schema) -> Self:
        """The grammar of a file whose schema was found before."""
        return cls()

    def columns(self) -> pa.Schema | None:
        """The columns of a file that may have no records."""
        return None

    @abstractmethod
    def record_ends(self, data: bytes, *, last: bool) -> I64:
        """The offsets right after each whole record, in bytes that begin with one; ``last`` if no bytes follow."""

    @abstractmethod
    def infer(self, data: bytes, known: pa.Schema | None) -> tuple[pa.Schema | None, int]:
        """A schema that fits the known one and the rows of these records, and the number of these rows."""

    @abstractmethod
    def parse(self, data: bytes, wanted: pa.Schema) -> pa.Table:
        """The rows of these records, under a schema."""


def text_format(name: str, grammar: type[Grammar], **facts: Any) -> Format:
    """The format of the text files that follow a grammar. ``facts`` are the other fields of a :class:`Format`."""

    def scan(path: Location, limit: int = MAX_RECORD_BYTES) -> Scan:
        return _scan(path, name, grammar, limit)

    def open_blocks(path: Location, own: pa.Schema, wanted: pa.Schema) -> TextBlocks:
        return TextBlocks(path, open_text(path), grammar.known(path, own), wanted)

    return Format(name=name, scan=scan, open_blocks=open_blocks, **facts)


def _lines_before(file: Bytes, offset: int) -> int:
    starts = range(0, offset, READ_BYTES)
    return sum(file.read_at(min(READ_BYTES, offset - start), start).count(b"\n") for start in starts)


def _scan(path: Location, format: str, kind: type[Grammar], limit: int) -> Scan:
    """The blocks and the schema of a file, from one pass over all of it. A record has at most ``limit`` bytes."""
    file = open_text(path)
    seeks = not isinstance(file, Inflated)
    grammar, start = kind.begun(path, file, limit)
    blocks, rows, schema = [], 0, grammar.columns()
    for offset, data in _whole_records(path, file, start, seeks, grammar, limit):
        try:
            schema, added = grammar.infer(data, schema)
        except (pa.ArrowException, MalformedError) as error:
            above = _lines_before(file, offset) if grammar.is_line else rows
            raise DataFormatError(f"{path}, {_first_error(grammar, data, schema, above, error)} {FIX}") from error
        if added:
            blocks.append((offset, len(data), added))
            rows += added
    columns = len(schema or ())
    for number, (_, length, added) in enumerate(blocks):  # each row has a value in every column, maybe not in the file
        check_inflation(f"{path}, block {number}, of {columns:,} columns", length, VALUE_BYTES * added * columns, limit)
    return Scan(format, schema, blocks, seeks)


def _first_error(grammar: Grammar, data: bytes, known: pa.Schema | None, above: int, error: Exception) -> str:
    """Which of these records is the first that cannot follow those before it, and why. ``above`` are before them."""
    ends = [0, *grammar.record_ends(data, last=False).tolist(), len(data)]

    def is_wrong(number: int) -> bool:
        try:
            grammar.infer(data[: ends[number]], known)
        except (pa.ArrowException, MalformedError):
            return True
        return False

    first = bisect_left(range(len(ends) - 1), True, lo=1, key=is_wrong)
    known, rows = grammar.infer(data[: ends[first - 1]], known) if first > 1 else (known, 0)
    try:
        grammar.infer(data[ends[first - 1] : ends[first]], known)
    except (pa.ArrowException, MalformedError) as wrong:
        error = wrong
    number = above + first if grammar.is_line else above + rows + 1
    separator = " " if isinstance(error, MalformedError) else ": "
    return f"{grammar.place.format(number)}{separator}{ABOUT_BLOCKS.sub('', str(error)).rstrip('.')}."


class TextBlocks:
    """An open text file. Each read parses the bytes of one block, and converts the wanted columns."""

    def __init__(self, path: Location, file: Bytes, grammar: Grammar, wanted: pa.Schema) -> None:
        self._path, self._file, self._grammar, self._wanted = path, file, grammar, wanted

    def read(self, block: Block) -> pa.Table:
        try:
            table = self._grammar.parse(self._file.read_at(block.length, block.offset), self._wanted)
        except (pa.ArrowException, OSError, MalformedError) as error:
            raise DataFormatError(f"{self._path} cannot be parsed from byte {block.offset:,} on: {error}") from error
        except MemoryError:
            raise DataFormatError(
                f"{self._path} has {block.length:,} bytes from byte {block.offset:,} on, as the index says, and there "
                "is no memory for them. If the file is smaller, the index is damaged: delete it."
            ) from None
        if table.num_rows != block.rows:
            raise DataFormatError(
                f"{self._path} has {count('row', table.num_rows)} from byte {block.offset:,} on, and had "
                f"{block.rows:,} when it was indexed. Open the dataset again."
            )
        return read_as(table, self._wanted)


def text_start(file: Bytes) -> int:
    """The offset of the text, after a byte order mark."""
    return len(BOM) if file.read_at(len(BOM), 0) == BOM else 0


def check_utf8(data: bytes) -> None:
    """Raise unless these bytes are UTF-8; pyarrow does not check this in JSON."""
    offsets = pa.py_buffer(np.array([0, len(data)], np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, offsets, pa.py_buffer(data)).validate(full=True)
    except pa.ArrowInvalid:
        raise MalformedError("is not UTF-8") from None


def _whole_records(
    path: Location, file: Bytes, start: int, seeks: bool, grammar: Grammar, limit: int
) -> Iterator[tuple[int, bytes]]:
    """The blocks of a file from ``start`` on, each with its offset. The size of a read does not change them."""
    size, most = (BLOCK_BYTES, BLOCK_RECORDS) if seeks else (PACKED_BYTES, PACKED_BYTES)
    pending, last = b"", False
    while not last:
        # A record longer than a read is searched again from its start, so each read doubles.
        nbytes = max(READ_BYTES, min(len(pending), limit))
        more = file.read_at(nbytes, start + len(pending))
        last = len(more) < nbytes
        data = pending + more
        try:
            ends = grammar.record_ends(data, last=last)
            longest = int(np.diff(ends, prepend=0, append=len(data)).max())
            if longest > limit:
                raise MalformedError(
                    f"has a record of more than max_record_bytes ({limit:,}). Look for a quote that is not closed, or "
                    "pass a larger max_record_bytes to read"
                )
        except MalformedError as error:
            raise DataFormatError(f"{path} {error}.") from error
        begin = 0
        for end in block_ends(ends, size, most):
            if end == len(data) and not last:  # what follows may say that the last record is wrong
                break
            yield start + begin, data[begin:end]
            begin = end
        if last and begin < len(data):
            yield start + begin, data[begin:]
        pending = data[begin:]
        start += begin


def block_ends(ends: I64, size: int, most: int) -> Iterator[int]:
    """The ends of records that are also ends of blocks."""
    begin, first = 0, 0
    while True:
        large = int(np.searchsorted(ends, begin + size))
        chosen = min(large, first + most - 1)
        if chosen >= len(ends):
            return
        begin, first = int(ends[chosen]), chosen + 1
        yield begin


def widened(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The schema with the fields of both: nulls yield, integers become floats, structs gain fields.

    Raises ``pa.ArrowTypeError`` if no type holds the values of both.
    """
    return pa.unify_schemas([one, other], promote_options="permissive")


def wider_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both; None if there is none."""
    try:
        return widened(pa.schema([("", one)]), pa.schema([("", other)])).field(0).type
    except pa.ArrowTypeError:
        return None


def with_items(kind: pa.DataType) -> pa.DataType:
    """The type, with strings as items of lists whose items are all null.

    pyarrow reads such lists from JSON as damaged arrays: they have fewer items than their offsets say.
    """
    is_empty = pa.types.is_list(kind) and pa.types.is_null(kind.value_type)
    return pa.list_(pa.string()) if is_empty else with_inner(kind, with_items)


def codec_of(head: bytes) -> str | None:
    """The codec of a file that begins with these bytes, or None if it is not compressed as a whole."""
    return next((codec for magic, codec in CODECS.items() if head.startswith(magic)), None)


def compressible(*suffixes: str) -> tuple[str, ...]:
    """The suffixes, and each with that of a compression after it."""
    return suffixes + tuple(suffix + packed for suffix in suffixes for packed in PACKED_SUFFIXES)


def open_text(path: Location) -> Bytes:
    """The bytes of a text file, decompressed if it is compressed."""
    file = open_bytes(path)
    codec = codec_of(file.read_at(4, 0))
    return file if codec is None else Inflated(path, codec)


class Inflated:
    """The content of a compressed file. It is read forward; a jump back starts over from the beginning."""

    def __init__(self, path: Location, codec: str) -> None:
        self._path, self._codec = path, codec
        self._stream: pa.CompressedInputStream | None = None
        self._position = 0
        self._lock = Lock()

    def read_at(self, nbytes: int, offset: int) -> bytes:
        with self._lock:  # a thread may read ahead while another reads
            try:
                return self._read_at(nbytes, offset)
            except (pa.ArrowException, OSError) as error:
                self._stream = None
                raise DataFormatError(
                    f"{self._path} cannot be decompressed ({self._codec}): {error}. It may be truncated: copy or write "
                    "it again."
                ) from error

    def _read_at(self, nbytes: int, offset: int) -> bytes:
        if self._stream is None or offset < self._position:
            packed = pa.BufferedInputStream(open_file(self._path), SKIP_BYTES)  # unbuffered, the reads would be tiny
            self._stream, self._position = pa.CompressedInputStream(packed, self._codec), 0
        while self._position < offset:
            skipped = len(self._stream.read(min(SKIP_BYTES, offset - self._position)))
            if not skipped:
                return b""
            self._position += skipped
        chunks = []
        while nbytes > 0 and (chunk := self._stream.read(nbytes)):
            chunks.append(chunk)
            nbytes -= len(chunk)
            self._position += len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)
