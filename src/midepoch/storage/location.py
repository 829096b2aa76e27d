"""Where a file lies, on this machine or in a store, and how its bytes are read."""

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
"""Where a file lies: a path, or an object of a store. Its text is for messages."""


class Bytes(Protocol):
    """Bytes that are read by position, as an open ``pyarrow.NativeFile`` is."""

    def read_at(self, nbytes: int, offset: int) -> bytes:
        """So many bytes from an offset on; fewer only at the end."""


def open_file(path: Location, *, mapped: bool = False) -> pa.NativeFile:
    """The bytes of a file, to be read by position. Every format reads through this.

    ``mapped`` asks for views of the file instead of copies, which an object of a store cannot give.
    """
    if isinstance(path, StoredFile):
        return path.open()
    return pa.memory_map(path) if mapped else pa.OSFile(path)


def open_bytes(path: Location) -> Bytes:
    """The same for several threads at once, of which each gives its own positions."""
    return path if isinstance(path, StoredFile) else pa.OSFile(path)


class SmallFiles:
    """Files that are read whole, from paths and URLs. A store's client is made once in each process that reads."""

    def __init__(self, storage_options: Mapping[str, Any] | None = None) -> None:
        self._options = storage_options
        self._stores: dict[str, Store] = {}

    def __repr__(self) -> str:
        return "SmallFiles()"

    def read(self, path: str | os.PathLike[str]) -> bytes:
        """All bytes of a file."""
        where = os.fspath(path)
        where = local_path(where) or where
        if is_url(where):
            return self._store(where).read(where)
        try:
            return Path(where).expanduser().read_bytes()
        except OSError as error:
            raise NoDataError(f"{where} cannot be read: {error.strerror or error}.") from error

    def _store(self, url: str) -> Store:
        check_plain(url)
        scheme, _, rest = url.partition("://")
        if not rest.strip("/"):
            raise NoDataError(f"{url} names no object.")
        key = f"{scheme}://{rest.partition('/')[0]}"
        return self._stores.get(key) or self._stores.setdefault(key, Store(url, self._options))


def read_bytes(path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> bytes:
    """All bytes of a small file, from a path or a URL."""
    return SmallFiles(storage_options).read(path)
