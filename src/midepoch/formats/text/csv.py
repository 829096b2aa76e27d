"""CSV with a header: a block is a run of whole records, quoted newlines included, read without those before it."""

import re
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from midepoch._common.checks import count
from midepoch._common.hashing import I64
from midepoch.errors import DataFormatError
from midepoch.formats.base import MAX_RECORD_BYTES, Format, Scan
from midepoch.formats.text.records import (
    NEWLINE,
    READ_BYTES,
    Before,
    MalformedError,
    TextBlocks,
    TypeClashError,
    bad_byte,
    compressible,
    open_text,
    scan_text,
    text_start,
    widened,
)
from midepoch.storage.objects import Bytes, Location

QUOTE, RETURN = map(ord, '"\r')
# Without 0 and 1: with them, the type of a column would depend on which of its rows share a block.
TRUE, FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]


def scan(path: Location, limit: int = MAX_RECORD_BYTES) -> Scan:
    """The runs of records of a file and the types of its columns, from one pass over the file."""
    file = open_text(path)
    delimiter = _delimiter(path)
    names, start = _header(path, file, delimiter, limit)
    scanned = scan_text(path, "csv", file, start, Records(delimiter, tuple(names)), limit)
    untyped = pa.schema([(name, pa.null()) for name in names])
    return scanned if scanned.schema is not None else replace(scanned, schema=untyped)


def open_blocks(path: Location, own: pa.Schema, wanted: pa.Schema) -> TextBlocks:
    """Open a file; its header was read when it was scanned."""
    return TextBlocks(path, open_text(path), Records(_delimiter(path), tuple(own.names)), wanted)


@dataclass(frozen=True, slots=True)
class Records:
    """The grammar of a CSV file with these columns, after its header."""

    delimiter: str
    names: tuple[str, ...]

    def record_ends(self, data: bytes, *, last: bool) -> I64:
        return record_ends(data, ord(self.delimiter), last=last)

    def infer(self, data: bytes, known: pa.Schema | None) -> tuple[pa.Schema | None, int]:
        """Integers, floats and booleans; all else is strings: also dates, and columns that mix types."""
        table = self._read(data, {}, [])
        if table.num_rows == 0:
            return known, 0
        has_hex = pa.int64() in table.schema.types and _has_hex(data)
        kinds = [self._plain(data, field, has_hex) for field in table.schema]
        if known is not None:
            kinds = [text_widened(one, kind, "") for one, kind in zip(known.types, kinds, strict=True)]
        return pa.schema(list(zip(self.names, kinds, strict=True))), table.num_rows

    def parse(self, data: bytes, wanted: pa.Schema) -> pa.Table:
        """The wanted columns. An empty field is null, and in a column of strings the empty string."""
        return self._read(data, dict(zip(wanted.names, wanted.types, strict=True)), wanted.names)

    def explain(self, data: bytes, error: Exception, before: Before) -> str:
        """The row, counted from 1 after the header, and what is wrong with it."""
        bad = bad_byte(data)
        if bad is not None:
            line = before.lines() + data[:bad].count(b"\n") + 1
            return f"line {line:,}: the byte 0x{data[bad]:02x} is not UTF-8. Write the file again in UTF-8."
        ragged = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", str(error))
        if not ragged:
            return f"rows from {before.rows + 1:,} on: {error}"
        row = before.rows + int(ragged[1])
        return (
            f"row {row:,} after the header has {count('field', int(ragged[3]))}, and the header has "
            f"{int(ragged[2]):,}. Correct the row; a field that holds the delimiter must be quoted."
        )

    def _read(self, data: bytes, types: dict[str, pa.DataType], names: list[str]) -> pa.Table:
        return pc.read_csv(
            pa.BufferReader(data),
            pc.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=self.names),
            pc.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            pc.ConvertOptions(column_types=types, include_columns=names, true_values=TRUE, false_values=FALSE),
        )

    def _plain(self, data: bytes, field: pa.Field, has_hex: bool) -> pa.DataType:
        kind = field.type
        if pa.types.is_binary(kind):
            raise MalformedError("is not UTF-8")
        if pa.types.is_int64(kind) and has_hex:
            # pyarrow accepts hexadecimal numbers as integers but not as floats. They stay strings.
            try:
                self._read(data, {field.name: pa.float64()}, [field.name])
            except pa.ArrowInvalid:
                return pa.string()
        is_plain = any(kind.equals(one) for one in (pa.null(), pa.int64(), pa.float64(), pa.bool_()))
        return kind if is_plain else pa.string()


def text_widened(one: pa.DataType, other: pa.DataType, field: str) -> pa.DataType:
    """The type that holds both; a string, if no other type does."""
    try:
        return widened(one, other, field)
    except TypeClashError:
        return pa.string()


def _has_hex(data: bytes) -> bool:
    letters = np.frombuffer(data, np.uint8)
    return bool(((letters[:-1] == ord("0")) & ((letters[1:] | 32) == ord("x"))).any())


def record_ends(data: bytes, delimiter: int, *, last: bool) -> I64:
    """The offsets after each newline that no quotes enclose, in bytes that begin with a record.

    As in pyarrow, only a quote at the beginning of a field opens; any other quote outside of quotes is a letter.
    """
    letters = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(letters == NEWLINE)
    quotes = np.flatnonzero(letters == QUOTE)
    if not len(quotes):
        return newlines + 1
    if _are_pairs(letters, quotes, delimiter):
        inside = np.searchsorted(quotes, newlines) % 2 == 1
        unclosed = len(quotes) % 2 == 1
    else:
        opens, closes = _walk(data, quotes.tolist(), delimiter)
        before = np.searchsorted(opens, newlines) - 1
        inside = newlines < closes[before]
        unclosed = int(closes[-1]) == len(data)
    if last and unclosed:
        raise MalformedError("ends inside quotes: a quote is opened and never closed")
    ends: I64 = newlines[~inside] + 1
    return ends


def _are_pairs(letters: np.ndarray, quotes: I64, delimiter: int) -> bool:
    """True if quotes come in pairs: each first one begins a field or follows a quote, each second one ends likewise."""
    edges = np.array([delimiter, NEWLINE, RETURN], np.uint8)
    opens, closes = quotes[::2], quotes[1::2]
    before = letters[opens - 1]
    after = letters[np.minimum(closes + 1, len(letters) - 1)]
    opened = np.isin(before, edges) | (before == QUOTE) | (opens == 0)
    closed = np.isin(after, edges) | (after == QUOTE) | (closes == len(letters) - 1)
    # A quote right before the first of a pair is the second of the pair before: together they are an escaped quote.
    return bool(opened.all() and closed.all())


def _walk(data: bytes, quotes: list[int], delimiter: int) -> tuple[I64, I64]:
    """Where quoted text begins and ends, quote by quote: for files with quotes in the middle of fields."""
    edges = (delimiter, NEWLINE, RETURN)
    opens, closes = [-1], [-1]
    number = 0
    while number < len(quotes):
        begin = quotes[number]
        number += 1
        if begin > 0 and data[begin - 1] not in edges:
            continue
        while number + 1 < len(quotes) and quotes[number + 1] == quotes[number] + 1:
            number += 2
        opens.append(begin)
        closes.append(quotes[number] if number < len(quotes) else len(data))
        number += 1
    return np.array(opens), np.array(closes)


def _delimiter(path: Location) -> str:
    return "\t" if re.search(r"\.tsv(\.\w+)?$", str(path), re.IGNORECASE) else ","


def _header(path: Location, file: Bytes, delimiter: str, limit: int) -> tuple[list[str], int]:
    """The names of the columns, and the offset of the first record after them."""
    start, nbytes = text_start(file), READ_BYTES >> 6
    while True:
        head = file.read_at(nbytes, start)
        last = len(head) < nbytes
        blank = len(head) - len(head.lstrip(b"\r\n"))
        try:
            ends = record_ends(head[blank:], ord(delimiter), last=last)
        except MalformedError as error:
            raise DataFormatError(f"{path} {error}.") from error
        if len(ends) or last:
            break
        if nbytes > limit:
            raise DataFormatError(
                f"{path} has a header of more than max_record_bytes ({limit:,}). Look for a quote that is not closed."
            )
        nbytes *= 2
    end = blank + (int(ends[0]) if len(ends) else len(head) - blank)
    try:
        table = pc.read_csv(
            pa.BufferReader(head[blank:end].rstrip(b"\r\n") + b"\n"),
            parse_options=pc.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        )
        names = table.column_names
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataFormatError(f"{path} has no header: {error}. The first line must name the columns.") from error
    if table.num_rows:
        raise DataFormatError(f"{path} ends its lines with CR alone. Convert them to LF or CRLF.")
    if "" in names:
        raise DataFormatError(f"{path} has a column without a name in its first line. Name it there.")
    return names, start + end


FORMAT = Format(
    name="csv",
    suffixes=compressible(".csv", ".tsv"),
    types="text",
    is_text=lambda head: head.assumed == "csv",  # a CSV file may begin with a brace or bracket
    scan=scan,
    open_blocks=open_blocks,
)
