"""File formats: each knows a file's blocks, and reads one block at a time."""

from collections.abc import Mapping

from midepoch.formats import arrow, csv, json, jsonl, lines, orc, parquet
from midepoch.formats.block import Block, BlockReader, Format, Scan
from midepoch.formats.detect import format_of

__all__ = ["EMPTY", "FORMATS", "Block", "BlockReader", "Format", "Scan", "scan_file"]

FORMATS: Mapping[str, Format] = {
    "arrow": arrow,
    "parquet": parquet,
    "jsonl": jsonl,
    "csv": csv,
    "json": json,
    "lines": lines,
    "orc": orc,
}
EMPTY = "empty"


def scan_file(path: str, format: str | None = None) -> Scan:
    """Tell a file's format, and scan it."""
    name = format_of(path, format)
    return Scan(EMPTY, None, ()) if name is None else FORMATS[name].scan(path)
