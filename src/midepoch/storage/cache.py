"""Blocks of remote files kept in a local folder: checked when read, the least recently used out first.

Any number of processes may share a folder. A block is written under another name and renamed, so it is there whole or
not at all; what was damaged since is told by its checksum, and fetched again. Room for a block is made before it
is renamed, under a lock, so the blocks never have more bytes than the limit.
"""

import contextlib
import logging
import os
import struct
import time
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from midepoch._common.files import exclusive_lock, framed, remove, temporary_name, unframed
from midepoch._common.hashing import digest

log = logging.getLogger("midepoch")

MAGIC = b"MBLK"
COUNT = struct.Struct("<Q")
SUFFIX = ".block"
# When the folder is full, this part of it is emptied, so that not every block has to look through all of them.
SPARED = 0.9
ABANDONED_SECONDS = 3600.0


class BlockCache:
    """A folder of blocks with at most so many bytes."""

    def __init__(self, folder: str | os.PathLike[str], limit: int) -> None:
        self.folder, self.limit = Path(folder).expanduser().absolute(), limit
        self._complained = False

    def __repr__(self) -> str:
        return f"BlockCache({str(self.folder)!r}, {self.limit:,} bytes)"

    def get(self, key: str) -> pa.Table | None:
        """The block under a key, mapped; None if it is not there, or not whole."""
        path = self._path(key)
        try:
            with pa.memory_map(str(path)) as file:
                content = file.read_buffer()
            table = _unpacked(content)
            os.utime(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, pa.ArrowException) as error:
            log.warning("The cached block %s is damaged (%s); it is fetched again.", path.name, error)
            remove(path)
            return None
        return table

    def put(self, key: str, data: pa.Table | pa.RecordBatch) -> None:
        """Keep a block. Where that cannot be done, it is told once."""
        content = _packed(data)
        if content.size > self.limit:
            return
        path = self._path(key)
        temporary = temporary_name(path)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                file.write(content)
            with exclusive_lock(self.folder / "lock"):
                self._make_room(content.size)
                temporary.replace(path)
        except OSError as error:
            remove(temporary)
            if not self._complained:
                self._complained = True
                log.warning("Blocks cannot be kept in %s (%s): they are fetched every time.", self.folder, error)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    @cached_property
    def _counter(self) -> Path:
        return self.folder / "bytes"

    def _make_room(self, nbytes: int) -> None:
        """Count a block that is about to come, and remove others where it would not fit.

        The count may be too high, after a process was killed, but never too low. All blocks are counted anew when it
        says that the folder is full.
        """
        try:
            (held,) = COUNT.unpack(self._counter.read_bytes())
        except (OSError, struct.error):
            held = self.limit
        if held + nbytes > self.limit:
            held = self._evict(max(0, int(self.limit * SPARED) - nbytes))
        self._counter.write_bytes(COUNT.pack(held + nbytes))

    def _evict(self, most: int) -> int:
        """Remove the blocks used longest ago until no more than so many bytes are left; how many are left."""
        entries, abandoned = [], time.time() - ABANDONED_SECONDS
        with os.scandir(self.folder) as found:
            for entry in found:
                with contextlib.suppress(OSError):
                    told = entry.stat()
                    if entry.name.endswith(SUFFIX):
                        entries.append((told.st_mtime_ns, told.st_size, entry.path))
                    elif entry.name.startswith(".") and told.st_mtime < abandoned:
                        os.unlink(entry.path)
        held = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if held <= most:
                break
            os.unlink(path)
            held -= size
        return held


def block_key(*parts: str | int) -> str:
    """The name of a block: a digest of all that its content depends on."""
    return digest("\0".join(map(str, parts)).encode(), size=16).hex()


def _packed(data: pa.Table | pa.RecordBatch) -> pa.Buffer:
    """A block as an Arrow stream, its length and its checksum."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write(data)
    return pa.py_buffer(framed(sink.getvalue(), MAGIC))


def _unpacked(content: pa.Buffer) -> pa.Table:
    body, _ = unframed(content, MAGIC)
    return pa.ipc.open_stream(pa.py_buffer(body)).read_all()
