"""JSON lines as text: a row is a whole line, whatever its fields are. Blocks are those of JSON lines."""

import numpy as np
import pyarrow as pa

from midepoch._common.hashing import I64
from midepoch.formats.base import Format, Scan, TextHead
from midepoch.formats.inflation import MAX_RECORD_BYTES
from midepoch.formats.text.compressed import open_text
from midepoch.formats.text.jsonl import FIX, first_error
from midepoch.formats.text.records import NEWLINE, Before, TextBlocks, check_utf8, scan_text, text_start
from midepoch.storage.location import Location

SCHEMA = pa.schema([("line", pa.string())])


def scan(path: Location, limit: int = MAX_RECORD_BYTES) -> Scan:
    """The runs of lines of a file, from one pass over the file."""
    file = open_text(path)
    return scan_text(path, "lines", file, text_start(file), TextLines(), limit)


def open_blocks(path: Location, own: pa.Schema, wanted: pa.Schema, limit: int = MAX_RECORD_BYTES) -> TextBlocks:
    """Open a file."""
    return TextBlocks(path, open_text(path), TextLines(), wanted)


class TextLines:
    """The grammar of lines: each but the blank ones is a row."""

    def record_ends(self, data: bytes, *, last: bool) -> I64:
        return np.flatnonzero(np.frombuffer(data, np.uint8) == NEWLINE) + 1

    def infer(self, data: bytes, known: pa.Schema | None) -> tuple[pa.Schema | None, int]:
        check_utf8(data)
        return SCHEMA, len(_lines(data))

    def parse(self, data: bytes, wanted: pa.Schema) -> pa.Table:
        return pa.table({"line": pa.array([line.decode() for line in _lines(data)], pa.string())})

    def explain(self, data: bytes, error: Exception, before: Before) -> str:
        number, reason = first_error(data, error)
        return f"line {before.lines() + number + 1:,}: {reason} {FIX}"


def _lines(data: bytes) -> list[bytes]:
    return [line for line in map(bytes.strip, data.split(b"\n")) if line]


def _is_text(head: TextHead) -> bool:
    is_jsonl = head.begins.startswith(b"{") or (head.assumed == "jsonl" and not head.begins.startswith(b"["))
    return head.asked == "lines" and is_jsonl


FORMAT = Format(name="lines", suffixes=(), types="fixed", is_text=_is_text, scan=scan, open_blocks=open_blocks)
