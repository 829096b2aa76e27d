"""CSV with a header: a block is a run of whole records, quoted newlines included, read without those before it."""

import re
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from midepoch._common.hashing import I64
from midepoch.errors import DataFormatError
from midepoch.formats.text.records import (
    NEWLINE,
    READ_BYTES,
    Grammar,
    MalformedError,
    compressible,
    text_format,
    text_start,
    wider_type,
)
from midepoch.storage.objects import Bytes, Location

QUOTED = rb'(?<![^%b\n\r])"(?:[^"]+|"")*+("?)'
"""A field in quotes: from a quote that begins a field to the one that closes it, or to the end of the bytes."""
# Without 0 and 1: with them, the type of a column would depend on which of its rows share a block.
TRUE, FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]


@dataclass(frozen=True, slots=True)
class Records(Grammar):
    """The grammar of a CSV file with these columns, after its header."""

    place = "row {:,} after the header"

    delimiter: str
    names: tuple[str, ...]

    @classmethod
    def begun(cls, path: Location, file: Bytes, limit: int) -> tuple[Self, int]:
        delimiter = _delimiter(path)
        names, start = _header(path, file, delimiter, limit)
        return cls(delimiter, tuple(names)), start

    @classmethod
    def known(cls, path: Location, own: pa.Schema) -> Self:
        return cls(_delimiter(path), tuple(own.names))

    def columns(self) -> pa.Schema:
        return pa.schema([(name, pa.null()) for name in self.names])

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
            kinds = [wider_type(one, kind) or pa.string() for one, kind in zip(known.types, kinds, strict=True)]
        return pa.schema(list(zip(self.names, kinds, strict=True))), table.num_rows

    def parse(self, data: bytes, wanted: pa.Schema) -> pa.Table:
        """The wanted columns. An empty field is null, and in a column of strings the empty string."""
        return self._read(data, dict(zip(wanted.names, wanted.types, strict=True)), wanted.names)

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


def _has_hex(data: bytes) -> bool:
    letters = np.frombuffer(data, np.uint8)
    return bool(((letters[:-1] == ord("0")) & ((letters[1:] | 32) == ord("x"))).any())


def record_ends(data: bytes, delimiter: int, *, last: bool) -> I64:
    """The offsets after each newline that no quotes enclose, in bytes that begin with a record.

    As in pyarrow, only a quote at the beginning of a field opens; any other quote outside of quotes is a letter.
    """
    newlines = np.flatnonzero(np.frombuffer(data, np.uint8) == NEWLINE)
    bounds, is_closed = [0], True
    for quoted in re.finditer(QUOTED % re.escape(bytes([delimiter])), data):
        bounds += quoted.span()
        is_closed = bool(quoted[1])
    if last and not is_closed:
        raise MalformedError("ends inside quotes: a quote is opened and never closed")
    ends: I64 = newlines[np.searchsorted(bounds, newlines, "right") % 2 == 1] + 1
    return ends


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


FORMAT = text_format(
    "csv",
    Records,
    suffixes=compressible(".csv", ".tsv"),
    types="text",
    is_text=lambda head: head.assumed == "csv",  # a CSV file may begin with a brace or bracket
)
