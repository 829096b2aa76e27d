"""Telling formats apart: by the first bytes where they say it, else by the name or the user's word."""

import re

from midepoch.errors import DataFormatError
from midepoch.formats import arrow
from midepoch.formats.text.compressed import codec_of, open_text
from midepoch.formats.text.records import BOM
from midepoch.storage.location import Location, open_bytes

HEAD_BYTES = 4096
TEXT = {"jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl", "csv": "csv", "tsv": "csv"}
JSON = ("json", "jsonl")


def format_of(path: Location, wanted: str | None) -> str | None:
    """The format of a file, or None if it holds nothing. ``wanted`` decides where the bytes do not, and must be met."""
    head = open_bytes(path).read_at(HEAD_BYTES, 0)
    if not head:
        return None
    found = _binary(head)
    if found is None:
        found = _text(path, head, wanted)
        if wanted == "json" and found in JSON:  # many call both of them so
            return found
    if wanted is not None and found is not None and found != wanted:
        raise DataFormatError(f"{path} is {found}, but format={wanted!r} was asked for.")
    return found


def _binary(head: bytes) -> str | None:
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((arrow.FILE_MAGIC, arrow.CONTINUATION)) or arrow.is_legacy_stream(head[:8]):
        return "arrow"
    return "orc" if head.startswith(b"ORC") else None


def _text(path: Location, head: bytes, wanted: str | None) -> str | None:
    """Which text it is. A brace or bracket says JSON, unless the name or the user says CSV, which may begin so too."""
    suffix = re.search(r"\.(jsonl|ndjson|json|csv|tsv)(\.\w+)?$", str(path), re.IGNORECASE)
    named = TEXT[suffix[1].lower()] if suffix else None
    if codec_of(head) is not None:
        head = open_text(path).read_at(HEAD_BYTES, 0)
    begins = head.removeprefix(BOM).lstrip()
    told = wanted if wanted in TEXT.values() or wanted == "json" else named
    if not begins and len(head) < HEAD_BYTES and told:
        return None
    if wanted == "lines" and (begins.startswith(b"{") or (named == "jsonl" and not begins.startswith(b"["))):
        return "lines"
    if told == "csv":
        return "csv"
    if begins.startswith((b"{", b"[")):
        return "jsonl" if begins.startswith(b"{") else "json"
    if told is not None:
        return told
    if _binary(head) is not None:
        raise DataFormatError(
            f"{path} is {_binary(head)}, compressed as a whole, which cannot be read in place. Decompress it."
        )
    raise DataFormatError(
        f"{path} is neither Arrow, Parquet, ORC nor JSON: it begins with {head[:8]!r}. If it is CSV, pass "
        "format='csv'; else remove it from the folder, or narrow the glob so that it is left out."
    )
