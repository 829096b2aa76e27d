"""File formats: each finds the blocks of a file, and reads one block at a time.

A format is a :class:`Format` that its own module declares. To add one, write that module and register it in
:mod:`midepoch.formats.detect`, or with ``midepoch.extending.register_format``.
"""

from midepoch.formats.base import MAX_RECORD_BYTES, NO_LIMIT, Block, BlockReader, Format, Range, Scan, read_all
from midepoch.formats.detect import EMPTY, FORMATS, detect, file_suffixes, register_format, scan_file

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
    "detect",
    "file_suffixes",
    "read_all",
    "register_format",
    "scan_file",
]
