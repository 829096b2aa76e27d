"""Bytes by position: objects in a store, read by ranges and all of one version, and files on this machine."""

import os
from bisect import bisect
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Protocol

import pyarrow as pa

from midepoch.errors import MidepochError, NoDataError
from midepoch.storage.local import changed_error, difference
from midepoch.storage.retry import OtherVersionError
from midepoch.storage.store import Client, Handle, Store, read_exactly

Span = tuple[int, int]
"""The bytes of a file from an offset to another, which is not included."""

LEAST_BYTES = 64 << 10
"""A request costs more than fetching this many bytes, so no request asks for fewer, and gaps up to this are fetched."""
REQUEST_BYTES = 32 << 20
GROUP_BYTES = 8 << 20
GROUP_BLOCKS = 32


def joined(spans: Iterable[Span], gap: int = LEAST_BYTES, most: int = REQUEST_BYTES) -> list[Span]:
    """The ranges to request, so that each span lies in one of them.

    Spans share a range if at most ``gap`` unwanted bytes lie between them. A range is longer than ``most`` only if a
    single span is.
    """
    ranges: list[Span] = []
    for begin, end in sorted(spans):
        if ranges:
            first, last = ranges[-1]
            until = max(last, end)
            if begin - last <= gap and until - first <= most:
                ranges[-1] = first, until
                continue
        ranges.append((begin, end))
    return ranges


class StoredFile:
    """An object in a store that is read like a file, by any number of threads. The first use opens it."""

    def __init__(self, store: Store, url: str, *, size: int | None = None, version: str | None = None) -> None:
        """Take an object; where ``size`` and ``version`` are given, it must still have them when it is opened."""
        self._store, self._url, self._size, self._version = store, url, size, version
        self._handle: Handle | None = None
        self._lock = Lock()
        self._recent: tuple[tuple[int, pa.Buffer], ...] = ()
        self.failure: MidepochError | None = None
        """The last error of the store. A library that reads through this file may have replaced it by its own."""

    def __str__(self) -> str:
        return self._url

    @property
    def size(self) -> int:
        """The number of its bytes."""
        return self._opened().size

    @property
    def version(self) -> str:
        """The version that is read."""
        return self._opened().version

    def beside(self, suffix: str) -> "StoredFile":
        """The object whose name is that of this one, and a suffix. It may not exist."""
        return StoredFile(self._store, self._url + suffix)

    def open(self) -> pa.NativeFile:
        """The object as a file with its own read position."""
        return pa.PythonFile(SeekableFile(self), mode="r")

    def read_at(self, nbytes: int, offset: int) -> bytes:
        return bytes(self.buffer_at(nbytes, offset))

    def buffer_at(self, nbytes: int, offset: int) -> pa.Buffer:
        """``nbytes`` bytes from an offset on, without a copy; fewer only at the end."""
        end = min(self.size, offset + nbytes)
        if end <= offset:
            return pa.py_buffer(b"")
        if (recent := self._recently_read(offset, end)) is not None:
            return recent
        if end - offset >= LEAST_BYTES:
            return self._fetch(offset, end)
        # A small read fetches more than it needs, because the next read is often near.
        data = self._fetch(offset, min(self.size, offset + LEAST_BYTES))
        self._recent = (*self._recent[-1:], (offset, data))
        return data.slice(0, end - offset)

    def fetch(self, spans: Iterable[Span]) -> "Fetched":
        """These spans, with near ones joined into one request. All requests run side by side."""

        def read(span: Span) -> tuple[int, pa.Buffer]:
            begin, end = span[0], min(span[1], self.size)
            return begin, self.buffer_at(end - begin, begin)

        return Fetched(self, self._store.side_by_side(read, joined(spans)))

    def _recently_read(self, begin: int, end: int) -> pa.Buffer | None:
        """Bytes that a small read has fetched already."""
        for start, data in self._recent:
            if start <= begin and end <= start + data.size:
                return data.slice(begin - start, end - begin)
        return None

    def _fetch(self, begin: int, end: int) -> pa.Buffer:
        handle = self._opened()

        def read(_: Client) -> pa.Buffer:
            try:
                return read_exactly(handle, end - begin, begin)
            except OtherVersionError:
                raise changed_error(self._url, "another version") from None

        try:
            return self._store.request(read, self._url)
        except MidepochError as error:
            self.failure = (
                changed_error(self._url, "it is gone, or shorter") if isinstance(error, NoDataError) else error
            )
        raise self.failure

    def _opened(self) -> Handle:
        if self._handle is None:
            with self._lock:
                if self._handle is None:
                    self._handle = self._open()
        return self._handle

    def _open(self) -> Handle:
        try:
            handle = self._store.open(self._url, self._size)
        except MidepochError as error:
            self.failure = (
                changed_error(self._url, "it is gone, or shorter") if isinstance(error, NoDataError) else error
            )
            raise self.failure from None
        if self._size not in (None, handle.size) or self._version not in (None, handle.version):
            self.failure = changed_error(self._url, difference(self._size or 0, handle.size))
            raise self.failure
        return handle


class Fetched:
    """Ranges of an object that are fetched already, read like the object. For one thread."""

    def __init__(self, file: StoredFile, ranges: Sequence[tuple[int, pa.Buffer]]) -> None:
        """Take ranges of an object with their offsets, in rising order."""
        self._file, self._ranges = file, ranges
        self._begins = [begin for begin, _ in ranges]

    @property
    def size(self) -> int:
        """The number of bytes of the object."""
        return self._file.size

    def open(self) -> pa.NativeFile:
        """The object as a file with its own read position."""
        return pa.PythonFile(SeekableFile(self), mode="r")

    def buffer_at(self, nbytes: int, offset: int) -> pa.Buffer:
        """``nbytes`` bytes from an offset on; fewer only at the end."""
        end = min(self.size, offset + nbytes)
        number = bisect(self._begins, offset) - 1
        if number >= 0:
            begin, data = self._ranges[number]
            if offset <= end <= begin + data.size:
                return data.slice(offset - begin, end - offset)
        return self._file.buffer_at(nbytes, offset)


class SeekableFile:
    """A file object with a read position, as Arrow expects of a Python file."""

    closed = False

    def __init__(self, file: StoredFile | Fetched) -> None:
        self._file, self._position = file, 0

    def read(self, nbytes: int | None = None) -> pa.Buffer:
        left = max(0, self._file.size - self._position)
        data = self._file.buffer_at(left if nbytes is None or nbytes < 0 else nbytes, self._position)
        self._position += data.size
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        """Do nothing: other readers share the object."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False


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
