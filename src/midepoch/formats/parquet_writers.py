"""What old programs wrote into Parquet files by mistake, as Arrow takes it into account when it reads them."""

import re
from typing import NamedTuple

import pyarrow.parquet as pq

SPACES = " \t\v\r\n\f"
MAJOR, VERSION = re.compile("[0-9]{0,9}(?![0-9])"), re.compile("([0-9]{1,9})[.]([0-9]{1,9})[.]([0-9]{1,9})")
PADDING = 100
"""How many bytes more Arrow reads of a column, if the footer leaves out the header of its dictionary."""


class Mistakes(NamedTuple):
    """What the program that wrote a file got wrong."""

    always_compressed: bool | None = False
    """True if pages are compressed that are said not to be; None if only Arrow knows, because the footer is strange."""
    padding: int = 0
    """How many bytes the columns may have more than the footer says."""


def mistakes_in(metadata: pq.FileMetaData) -> Mistakes:
    """What Arrow expects to be wrong in a file, by the name and the version of the program in its footer.

    parquet-cpp, which was its name until 1.5.1, said of compressed pages of version 2 that they are not. parquet-mr
    before 1.2.9 left the header of a dictionary out of the size of its column.
    """
    try:
        created_by = metadata.created_by or ""
    except UnicodeDecodeError:
        return Mistakes(None, PADDING)
    name, _, version = (part.strip(SPACES) for part in created_by.partition(" version "))
    if name == "parquet-cpp":
        major = MAJOR.match(version)  # Arrow takes what is no version for 0.0.0
        return Mistakes(True if major is not None and int(major[0] or 0) < 2 else None)
    if name == "parquet-mr":
        found = VERSION.match(version)
        return Mistakes(padding=PADDING if found is None or tuple(map(int, found.groups())) < (1, 2, 9) else 0)
    return Mistakes()
