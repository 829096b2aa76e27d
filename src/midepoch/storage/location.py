"""A file's location, on this machine or in a store, and access to its bytes."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from midepoch.errors import NoDataError
from midepoch.storage.objects import StoredFile
from midepoch.storage.store import Store
from midepoch.storage.urls import check_plain, is_url, local_path

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


class SmallFiles:
    """Reads whole files from paths and URLs, with one client for each store and process."""

    def __init__(self, storage_options: Mapping[str, Any] | None = None) -> None:
        self._options = storage_options
        self._stores: dict[str, Store] = {}

    def __repr__(self) -> str:
        return "SmallFiles()"

    def read(self, path: str | os.PathLike[str]) -> bytes:
        """All bytes of a file."""
        source = os.fspath(path)
        source = local_path(source) or source
        if is_url(source):
            return self._store(source).read(source)
        try:
            return Path(source).expanduser().read_bytes()
        except OSError as error:
            raise NoDataError(f"{source} cannot be read: {error.strerror or error}.") from error

    def _store(self, url: str) -> Store:
        check_plain(url)
        scheme, _, rest = url.partition("://")
        if not rest.strip("/"):
            raise NoDataError(f"{url} names no object; write {scheme}://bucket/name.")
        key = f"{scheme}://{rest.partition('/')[0]}"
        return self._stores.get(key) or self._stores.setdefault(key, Store(url, self._options))
