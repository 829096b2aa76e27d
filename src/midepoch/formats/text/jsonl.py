"""JSON lines: an object a line. A block is a run of lines, which reading seeks to."""

import json
import re
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from midepoch._common.types import I64
from midepoch.formats.base import Scan
from midepoch.formats.text.compressed import open_text
from midepoch.formats.text.records import (
    NEWLINE,
    Before,
    MalformedError,
    TextBlocks,
    bad_byte,
    check_utf8,
    first_letter,
    scan_text,
)
from midepoch.formats.text.types import TypeClashError, widened_schema, with_items
from midepoch.storage.location import Location

MAPPED = False
TYPES: Literal["values"] = "values"
WAY_OUT = "Mend or remove it, and open the data set again."


def scan(path: Location) -> Scan:
    """The runs of lines of a file and the schema of all its objects, from one pass over the file."""
    file = open_text(path)
    return scan_text(path, "jsonl", file, first_letter(file), Lines())


def open_blocks(path: Location, own: pa.Schema, wanted: pa.Schema) -> TextBlocks:
    """The file."""
    return TextBlocks(path, open_text(path), Lines(), wanted)


class Lines:
    """The grammar of JSON lines."""

    def record_ends(self, data: bytes, *, last: bool) -> I64:
        """Behind each newline: inside a JSON string there are none."""
        return np.flatnonzero(np.frombuffer(data, np.uint8) == NEWLINE) + 1

    def infer(self, data: bytes, known: pa.Schema | None) -> tuple[pa.Schema | None, int]:
        """Fields of either, each wide enough for both."""
        return infer_lines(data, known)

    def parse(self, data: bytes, wanted: pa.Schema) -> pa.Table:
        """An object a line; blank lines are no rows."""
        return parse_lines(data, wanted)

    def explain(self, data: bytes, error: Exception, before: Before) -> str:
        """The line and what is wrong with it."""
        above = before.lines()
        if isinstance(error, TypeClashError):
            end = above + max(1, data.count(b"\n"))
            return f"lines {above + 1:,} to {end:,}: {clash(error)}"
        number, reason = first_mistake(data, error)
        return f"line {above + number + 1:,}: {reason} {WAY_OUT}"


def infer_lines(data: bytes, known: pa.Schema | None) -> tuple[pa.Schema | None, int]:
    """The schema with room for what was known and for the objects of some lines, and how many these are.

    Strings stay strings, also those that look like times: values are what ``json.loads`` gives.
    """
    objects = _count_objects(data)
    if not objects:
        return known, 0
    check_utf8(data)
    table = _read(data, pj.ParseOptions(newlines_in_values=False))
    if table.num_rows != objects:
        raise MalformedError("has more than one value in a line")
    found = pa.schema([field.with_type(_without_times(field.type)) for field in table.schema])
    return widened_schema(known, found), objects


def parse_lines(data: bytes, wanted: pa.Schema) -> pa.Table:
    """The fields that are wanted of the objects of some lines; those that are missing are null."""
    if not data.lstrip().startswith(b"{"):
        raise MalformedError("there is no JSON object")
    schema = pa.schema([field.with_type(with_items(field.type)) for field in wanted])
    return _read(data, pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"))


def _read(data: bytes, options: pj.ParseOptions) -> pa.Table:
    whole = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
    return pj.read_json(pa.BufferReader(data), read_options=whole, parse_options=options)


def _count_objects(data: bytes) -> int:
    """How many lines hold an object; raise if one holds something else, which pyarrow would not survive."""
    letters = np.frombuffer(data, np.uint8)
    begins = np.append(0, np.flatnonzero(letters == NEWLINE) + 1)
    begins = begins[begins < len(letters)]
    odd = begins[letters[begins] != ord("{")].tolist()
    blank = 0
    for begin in odd:
        end = data.find(b"\n", begin)
        line = data[begin : end if end >= 0 else len(data)].strip()
        if line and not line.startswith(b"{"):
            raise MalformedError("has a line that is no JSON object")
        blank += not line
    return len(begins) - blank


def first_mistake(data: bytes, error: Exception) -> tuple[int, str]:
    """The number, among some lines, of the first that is wrong, and why."""
    bad = bad_byte(data)
    lines = data.split(b"\n")
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=_unlike_pairs)
        except UnicodeDecodeError:
            break
        except json.JSONDecodeError as mistake:
            return number, f"this is no whole JSON object ({mistake.msg} at column {mistake.colno})."
        except ValueError as mistake:
            return number, f"{mistake}."
        if not isinstance(value, dict):
            return number, f"a row must be a JSON object, and this is {line.strip()[:20]!r}."
    if bad is not None:
        return data[:bad].count(b"\n"), f"the byte 0x{data[bad]:02x} is not UTF-8."
    # pyarrow counts objects; what it refuses and Python takes is told in its own words.
    match = re.search(r"in row (\d+)", str(error))
    filled = [number for number, line in enumerate(lines) if line.strip()]
    number = filled[min(int(match[1]), len(filled) - 1)] if match else 0
    reason = re.sub(r"^JSON parse error: | in row \d+$", "", str(error))
    return number, f"{_in_words(reason)}."


def clash(error: TypeClashError) -> str:
    """Two types of one field, told with the way out."""
    return (
        f"the field {error.field!r} is {error.other} there and {error.one} before. A field must be of one type: "
        "write the file anew."
    )


def _in_words(reason: str) -> str:
    changed = re.match(r"Column\(/(.*)\) changed from (\w+) to (\w+)", reason)
    if not changed:
        return reason.rstrip(".")
    name = changed[1].replace("/[]", "[]").replace("/", ".")
    return f"the field {name!r} is a {changed[3]} there and a {changed[2]} before; a field must be of one type"


def _unlike_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {twice!r} is there twice")
    return found


def _without_times(kind: pa.DataType) -> pa.DataType:
    """The type with strings in place of the times that pyarrow takes some of them for."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_times(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    return kind
