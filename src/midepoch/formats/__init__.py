"""File formats: each finds the blocks of a file, and reads one block at a time.

A format is a :class:`Format` that its own module declares. To add one, write that module and name it in ``FORMATS``.
"""

from collections.abc import Mapping

from midepoch.formats import arrow, orc, parquet
from midepoch.formats.base import Block, BlockReader, Format, Range, Scan, read_all
from midepoch.formats.detect import detect
from midepoch.formats.inflation import MAX_RECORD_BYTES, NO_LIMIT
from midepoch.formats.text import csv, json_array, jsonl, raw_lines
from midepoch.storage.objects import Location

__all__ = [
    "EMPTY",
    "FORMATS",
    "MAX_RECORD_BYTES",
    "NO_LIMIT",
    "Block",
    "BlockReader",
    "Format",
    "Range",
    "Scan",
    "file_suffixes",
    "read_all",
    "scan_file",
]

FORMATS: Mapping[str, Format] = {
    one.name: one
    for one in (
        arrow.FORMAT,
        parquet.FORMAT,
        orc.FORMAT,
        raw_lines.FORMAT,
        csv.FORMAT,
        jsonl.FORMAT,
        json_array.FORMAT,
    )
}
"""All formats by name. Their order decides when several recognise the same text file."""
EMPTY = "empty"
"""The format of a file without bytes."""


def scan_file(path: Location, format: str | None = None, limit: int = MAX_RECORD_BYTES) -> Scan:
    """Find a file's format, or check that it is the one asked for, and scan the file. ``limit`` is max_record_bytes."""
    name = detect(path, format, FORMATS)
    return Scan(EMPTY, None, ()) if name is None else FORMATS[name].scan(path, limit)


def file_suffixes(format: str | None = None) -> tuple[str, ...]:
    """How the names of data files end: those of a format, or of all formats if none is asked for or it has none."""
    own = FORMATS[format].suffixes if format is not None and format in FORMATS else ()
    return own or tuple(dict.fromkeys(suffix for one in FORMATS.values() for suffix in one.suffixes))
