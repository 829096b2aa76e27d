"""JSON arrays: one array of objects a file. A block is a run of its elements, read without those before it."""

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from midepoch._common.hashing import I64
from midepoch.errors import DataFormatError
from midepoch.formats.base import MAX_RECORD_BYTES, Format, Scan
from midepoch.formats.text.jsonl import FIX, SUFFIXES, explain_lines, infer_lines, parse_lines
from midepoch.formats.text.records import (
    READ_BYTES,
    MalformedError,
    TextBlocks,
    compressible,
    open_text,
    scan_text,
    text_start,
)
from midepoch.storage.objects import Bytes, Location

QUOTE, COMMA = map(ord, '",')
ESCAPED = re.compile(rb"\\.", re.DOTALL)
STEPS = np.zeros(256, np.int8)
STEPS[[ord("{"), ord("[")]] = 1
STEPS[[ord("}"), ord("]")]] = -1
IS_MARK = STEPS != 0
IS_MARK[[QUOTE, COMMA]] = True


def scan(path: Location, limit: int = MAX_RECORD_BYTES) -> Scan:
    """The runs of elements of a file and the schema of all of them, from one pass over the file."""
    file = open_text(path)
    return scan_text(path, "json", file, _first_element(path, file), Elements(), limit)


def open_blocks(path: Location, own: pa.Schema, wanted: pa.Schema) -> TextBlocks:
    """Open a file."""
    return TextBlocks(path, open_text(path), Elements(), wanted)


class Elements:
    """The grammar of an array, after its opening bracket."""

    def record_ends(self, data: bytes, *, last: bool) -> I64:
        """After each comma between elements, and before the closing bracket."""
        commas, close = _outline(data)
        if close is None:
            if last:
                raise MalformedError("is truncated: its array is not closed. Copy or write it again")
            return commas + 1
        if data[close + 1 :].strip():
            raise MalformedError("has more text after its array. A JSON file must hold one array of objects")
        if len(commas) and not data[int(commas[-1]) + 1 : close].strip():
            raise MalformedError("has a comma after the last element of its array. Remove it")
        return np.append(commas + 1, close) if close else commas

    def infer(self, data: bytes, known: pa.Schema | None) -> tuple[pa.Schema | None, int]:
        lines = _lines(data)
        if _stray_comma(lines) is not None:
            raise MalformedError("has a comma without an element before it")
        return infer_lines(lines, known)

    def parse(self, data: bytes, wanted: pa.Schema) -> pa.Table:
        return parse_lines(_lines(data), wanted)

    def explain(self, data: bytes, error: Exception, rows: int, lines: Callable[[], int]) -> str:
        elements = _lines(data)
        stray = _stray_comma(elements)
        if stray is not None:
            return f"element {rows + stray + 1:,}: a comma has no element before it. {FIX}"
        return explain_lines(elements, error, "element", rows)


def _first_element(path: Location, file: Bytes) -> int:
    """The offset of the array's first element."""
    start = text_start(file)
    head = file.read_at(READ_BYTES, start)
    if not head.lstrip().startswith(b"["):
        raise DataFormatError(f"{path} is no JSON array: it begins with {head.lstrip()[:8]!r} instead of '['.")
    return start + head.index(b"[") + 1


def _lines(data: bytes) -> bytes:
    """Elements as JSON lines: commas between them become newlines, and newlines, mere blank space here, blanks."""
    commas, close = _outline(data)
    letters = np.frombuffer(data if close is None else data[:close], np.uint8).copy()
    letters[letters == ord("\n")] = ord(" ")
    letters[commas] = ord("\n")
    return letters.tobytes()


def _stray_comma(lines: bytes) -> int | None:
    """The number, among these elements as lines, of the first that is blank though a comma follows."""
    if re.search(rb"(?:\A|\n)[ \t\r]*\n", lines) is None:
        return None
    return next(number for number, line in enumerate(lines.split(b"\n")) if not line.strip())


def _outline(data: bytes) -> tuple[I64, int | None]:
    """The offsets of the commas between elements, and of the bracket that closes the array, if it is there."""
    letters = np.frombuffer(ESCAPED.sub(b"  ", data), np.uint8)
    marks = np.flatnonzero(IS_MARK[letters])
    kinds = letters[marks]
    outside = np.cumsum(kinds == QUOTE) % 2 == 0
    steps = STEPS[kinds]
    depth = np.cumsum(np.where(outside, steps, 0))
    closing = np.flatnonzero(depth < 0)
    until = int(closing[0]) if len(closing) else len(marks)
    is_comma = (kinds[:until] == COMMA) & outside[:until] & (depth[:until] == 0)
    return marks[:until][is_comma], int(marks[until]) if len(closing) else None


FORMAT = Format(
    name="json",
    suffixes=compressible(*SUFFIXES),
    types="values",
    is_text=lambda head: head.begins.startswith(b"["),
    includes=("jsonl",),  # many call both of them JSON
    scan=scan,
    open_blocks=open_blocks,
)
