"""A file's location, on this machine or in a store, and access to its bytes."""

from typing import Protocol

import pyarrow as pa

from midepoch.storage.objects import StoredFile

Location = str | StoredFile
"""A path, or an object in a store. ``str`` of it is for messages."""


class Bytes(Protocol):
    """Bytes that are read by position, as an open ``pyarrow.NativeFile`` is."""

    def read_at(self, nbytes: int, offset: int) -> bytes:
        """``nbytes`` bytes from an offset on; fewer only at the end of the file."""


def open_file(path: Location) -> pa.NativeFile:
    """Open a file to read it by position. Every format reads through this, except mapped Arrow.

    A local file is not mapped: if it is truncated meanwhile, a read is short, where a map would kill the process.
    """
    if isinstance(path, StoredFile):
        return path.open()
    return pa.OSFile(path)


def open_bytes(path: Location) -> Bytes:
    """The same, for several threads at once: every read names its own position."""
    return path if isinstance(path, StoredFile) else pa.OSFile(path)
