"""The blocks of an object in a store: fetched in few requests, and all of the version that was indexed."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa

from midepoch.errors import DataChangedError, MidepochError
from midepoch.formats.base import Block, BlockReader, SpannedReader
from midepoch.storage.objects import StoredFile

T = TypeVar("T")


class StoredBlocks:
    """The blocks of an object. Each read raises unless the object is the version that was indexed."""

    def __init__(self, file: StoredFile, opened: Callable[[], BlockReader], forget: Callable[[], None]) -> None:
        self._file, self._forget = file, forget
        self._reader = self._safely(opened)

    def read(self, block: Block) -> pa.Table | pa.RecordBatch:
        return next(self.read_all([block]))

    def read_all(self, blocks: Sequence[Block]) -> Iterator[pa.Table | pa.RecordBatch]:
        """The rows of each of these blocks, whose bytes are fetched together if the reader knows which these are."""
        reader = self._reader
        if not isinstance(reader, SpannedReader):
            for block in blocks:
                yield self._safely(lambda block=block: reader.read(block))  # type: ignore[misc]
            return
        fetched = self._safely(lambda: self._file.fetch([span for block in blocks for span in reader.spans(block)]))
        for block in blocks:
            yield self._safely(lambda block=block: reader.decode(block, fetched.open()))  # type: ignore[misc]

    def _safely(self, action: Callable[[], T]) -> T:
        """Do something with the object. An error of the store hides the error that a format made of it."""
        try:
            return action()
        except MidepochError as error:
            cause = self._file.failure or error
        if isinstance(cause, DataChangedError):
            self._forget()
        raise cause
