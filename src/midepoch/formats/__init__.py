"""File formats: each knows a file's blocks, and reads one block at a time."""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from midepoch.formats import arrow, orc, parquet
from midepoch.formats.base import Block, BlockReader, Format, Range, Scan, read_all
from midepoch.formats.detect import format_of
from midepoch.formats.text import csv, jsonl
from midepoch.formats.text import json_array as json
from midepoch.formats.text import raw_lines as lines
from midepoch.storage.location import Location

__all__ = [
    "EMPTY",
    "FORMATS",
    "RANGES",
    "SPANNED",
    "Block",
    "BlockReader",
    "Format",
    "Range",
    "Scan",
    "read_all",
    "scan_file",
]

FORMATS: Mapping[str, Format] = {
    "arrow": arrow,
    "parquet": parquet,
    "jsonl": jsonl,
    "csv": csv,
    "json": json,
    "lines": lines,
    "orc": orc,
}
RANGES: Mapping[str, Callable[[Location, Sequence[pa.Field]], Sequence[Mapping[str, Range]]]] = {
    "parquet": parquet.ranges
}
"""What tells of the blocks of a file which values some columns can have there, for formats that know."""
SPANNED = ("parquet",)
"""The formats whose readers know which bytes a block is made of, so that several blocks are fetched together."""
EMPTY = "empty"


def scan_file(path: Location, format: str | None = None) -> Scan:
    """Tell a file's format, and scan it."""
    name = format_of(path, format)
    return Scan(EMPTY, None, ()) if name is None else FORMATS[name].scan(path)
