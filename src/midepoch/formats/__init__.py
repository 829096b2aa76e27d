"""File formats: each knows a file's blocks from its headers, and reads one block at a time."""

from collections.abc import Mapping

from midepoch.errors import DataFormatError
from midepoch.formats import arrow, parquet
from midepoch.formats.block import Block, BlockReader, Format, Scan

__all__ = ["EMPTY", "FORMATS", "Block", "BlockReader", "Format", "Scan", "scan_file"]

FORMATS: Mapping[str, Format] = {"arrow": arrow, "parquet": parquet}
EMPTY = "empty"


def scan_file(path: str) -> Scan:
    """Tell a file's format by its bytes, and scan it."""
    with open(path, "rb") as file:
        head = file.read(8)
    if not head:
        return Scan(EMPTY, None, ())
    if head.startswith(b"PAR1"):
        name = "parquet"
    elif head.startswith((b"ARROW1", arrow.CONTINUATION)) or arrow.is_legacy_stream(head):
        name = "arrow"
    else:
        raise DataFormatError(
            f"{path} is neither Arrow nor Parquet: it begins with {head!r}. "
            "Remove it from the folder, or narrow the glob so that it is left out."
        )
    return FORMATS[name].scan(path)
