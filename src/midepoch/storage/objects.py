"""Objects of a store as files, read by ranges."""

import os
from bisect import bisect
from collections.abc import Iterable, Sequence
from threading import Lock

import pyarrow as pa

from midepoch.errors import DataChangedError, MidepochError, NoDataError
from midepoch.storage.clients import Client, Handle
from midepoch.storage.ranges import LEAST_BYTES, Span, joined
from midepoch.storage.retry import ShortReadError
from midepoch.storage.store import Store


class StoredFile:
    """An object of a store, to be read like a file. It is asked for at first use, by any number of threads."""

    def __init__(self, store: Store, url: str, *, size: int | None = None, version: str | None = None) -> None:
        """Take an object that must have a size and a version, where those are known."""
        self._store, self._url, self._size, self._version = store, url, size, version
        self._handle: Handle | None = None
        self._lock, self._checking = Lock(), Lock()
        self._near: tuple[tuple[int, pa.Buffer], ...] = ()
        self._fetches = self._checked = 0
        self.failure: MidepochError | None = None

    def __str__(self) -> str:
        return self._url

    @property
    def size(self) -> int:
        """Its bytes."""
        return self._opened().size

    @property
    def version(self) -> str:
        """The version that is read."""
        return self._opened().version

    def open(self) -> pa.NativeFile:
        """The object as a file with a place of its own in it."""
        return pa.PythonFile(Cursor(self), mode="r")

    def read_at(self, nbytes: int, offset: int) -> bytes:
        """So many bytes from an offset on; fewer only at the end."""
        return bytes(self.buffer_at(nbytes, offset))

    def buffer_at(self, nbytes: int, offset: int) -> pa.Buffer:
        """The same without a copy."""
        end = min(self.size, offset + nbytes)
        if end <= offset:
            return pa.py_buffer(b"")
        for start, data in self._near:
            if start <= offset and end <= start + data.size:
                return data.slice(offset - start, end - offset)
        if end - offset >= LEAST_BYTES:
            return self._fetch(offset, end)
        # A smaller read fetches as much, and the next one may be in it.
        near = self._fetch(offset, min(self.size, offset + LEAST_BYTES))
        self._near = (*self._near[-1:], (offset, near))
        return near.slice(0, end - offset)

    def fetch(self, spans: Iterable[Span]) -> "Fetched":
        """These bytes, in as few requests as is sensible."""
        return Fetched(self, [(begin, self.buffer_at(end - begin, begin)) for begin, end in joined(spans)])

    def check(self) -> None:
        """Raise unless all that was read is of the version that was opened.

        It is, if the object still has that version now. What was looked at before is not looked at again: one look is
        for all threads whose bytes had come when it began.
        """
        mine = self._fetches
        if mine <= self._checked:
            return
        with self._checking:
            if mine > self._checked:
                self._stat(self._fetches)

    def _stat(self, fetches: int) -> None:
        """Compare the object as it is now. So many fetches were done before, and are covered."""
        try:
            now = self._store.open(self._url)
        except NoDataError as error:
            raise self._changed("it is gone") from error
        opened = self._opened()
        if (now.size, now.version) != (opened.size, opened.version):
            raise self._changed(_difference(opened.size, now.size))
        self._checked = fetches

    def _fetch(self, begin: int, end: int) -> pa.Buffer:
        handle = self._opened()

        def read(_: Client) -> pa.Buffer:
            data = handle.read_at(end - begin, begin)
            if data.size != end - begin:
                raise ShortReadError(f"{data.size:,} bytes came of {end - begin:,}")
            return data

        try:
            data = self._store.request(read, self._url)
            with self._lock:
                self._fetches += 1
            return data
        except MidepochError as error:
            # Not every library that is in between lets an error through: here is what was meant.
            self.failure = self._changed("it is gone, or shorter") if isinstance(error, NoDataError) else error
        raise self.failure

    def _opened(self) -> Handle:
        if self._handle is None:
            with self._lock:
                if self._handle is None:
                    self._handle = self._open()
        return self._handle

    def _open(self) -> Handle:
        try:
            found = self._store.open(self._url)
        except MidepochError as error:
            self.failure = self._changed("it is gone, or shorter") if isinstance(error, NoDataError) else error
            raise self.failure from None
        if self._size not in (None, found.size) or self._version not in (None, found.version):
            self.failure = self._changed(_difference(self._size or 0, found.size))
            raise self.failure
        return found

    def _changed(self, what: str) -> DataChangedError:
        return DataChangedError(
            f"{self._url} was changed while it was in use ({what}). Rows of two versions must not be mixed: restore "
            "the object and resume from the last checkpoint, or open the data set anew and start over."
        )


class Fetched:
    """Bytes of an object that are at hand, to be read like the object. It belongs to one thread."""

    def __init__(self, file: StoredFile, parts: Sequence[tuple[int, pa.Buffer]]) -> None:
        """Take parts of an object, with their offsets, which rise."""
        self._file, self._parts = file, parts
        self._begins = [begin for begin, _ in parts]
        self.is_short = False
        """Whether something else was asked for, too: that is fetched, and nobody has checked it."""

    @property
    def size(self) -> int:
        """The bytes of the object."""
        return self._file.size

    def open(self) -> pa.NativeFile:
        """The object as a file with a place of its own in it."""
        return pa.PythonFile(Cursor(self), mode="r")

    def buffer_at(self, nbytes: int, offset: int) -> pa.Buffer:
        """So many bytes from an offset on; fewer only at the end."""
        end = min(self.size, offset + nbytes)
        location = bisect(self._begins, offset) - 1
        if location >= 0:
            begin, data = self._parts[location]
            if offset <= end <= begin + data.size:
                return data.slice(offset - begin, end - offset)
        self.is_short = True
        return self._file.buffer_at(nbytes, offset)


class Cursor:
    """A place in an object, moved by reading, as Arrow wants a Python file to be."""

    closed = False

    def __init__(self, file: StoredFile | Fetched) -> None:
        self._file, self._at = file, 0

    def read(self, nbytes: int | None = None) -> pa.Buffer:
        """Bytes from here on."""
        left = max(0, self._file.size - self._at)
        data = self._file.buffer_at(left if nbytes is None or nbytes < 0 else nbytes, self._at)
        self._at += data.size
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        return self._at

    def tell(self) -> int:
        """The place."""
        return self._at

    def close(self) -> None:
        """Nothing: the object stays open for others."""

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def writable(self) -> bool:
        """It is not."""
        return False


def _difference(then: int, now: int) -> str:
    return f"{then:,} bytes then, {now:,} now" if then != now else "same size, another version"
