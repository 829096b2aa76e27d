"""How blocks of remote files are fetched: how far ahead, and where they are kept."""

import os
import re
from dataclasses import dataclass
from typing import Self

from midepoch.storage.cache import BlockCache

UNITS = {"": 1, "b": 1} | {
    f"{letter}{ending}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for ending, base in (("", 1024), ("b", 1000), ("ib", 1024))
}
READ_AHEAD = 256 << 20
CACHE = "10GiB"

Size = int | str


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """What was asked for of remote files. It changes memory and speed, never what is delivered."""

    read_ahead: int = READ_AHEAD
    cache: BlockCache | None = None

    @classmethod
    def of(cls, read_ahead: Size | None, cache_dir: str | os.PathLike[str] | None, cache_bytes: Size = CACHE) -> Self:
        """Read it from the arguments of users."""
        ahead = READ_AHEAD if read_ahead is None else size_of("read_ahead", read_ahead)
        limit = size_of("cache_bytes", cache_bytes)
        return cls(read_ahead=ahead, cache=None if cache_dir is None else BlockCache(cache_dir, limit))


def size_of(name: str, size: Size) -> int:
    """A number of bytes, or a text such as "256MiB" or "1GB", as a number."""
    rule = 'pass a number of bytes, or a text such as "256MiB" or "1GB"'
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise TypeError(f"{name} is a {type(size).__name__}; {rule}.")
    if isinstance(size, int):
        number, unit = float(size), ""
    else:
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", size, re.IGNORECASE)
        if found is None or found[2].lower() not in UNITS:
            raise ValueError(f"{name} is {size!r}; {rule}.")
        number, unit = float(found[1]), found[2].lower()
    if number < 0:
        raise ValueError(f"{name} is {size}; it cannot be negative.")
    return int(number * UNITS[unit])
