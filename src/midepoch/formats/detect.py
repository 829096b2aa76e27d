"""Finding a file's format: from its first bytes where they decide, else from its name or the user's argument."""

import re
from collections.abc import Mapping

from midepoch.errors import DataFormatError
from midepoch.formats.base import Format, TextHead
from midepoch.formats.text.compressed import codec_of, open_text
from midepoch.formats.text.records import BOM
from midepoch.storage.listing import unread_kind
from midepoch.storage.objects import Location, open_bytes

HEAD_BYTES = 4096


def detect(path: Location, asked: str | None, formats: Mapping[str, Format]) -> str | None:
    """The name of a file's format, or None if the file holds nothing.

    ``asked`` decides where the bytes do not. Raise if the file is of another format than ``asked``.
    """
    head = open_bytes(path).read_at(HEAD_BYTES, 0)
    if not head:
        return None
    name = _by_magic(head, formats) or _by_text(path, head, asked, formats)
    if asked is not None and name is not None and name not in (asked, *formats[asked].includes):
        raise DataFormatError(
            f"{path} is {name}, but format={asked!r} was asked for. Leave format out, or leave out the file."
        )
    return name


def _by_magic(head: bytes, formats: Mapping[str, Format]) -> str | None:
    """The binary format of a file that begins with these bytes."""
    return next((one.name for one in formats.values() if one.has_magic is not None and one.has_magic(head)), None)


def _by_text(path: Location, head: bytes, asked: str | None, formats: Mapping[str, Format]) -> str | None:
    """The text format of a file; None if it holds nothing but blank space."""
    if codec_of(head) is not None:
        head = open_text(path).read_at(HEAD_BYTES, 0)
    begins = head.removeprefix(BOM).lstrip()
    assumed = asked if asked is not None and _can_be_assumed(formats[asked]) else _by_name(str(path), formats)
    if not begins and len(head) < HEAD_BYTES and assumed:
        return None
    text = TextHead(begins, asked, assumed)
    recognised = (one.name for one in formats.values() if one.is_text is not None and one.is_text(text))
    name = next(recognised, assumed)
    if name is not None:
        return name
    packed = _by_magic(head, formats)
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
        f"{path} has no known format ({', '.join(formats)}): it begins with {head[:8]!r}. {as_csv}Otherwise remove it "
        "from the folder, or narrow the glob so that it is left out."
    )


def _by_name(path: str, formats: Mapping[str, Format]) -> str | None:
    """The text format that a file's name says. One more suffix after that does not count, such as .gz or .bak."""
    name = path.lower()
    for ending in (re.sub(r"\.\w+$", "", name), name):
        for one in formats.values():
            if _can_be_assumed(one) and ending.endswith(one.suffixes):
                return one.name
    return None


def _can_be_assumed(format: Format) -> bool:
    """True for a text format with files of its own, which any text may be."""
    return format.is_text is not None and bool(format.suffixes)
