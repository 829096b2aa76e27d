"""All formats, and which of them a file has: as its first bytes say, else its name or the user."""

import re
from dataclasses import replace

from midepoch.errors import DataFormatError
from midepoch.formats import arrow, mds, orc, parquet, tar
from midepoch.formats.base import MAX_RECORD_BYTES, Format, Scan, TextHead, as_read
from midepoch.formats.text import csv, json
from midepoch.formats.text.records import BOM, codec_of, open_text
from midepoch.storage.listing import unread_kind
from midepoch.storage.objects import Location, open_bytes

FORMATS: dict[str, Format] = {}
"""All formats by name. Their order decides when several recognise the same file."""
EMPTY = "empty"
"""The format of a file without bytes."""
HEAD_BYTES = 4096


def register_format(format: Format) -> None:
    """Let this process read a format. A worker that is spawned must import the module that calls this."""
    if FORMATS.setdefault(format.name, format) is not format:
        raise ValueError(f"There is a format {format.name!r} already. Give yours another name.")


# tar first, because its files begin with the name of a member, which can look like anything.
for _format in (
    *(tar.FORMAT, mds.FORMAT, arrow.FORMAT, parquet.FORMAT, orc.FORMAT),
    *(json.LINES, csv.FORMAT, json.JSONL, json.ARRAY),
):
    register_format(_format)


def scan_file(path: Location, format: str | None = None, limit: int = MAX_RECORD_BYTES) -> Scan:
    """Find a file's format, or check that it is the one asked for, and scan the file. ``limit`` is max_record_bytes."""
    name = detect(path, format)
    if name is None:
        return Scan(EMPTY, None, ())
    scan = FORMATS[name].scan(path, limit)
    return scan if scan.schema is None else replace(scan, schema=as_read(scan.schema))


def file_suffixes(format: str | None = None) -> tuple[str, ...]:
    """How the names of data files end: those of a format, or of all formats if none is asked for or it has none."""
    own = FORMATS[format].suffixes if format is not None and format in FORMATS else ()
    return own or tuple(dict.fromkeys(suffix for one in FORMATS.values() for suffix in one.suffixes))


def detect(path: Location, asked: str | None) -> str | None:
    """The name of a file's format, or None if the file holds nothing.

    ``asked`` decides where the bytes do not. Raise if the file is of another format than ``asked``.
    """
    head = open_bytes(path).read_at(HEAD_BYTES, 0)
    name = _by_magic(head) or _by_whole_name(str(path).lower())
    if name is None:
        if not head:
            return None
        name = _by_text(path, head, asked)
    if asked is not None and name is not None and name not in (asked, *FORMATS[asked].includes):
        raise DataFormatError(
            f"{path} is {name}, but format={asked!r} was asked for. Leave format out, or leave out the file."
        )
    return name


def _by_magic(head: bytes) -> str | None:
    """The binary format of a file that begins with these bytes."""
    return next((one.name for one in FORMATS.values() if one.has_magic is not None and one.has_magic(head)), None)


def _by_whole_name(path: str) -> str | None:
    """The format of which every file with this name is."""
    return next((one.name for one in FORMATS.values() if one.is_named and path.endswith(one.suffixes)), None)


def _by_text(path: Location, head: bytes, asked: str | None) -> str | None:
    """The text format of a file; None if it holds nothing but blank space."""
    if codec_of(head) is not None:
        head = open_text(path).read_at(HEAD_BYTES, 0)
    begins = head.removeprefix(BOM).lstrip()
    assumed = asked if asked is not None and _can_be_assumed(FORMATS[asked]) else _by_name(str(path))
    if not begins and len(head) < HEAD_BYTES and assumed:
        return None
    text = TextHead(begins, asked, assumed)
    recognised = (one.name for one in FORMATS.values() if one.is_text is not None and one.is_text(text))
    name = next(recognised, assumed)
    if name is not None:
        return name
    packed = _by_magic(head)
    if packed is not None:
        raise DataFormatError(
            f"{path} is {packed}, compressed as a whole, which cannot be read in place. Decompress it."
        )
    if (unread := unread_kind([str(path)])) is not None:
        raise DataFormatError(
            f"{path} cannot be read: midepoch does not read {unread[0]}. {unread[1]}. If other files are meant, narrow "
            "the glob so that this one is left out."
        )
    as_csv = "" if b"\0" in head else "If it is CSV, pass format='csv'. "
    raise DataFormatError(
        f"{path} has no known format ({', '.join(FORMATS)}): it begins with {head[:8]!r}. {as_csv}Otherwise remove it "
        "from the folder, or narrow the glob so that it is left out."
    )


def _by_name(path: str) -> str | None:
    """The text format that a file's name says. One more suffix after that does not count, such as .gz or .bak."""
    name = path.lower()
    for ending in (re.sub(r"\.\w+$", "", name), name):
        for one in FORMATS.values():
            if _can_be_assumed(one) and ending.endswith(one.suffixes):
                return one.name
    return None


def _can_be_assumed(format: Format) -> bool:
    """True for a text format with files of its own, which any text may be."""
    return format.is_text is not None and bool(format.suffixes)
