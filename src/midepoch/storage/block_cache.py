"""A cache of remote blocks in a local folder: checked when read, and the least recently used evicted first.

Any number of processes may share a folder. A block is written under another name and renamed, so it is there whole or
not at all. A damaged block fails its checksum and is fetched again. Space for a block is freed before it is renamed,
under a lock, so the blocks never exceed the limit. A process claims the blocks that it fetches, and others that need
them wait, so that each is fetched once: peers that train on the same rows need the same blocks at the same time.
"""

import contextlib
import logging
import os
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from midepoch._common.checks import Size, cached_property, parse_size
from midepoch._common.files import (
    UntrustedFileError,
    exclusive_lock,
    framed,
    is_shared,
    map_trusted,
    read_trusted,
    remove,
    temporary_name,
    trust_folder,
    unframed,
    write_privately,
)
from midepoch._common.hashing import digest
from midepoch.storage.local import check_offsets

log = logging.getLogger("midepoch")

MAGIC = b"MBL2"
COUNT = struct.Struct("<Q")
SUFFIX = ".block"
READ_AHEAD = 256 << 20
CACHE = "10GiB"
FILLED_AFTER_EVICTION = 0.9
"""A full folder is emptied down to this fraction, so that not every new block has to list all others."""
ABANDONED_SECONDS = 3600.0
"""A temporary file of this age belongs to a killed process."""
CLAIM_SECONDS = 60.0
"""How long a process waits for blocks that another one has claimed, before it fetches them itself."""


class BlockCache:
    """A folder of blocks with at most ``limit`` bytes."""

    def __init__(self, folder: str | os.PathLike[str], limit: int, *, trust_shared: bool = False) -> None:
        """A folder, of which other users are trusted with ``trust_shared``."""
        self.folder, self.limit = Path(folder).expanduser().absolute(), limit
        self._warned = False
        if trust_shared:
            trust_folder(self.folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(BlockCache, trust_shared=is_shared(self.folder)), (self.folder, self.limit)

    def __repr__(self) -> str:
        return f"BlockCache({str(self.folder)!r}, {self.limit:,} bytes)"

    def get(self, key: str) -> pa.Table | None:
        """The block with a key, mapped; None if it is missing or damaged."""
        path = self._path(key)
        try:
            table = _unpacked(map_trusted(path), key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (UntrustedFileError, PermissionError) as error:
            self._warn("Blocks of %s are not used, but fetched: %s.", error)
            return None
        except (OSError, ValueError, pa.ArrowException) as error:
            log.warning("The cached block %s is damaged (%s); it is fetched again.", path.name, error)
            remove(path)
            return None
        with contextlib.suppress(OSError):  # another user's block, or one that was just removed
            os.utime(path)
        return table

    def put(self, key: str, data: pa.Table | pa.RecordBatch) -> None:
        """Store a block. If the folder cannot be written, warn once."""
        content = _packed(data, key)
        if content.size > self.limit:
            return
        path = self._path(key)
        temporary = temporary_name(path)
        try:
            write_privately(temporary, content)
            with exclusive_lock(self.folder / "lock"):
                self._make_room(content.size)
                temporary.replace(path)
        except OSError as error:
            remove(temporary)
            self._warn("Blocks cannot be cached in %s (%s): they are fetched every time.", error)

    def _warn(self, message: str, error: Exception) -> None:
        """Warn once about the folder."""
        if not self._warned:
            self._warned = True
            log.warning(message, self.folder, error)

    @contextlib.contextmanager
    def claim(self, keys: Iterable[str]) -> Iterator[None]:
        """Fetch blocks while others that need them wait. Those that waited must look into the cache first.

        It is only about saving requests: a process that is killed loses its claim, and after a minute nobody waits.
        """
        deadline = time.monotonic() + CLAIM_SECONDS
        with contextlib.ExitStack() as stack:
            for key in sorted(keys):  # in one order, so that no two processes wait for each other
                path = self.folder / f".{key}.claim"
                stack.callback(remove, path)
                stack.enter_context(exclusive_lock(path, deadline))
            yield

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    @cached_property
    def _counter(self) -> Path:
        return self.folder / "bytes"

    def _make_room(self, nbytes: int) -> None:
        """Count a block that is about to be added, and evict others if it would not fit.

        The count may be too high after a process was killed, but never too low. When it says that the folder is full,
        all blocks are counted again.
        """
        try:
            (used,) = COUNT.unpack(read_trusted(self._counter))
        except (OSError, struct.error):
            used = self.limit
        if used + nbytes > self.limit:
            used = self._evict(max(0, int(self.limit * FILLED_AFTER_EVICTION) - nbytes))
        write_privately(self._counter, COUNT.pack(used + nbytes))

    def _evict(self, most: int) -> int:
        """Remove the least recently used blocks until at most ``most`` bytes are left; return the bytes left."""
        blocks, now = [], time.time()
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat()
                    if entry.name.endswith(SUFFIX):
                        blocks.append((status.st_mtime_ns, status.st_size, entry.path))
                    elif entry.name.startswith(".") and status.st_mtime < now - ABANDONED_SECONDS:
                        os.unlink(entry.path)
        used = sum(nbytes for _, nbytes, _ in blocks)
        for _, nbytes, path in sorted(blocks):
            if used <= most:
                break
            os.unlink(path)
            used -= nbytes
        return used


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


def block_key(*parts: str | int) -> str:
    """The key of a block: a digest of everything that its content depends on."""
    return digest("\0".join(map(str, parts)).encode(), size=16).hex()


def _packed(data: pa.Table | pa.RecordBatch, key: str) -> pa.Buffer:
    """A block as a framed Arrow stream. Its checksum covers the key: a file under another name is damaged."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write(data)
    return pa.py_buffer(framed(sink.getvalue(), MAGIC, key))


def _unpacked(content: pa.Buffer, key: str) -> pa.Table:
    """The rows of a block. Users who are trusted may have written it, so that a right checksum says little."""
    body, _ = unframed(content, MAGIC, key)
    table = pa.ipc.open_stream(pa.py_buffer(body)).read_all()
    for batch in table.to_batches():
        check_offsets(batch, table.schema.names)
    return table
