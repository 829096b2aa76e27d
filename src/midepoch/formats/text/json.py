"""JSON: one object a line, or one array of objects a file. A block is a run of them, read without those before it.

Of the format "lines", a row is a whole line, whatever its fields are.
"""

import re
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from midepoch._common.hashing import I64
from midepoch.errors import DataFormatError
from midepoch.formats.base import TextHead, with_inner
from midepoch.formats.text.records import (
    NEWLINE,
    READ_BYTES,
    Grammar,
    MalformedError,
    check_utf8,
    compressible,
    text_format,
    text_start,
    widened,
    with_items,
)
from midepoch.storage.objects import Bytes, Location

SUFFIXES = (".jsonl", ".ndjson", ".json")
TEXT = pa.schema([("line", pa.string())])
MOST_LEVELS = 100
"""More than data has. Arrow cannot store the schema of some hundreds."""
STRING = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or the rest of the text if it is not closed, so that nothing is searched twice."""
OPENING, CLOSING = b"{[", b"}]"
QUOTE, COMMA = map(ord, '",')
ESCAPED = re.compile(rb"\\.", re.DOTALL)
STEPS = np.zeros(256, np.int8)
STEPS[[ord("{"), ord("[")]] = 1
STEPS[[ord("}"), ord("]")]] = -1
IS_MARK = STEPS != 0
IS_MARK[[QUOTE, COMMA]] = True


class Lines(Grammar):
    """The grammar of JSON lines."""

    place = "line {:,}"
    is_line = True

    def record_ends(self, data: bytes, *, last: bool) -> I64:
        """After each newline: a JSON string contains none."""
        return np.flatnonzero(np.frombuffer(data, np.uint8) == NEWLINE) + 1

    def infer(self, data: bytes, known: pa.Schema | None) -> tuple[pa.Schema | None, int]:
        """A schema that fits the known one and the objects of these lines, and the number of these objects.

        Strings stay strings, even those that look like times: values are those that ``json.loads`` returns.
        """
        objects = _count_objects(data)
        if not objects:
            return known, 0
        check_utf8(data)
        table = _read(data, pj.ParseOptions(newlines_in_values=False))
        if table.num_rows != objects:
            raise MalformedError("has more than one value")
        inferred = pa.schema([field.with_type(_without_times(field.type)) for field in table.schema])
        return inferred if known is None else widened(known, inferred), objects

    def parse(self, data: bytes, wanted: pa.Schema) -> pa.Table:
        """The wanted fields of the objects of these lines; a missing field is null."""
        if not data.lstrip().startswith(b"{"):
            raise MalformedError("there is no JSON object")
        schema = pa.schema([field.with_type(with_items(field.type)) for field in wanted])
        return _read(data, pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"))


class TextLines(Lines):
    """The grammar of JSON lines as text: a row is a whole line, whatever its fields are."""

    def infer(self, data: bytes, known: pa.Schema | None) -> tuple[pa.Schema | None, int]:
        check_utf8(data)
        return TEXT, len(_filled_lines(data))

    def parse(self, data: bytes, wanted: pa.Schema) -> pa.Table:
        return pa.table({"line": pa.array([line.decode() for line in _filled_lines(data)], pa.string())})


def _filled_lines(data: bytes) -> list[bytes]:
    return [line for line in map(bytes.strip, data.split(b"\n")) if line]


def _is_text(head: TextHead) -> bool:
    is_jsonl = head.begins.startswith(b"{") or (head.assumed == "jsonl" and not head.begins.startswith(b"["))
    return head.asked == "lines" and is_jsonl


class Elements(Lines):
    """The grammar of an array, after its opening bracket."""

    place = "element {:,}"
    is_line = False

    @classmethod
    def begun(cls, path: Location, file: Bytes, limit: int) -> tuple[Self, int]:
        start = text_start(file)
        head = file.read_at(READ_BYTES, start)
        if not head.lstrip().startswith(b"["):
            raise DataFormatError(f"{path} is no JSON array: it begins with {head.lstrip()[:8]!r} instead of '['.")
        return cls(), start + head.index(b"[") + 1

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
        lines = _as_lines(data)
        if re.search(rb"(?:\A|\n)[ \t\r]*\n", lines) is not None:
            raise MalformedError("has a comma without an element before it")
        return super().infer(lines, known)

    def parse(self, data: bytes, wanted: pa.Schema) -> pa.Table:
        return super().parse(_as_lines(data), wanted)


def _as_lines(data: bytes) -> bytes:
    """Elements as JSON lines: commas between them become newlines, and newlines, mere blank space here, blanks."""
    commas, close = _outline(data)
    letters = np.frombuffer(data if close is None else data[:close], np.uint8).copy()
    letters[letters == ord("\n")] = ord(" ")
    letters[commas] = ord("\n")
    return letters.tobytes()


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


def _read(data: bytes, options: pj.ParseOptions) -> pa.Table:
    whole = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
    return pj.read_json(pa.BufferReader(data), read_options=whole, parse_options=options)


def _count_objects(data: bytes) -> int:
    """The number of lines that hold an object. Raise if a line holds something else, because pyarrow would crash.

    It would crash on values that are nested too deep as well.
    """
    letters = np.frombuffer(data, np.uint8)
    begins = np.append(0, np.flatnonzero(letters == NEWLINE) + 1)
    begins = begins[begins < len(letters)]
    check_nesting(data, begins)
    odd = begins[letters[begins] != ord("{")].tolist()
    blank = 0
    for begin in odd:
        end = data.find(b"\n", begin)
        line = data[begin : end if end >= 0 else len(data)].strip()
        if line and not line.startswith(b"{"):
            raise MalformedError("is no JSON object")
        blank += not line
    return len(begins) - blank


def _without_times(kind: pa.DataType) -> pa.DataType:
    """The type, with strings in place of the times that pyarrow infers from some strings."""
    return pa.string() if pa.types.is_timestamp(kind) else with_inner(kind, _without_times)


def check_nesting(data: bytes, begins: I64) -> None:
    """Raise unless the values in these lines are nested ``MOST_LEVELS`` deep at most; ``begins`` are their offsets."""
    letters = np.frombuffer(data, np.uint8)
    is_opening = (letters == OPENING[0]) | (letters == OPENING[1])
    if len(begins) == 0 or np.count_nonzero(is_opening) <= MOST_LEVELS:
        return
    openings = np.add.reduceat(is_opening, begins, dtype=np.int64)
    for number in np.flatnonzero(openings > MOST_LEVELS).tolist():  # not all of them are inside each other
        end = begins[number + 1] if number + 1 < len(begins) else len(data)
        if is_too_deep(data[begins[number] : end]):
            raise MalformedError(f"has values that are nested more than {MOST_LEVELS} deep")


def is_too_deep(line: bytes) -> bool:
    """True if a value in this line is nested more than ``MOST_LEVELS`` deep."""
    letters = np.frombuffer(STRING.sub(b"", line), np.uint8)
    steps = np.isin(letters, [*OPENING]).astype(np.int64) - np.isin(letters, [*CLOSING])
    return len(steps) > 0 and int(np.cumsum(steps).max()) > MOST_LEVELS


LINES = text_format("lines", TextLines, suffixes=(), is_text=_is_text)
JSONL = text_format(
    "jsonl",
    Lines,
    suffixes=compressible(*SUFFIXES),
    types="values",
    is_text=lambda head: head.begins.startswith(b"{"),
)
ARRAY = text_format(
    "json",
    Elements,
    suffixes=compressible(*SUFFIXES),
    types="values",
    is_text=lambda head: head.begins.startswith(b"["),
    includes=("jsonl",),  # many call both of them JSON
)
