"""Words for messages."""

import reprlib
from typing import Any


def count(noun: str, number: int, plural: str | None = None) -> str:
    """The number and its noun, as in "1 file" and "1,234 files"; ``plural`` is for nouns that do not just add an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def size_in_words(nbytes: int) -> str:
    """A number of bytes in the largest unit of which there is one, as in "512 MiB" and "1.5 GiB"."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, max(0, nbytes.bit_length() - 1) // 10)
    return f"{nbytes / 1024**power:.1f}".removesuffix(".0") + f" {units[power]}"


def shortened(value: Any, most: int = 80) -> str:
    """The value for an error message, at most ``most`` characters, however large or deeply nested it is."""
    try:
        text = _short.repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python writes
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= most else text[: most - 3] + "..."


_short = reprlib.Repr()
_short.maxlevel, _short.maxother, _short.maxstring, _short.maxlong = 6, 300, 300, 80
_short.maxdict = _short.maxlist = _short.maxtuple = 20
