"""What the text formats share: blocks of whole records, found in one pass that also learns the types."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa

from midepoch._common.types import I64
from midepoch.errors import DataFormatError
from midepoch.formats.base import Block, Scan, read_as
from midepoch.formats.text.compressed import Inflated
from midepoch.formats.text.types import TypeClashError
from midepoch.storage.location import Bytes, Location

BOM = b"\xef\xbb\xbf"
NEWLINE = ord("\n")

# A block ends with the first record that makes it this large, or that is this record of it. These numbers are part of
# the order of a block shuffle: with others, states of shuffled text files would go on in another order.
BLOCK_BYTES, BLOCK_RECORDS = 1 << 20, 2048
# A compressed file cannot seek, so its blocks are few and large.
PACKED_BYTES = 8 << 20

READ_BYTES = 4 << 20
MOST_RECORD_BYTES = 512 << 20


class MalformedError(Exception):
    """Bytes that are not of the format. Says what is wrong, without the file's name."""


class Grammar(Protocol):
    """A text format: how its bytes are cut and parsed, and how a mistake in them is told."""

    def record_ends(self, data: bytes, *, last: bool) -> I64:
        """The places right behind whole records, in bytes that begin with one; ``last`` says that nothing follows."""

    def infer(self, data: bytes, known: pa.Schema | None) -> tuple[pa.Schema | None, int]:
        """The schema with room for what was known and for the rows in some whole records, and how many these are."""

    def parse(self, data: bytes, wanted: pa.Schema) -> pa.Table:
        """The rows in some whole records, under a schema."""

    def explain(self, data: bytes, error: Exception, before: "Before") -> str:
        """Where in these records which mistake is."""


class Before:
    """What lies before a block: counted only when an error has to be told."""

    def __init__(self, file: Bytes, offset: int, rows: int) -> None:
        self._file, self._offset, self.rows = file, offset, rows

    def lines(self) -> int:
        """How many lines there are before the block."""
        starts = range(0, self._offset, READ_BYTES)
        return sum(self._file.read_at(min(READ_BYTES, self._offset - at), at).count(b"\n") for at in starts)


def scan_text(path: Location, format: str, file: Bytes, start: int, grammar: Grammar) -> Scan:
    """The blocks and the schema of a file whose records begin at ``start``, from one pass over all of it."""
    seeks = not isinstance(file, Inflated)
    blocks, rows = [], 0
    schema: pa.Schema | None = None
    for offset, data in _whole_records(path, file, start, seeks, grammar):
        try:
            schema, count = grammar.infer(data, schema)
        except (pa.ArrowException, MalformedError, TypeClashError) as error:
            told = grammar.explain(data, error, Before(file, offset, rows))
            raise DataFormatError(f"{path}, {told}") from error
        if count:
            blocks.append((offset, len(data), count))
            rows += count
    return Scan(format, schema, blocks, seeks)


class TextBlocks:
    """An open text file. Each read parses the bytes of one block, and makes columns of those that are wanted."""

    def __init__(self, path: Location, file: Bytes, grammar: Grammar, wanted: pa.Schema) -> None:
        self._path, self._file, self._grammar, self._wanted = path, file, grammar, wanted

    def read(self, block: Block) -> pa.Table:
        """The rows of a block, under the schema that is wanted."""
        try:
            table = self._grammar.parse(self._file.read_at(block.length, block.offset), self._wanted)
        except (pa.ArrowException, OSError, MalformedError) as error:
            raise DataFormatError(f"{self._path} cannot be parsed from byte {block.offset:,} on: {error}") from error
        if table.num_rows != block.rows:
            raise DataFormatError(
                f"{self._path} has {table.num_rows:,} rows from byte {block.offset:,} on, and had {block.rows:,} when "
                "it was indexed. Open the data set again."
            )
        return read_as(table, self._wanted)

    def is_view(self, data: pa.Table | pa.RecordBatch) -> bool:
        """It never is."""
        return False


def first_letter(file: Bytes) -> int:
    """Where the text begins: behind a byte order mark."""
    return len(BOM) if file.read_at(len(BOM), 0) == BOM else 0


def check_utf8(data: bytes) -> None:
    """Raise unless these bytes are UTF-8, which pyarrow does not check in JSON."""
    offsets = pa.py_buffer(np.array([0, len(data)], np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, offsets, pa.py_buffer(data)).validate(full=True)
    except pa.ArrowInvalid:
        raise MalformedError("is not UTF-8") from None


def bad_byte(data: bytes) -> int | None:
    """Where bytes stop being UTF-8, if they do."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None


def _whole_records(
    path: Location, file: Bytes, start: int, seeks: bool, grammar: Grammar
) -> Iterator[tuple[int, bytes]]:
    """The file from ``start`` on in blocks, each with its offset. How much is read at a time does not change them."""
    size, most = (BLOCK_BYTES, BLOCK_RECORDS) if seeks else (PACKED_BYTES, PACKED_BYTES)
    pending, last = b"", False
    while not last:
        # A record longer than what was read is looked through again, so twice as much is read each time.
        count = max(READ_BYTES, len(pending))
        more = file.read_at(count, start + len(pending))
        last = len(more) < count
        data = pending + more
        try:
            ends = grammar.record_ends(data, last=last)
            if not last and len(data) - (int(ends[-1]) if len(ends) else 0) > MOST_RECORD_BYTES:
                raise MalformedError(
                    f"has a record of more than {MOST_RECORD_BYTES >> 20} MiB. A quote may be unclosed"
                )
        except MalformedError as error:
            raise DataFormatError(f"{path} {error}.") from error
        begin = 0
        for end in _block_ends(ends, size, most):
            yield start + begin, data[begin:end]
            begin = end
        if last and begin < len(data):
            yield start + begin, data[begin:]
        pending = data[begin:]
        start += begin


def _block_ends(ends: I64, size: int, most: int) -> Iterator[int]:
    """Which ends of records are ends of blocks."""
    begin, first = 0, 0
    while True:
        large = int(np.searchsorted(ends, begin + size))
        chosen = min(large, first + most - 1)
        if chosen >= len(ends):
            return
        begin, first = int(ends[chosen]), chosen + 1
        yield begin
