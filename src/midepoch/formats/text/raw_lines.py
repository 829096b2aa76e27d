"""JSON lines as text: a row is a whole line, whatever its fields are. A block is a run of lines, as of JSON lines."""

from typing import Literal

import numpy as np
import pyarrow as pa

from midepoch._common.types import I64
from midepoch.formats.base import Scan
from midepoch.formats.text.compressed import open_text
from midepoch.formats.text.jsonl import WAY_OUT, first_mistake
from midepoch.formats.text.records import NEWLINE, Before, TextBlocks, check_utf8, first_letter, scan_text
from midepoch.storage.location import Location

MAPPED = False
TYPES: Literal["fixed"] = "fixed"
SCHEMA = pa.schema([("line", pa.string())])


def scan(path: Location) -> Scan:
    """The runs of lines of a file, from one pass over the file."""
    file = open_text(path)
    return scan_text(path, "lines", file, first_letter(file), TextLines())


def open_blocks(path: Location, own: pa.Schema, wanted: pa.Schema) -> TextBlocks:
    """The file."""
    return TextBlocks(path, open_text(path), TextLines(), wanted)


class TextLines:
    """The grammar of lines: each but the blank ones is a row."""

    def record_ends(self, data: bytes, *, last: bool) -> I64:
        """Behind each newline."""
        return np.flatnonzero(np.frombuffer(data, np.uint8) == NEWLINE) + 1

    def infer(self, data: bytes, known: pa.Schema | None) -> tuple[pa.Schema | None, int]:
        """One column of text."""
        check_utf8(data)
        return SCHEMA, len(_lines(data))

    def parse(self, data: bytes, wanted: pa.Schema) -> pa.Table:
        """The lines."""
        return pa.table({"line": pa.array([line.decode() for line in _lines(data)], pa.string())})

    def explain(self, data: bytes, error: Exception, before: Before) -> str:
        """The line that is no text."""
        number, reason = first_mistake(data, error)
        return f"line {before.lines() + number + 1:,}: {reason} {WAY_OUT}"


def _lines(data: bytes) -> list[bytes]:
    return [line for line in map(bytes.strip, data.split(b"\n")) if line]
