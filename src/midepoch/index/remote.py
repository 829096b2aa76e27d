"""The blocks of an object in a store: fetched in few requests, and all of the version that was indexed."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa

from midepoch.errors import DataChangedError, DataFormatError, MidepochError
from midepoch.formats.base import Block, BlockReader, SpannedReader
from midepoch.storage.objects import Fetched, StoredFile

T = TypeVar("T")


class StoredBlocks:
    """The blocks of an object. Each is returned only after a check that the object is the version that was indexed."""

    def __init__(self, file: StoredFile, opened: Callable[[], BlockReader], forget: Callable[[], None]) -> None:
        self._file, self._forget = file, forget
        self._reader = self._safely(opened)

    def read(self, block: Block) -> pa.Table | pa.RecordBatch:
        return next(self.read_all([block]))

    def read_all(self, blocks: Sequence[Block]) -> Iterator[pa.Table | pa.RecordBatch]:
        """The rows of each of these blocks.

        If the reader knows their bytes, they are fetched together, and one version check after the fetch covers all.
        """
        reader = self._reader
        if not isinstance(reader, SpannedReader):
            for block in blocks:
                yield self._checked(lambda block=block: reader.read(block))  # type: ignore[misc]
            return
        fetched = self._checked(lambda: self._file.fetch([span for block in blocks for span in reader.spans(block)]))
        for block in blocks:
            yield self._decoded(reader, block, fetched)

    def _decoded(self, reader: SpannedReader, block: Block, fetched: Fetched) -> pa.Table | pa.RecordBatch:
        data = self._safely(lambda: reader.decode(block, fetched.open()))
        if fetched.fetched_more:  # decoding fetched more bytes after the check
            self._safely(self._file.check)
        return data

    def _checked(self, action: Callable[[], T]) -> T:
        """Do something that reads the object, then check that it was not replaced meanwhile."""
        result = self._safely(action)
        self._safely(self._file.check)
        return result

    def _safely(self, action: Callable[[], T]) -> T:
        """Do something with the object. An error of the store hides the error that a format made of it."""
        try:
            return action()
        except MidepochError as error:
            cause = self._file.failure or error
        if isinstance(cause, DataFormatError):  # an object that was replaced may look broken
            try:
                self._file.check()
            except DataChangedError as error:
                cause = error
        if isinstance(cause, DataChangedError):
            self._forget()
        raise cause
