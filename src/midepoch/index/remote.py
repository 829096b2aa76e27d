"""The blocks of an object of a store: fetched in few requests, and known to be of one version before they come."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa

from midepoch.errors import DataChangedError, DataFormatError, MidepochError
from midepoch.formats.base import Block, BlockReader, SpannedReader
from midepoch.storage.objects import Fetched, StoredFile

T = TypeVar("T")


class StoredBlocks:
    """The blocks of an object, each known to be of the version that was indexed before it is handed on."""

    def __init__(self, file: StoredFile, opened: Callable[[], BlockReader], forget: Callable[[], None]) -> None:
        self._file, self._forget = file, forget
        self._reader = self._safely(opened)

    def read(self, block: Block) -> pa.Table | pa.RecordBatch:
        """The rows of a block."""
        return next(self.read_all([block]))

    def read_all(self, blocks: Sequence[Block]) -> Iterator[pa.Table | pa.RecordBatch]:
        """The rows of each of these blocks.

        Where it is known which bytes they are, those are fetched first, and the object is looked at once behind all of
        them: if it still is what it was, so are they.
        """
        reader = self._reader
        if not isinstance(reader, SpannedReader):
            for block in blocks:
                yield self._checked(lambda block=block: reader.read(block))  # type: ignore[misc]
            return
        fetched = self._checked(lambda: self._file.fetch([span for block in blocks for span in reader.spans(block)]))
        for block in blocks:
            yield self._decoded(reader, block, fetched)

    def is_view(self, data: pa.Table | pa.RecordBatch) -> bool:
        """It never is."""
        return False

    def _decoded(self, reader: SpannedReader, block: Block, fetched: Fetched) -> pa.Table | pa.RecordBatch:
        data = self._safely(lambda: reader.decode(block, fetched.open()))
        if fetched.fetched_more:  # more was fetched since the object was looked at
            self._safely(self._file.check)
        return data

    def _checked(self, action: Callable[[], T]) -> T:
        """Do something that reads the object, and look whether it was replaced meanwhile."""
        done = self._safely(action)
        self._safely(self._file.check)
        return done

    def _safely(self, action: Callable[[], T]) -> T:
        """Do something with the object. What the store has told goes before what a format made of it."""
        try:
            return action()
        except MidepochError as error:
            told = self._file.failure or error
        if isinstance(told, DataFormatError):  # of an object that was replaced, anything can be read
            try:
                self._file.check()
            except DataChangedError as error:
                told = error
        if isinstance(told, DataChangedError):
            self._forget()
        raise told
