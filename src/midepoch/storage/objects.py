"""Objects in a store, read by ranges like files, all ranges of one version."""

import os
from bisect import bisect
from collections.abc import Iterable, Sequence
from threading import Lock

import pyarrow as pa

from midepoch.errors import DataChangedError, MidepochError, NoDataError
from midepoch.storage.clients import Client, Handle
from midepoch.storage.ranges import LEAST_BYTES, Span, joined
from midepoch.storage.retry import OtherVersionError, ShortReadError
from midepoch.storage.store import Store


class StoredFile:
    """An object in a store that is read like a file, by any number of threads. The first use opens it."""

    def __init__(self, store: Store, url: str, *, size: int | None = None, version: str | None = None) -> None:
        """Take an object; where ``size`` and ``version`` are given, it must still have them when it is opened."""
        self._store, self._url, self._size, self._version = store, url, size, version
        self._handle: Handle | None = None
        self._lock, self._checking = Lock(), Lock()
        self._recent: tuple[tuple[int, pa.Buffer], ...] = ()
        self._fetches = self._checked = 0
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

    def fetch(self, spans: Iterable[Span], *, exact: bool = False) -> "Fetched":
        """These spans, with near ones joined into one request. All requests run side by side.

        With ``exact``, small requests are not extended: nothing near is expected to be read next.
        """

        def read(span: Span) -> tuple[int, pa.Buffer]:
            begin, end = span[0], min(span[1], self.size)
            if not exact:
                return begin, self.buffer_at(end - begin, begin)
            recent = self._recently_read(begin, end)
            return begin, self._fetch(begin, end) if recent is None else recent

        return Fetched(self, self._store.side_by_side(read, joined(spans)))

    def check(self) -> None:
        """Raise ``DataChangedError`` unless all bytes read so far are of the version that was opened.

        They are, if the object still has that version. One version check covers every fetch that finished before the
        check began. Fetches that were verified need none.
        """
        fetches = self._fetches
        if fetches <= self._checked:
            return
        with self._checking:
            if fetches > self._checked:
                self._check_version(self._fetches)

    def _recently_read(self, begin: int, end: int) -> pa.Buffer | None:
        """Bytes that a small read has fetched already."""
        for start, data in self._recent:
            if start <= begin and end <= start + data.size:
                return data.slice(begin - start, end - begin)
        return None

    def _check_version(self, fetches: int) -> None:
        """Compare the present version with the opened one, on behalf of the first ``fetches`` fetches."""
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
            try:
                data = handle.read_at(end - begin, begin)
            except OtherVersionError:
                raise self._changed("another version") from None
            if data.size != end - begin:
                raise ShortReadError(f"got {data.size:,} of {end - begin:,} bytes")
            return data

        try:
            data = self._store.request(read, self._url)
            if not handle.verifies:
                with self._lock:
                    self._fetches += 1
            return data
        except MidepochError as error:
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
            handle = self._store.open(self._url)
        except MidepochError as error:
            self.failure = self._changed("it is gone, or shorter") if isinstance(error, NoDataError) else error
            raise self.failure from None
        if self._size not in (None, handle.size) or self._version not in (None, handle.version):
            self.failure = self._changed(_difference(self._size or 0, handle.size))
            raise self.failure
        return handle

    def _changed(self, what: str) -> DataChangedError:
        return DataChangedError(
            f"{self._url} was changed while it was in use ({what}). Rows of two versions must not be mixed: open the "
            "dataset again and start over. To resume from a checkpoint, restore the object first."
        )


class Fetched:
    """Ranges of an object that are fetched already, read like the object. For one thread."""

    def __init__(self, file: StoredFile, ranges: Sequence[tuple[int, pa.Buffer]]) -> None:
        """Take ranges of an object with their offsets, in rising order."""
        self._file, self._ranges = file, ranges
        self._begins = [begin for begin, _ in ranges]
        self.fetched_more = False
        """True if a read needed other bytes, which were fetched then and are not checked yet."""

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
        self.fetched_more = True
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


def _difference(then: int, now: int) -> str:
    return f"{then:,} bytes then, {now:,} now" if then != now else "same size, another version"
