"""Options of remote files: how many bytes are prefetched, and where blocks are cached."""

import os
from dataclasses import dataclass
from typing import Self

from midepoch._common.checks import Size, parse_size
from midepoch.storage.cache import BlockCache

READ_AHEAD = 256 << 20
CACHE = "10GiB"


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """How remote files are fetched. This changes memory and speed, never the rows or their order."""

    read_ahead: int = READ_AHEAD
    cache: BlockCache | None = None

    @classmethod
    def of(
        cls,
        read_ahead: Size | None,
        cache_dir: str | os.PathLike[str] | None,
        cache_bytes: Size = CACHE,
        *,
        trust_shared: bool = False,
    ) -> Self:
        """The options from the arguments that users pass."""
        ahead = READ_AHEAD if read_ahead is None else parse_size("read_ahead", read_ahead)
        limit = parse_size("cache_bytes", cache_bytes)
        cache = None if cache_dir is None else BlockCache(cache_dir, limit, trust_shared=trust_shared)
        return cls(read_ahead=ahead, cache=cache)
