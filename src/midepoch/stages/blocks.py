"""Blocks in memory: which files are open, which blocks are held, and which are being read ahead."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from midepoch.formats import FORMATS, BlockReader
from midepoch.index import Index
from midepoch.storage import check_unchanged

Data: TypeAlias = "pa.Table | pa.RecordBatch"

OPEN_FILES = 256
MAPPED_BLOCKS = 4096


class Files:
    """The open files of one reader, and the thread that reads ahead. Belongs to the process that made it."""

    def __init__(self, index: Index, columns: Sequence[str]) -> None:
        self.index, self._columns = index, columns
        self._open: dict[int, BlockReader] = {}
        self._pool: ThreadPoolExecutor | None = None

    def is_mapped(self, number: int) -> bool:
        """Whether a block is a view of its file, so that holding it or reading it again costs nothing."""
        return FORMATS[self.index.formats[self.index.block(number)[0]]].MAPPED

    def read(self, number: int) -> Data:
        """A block of the data set, once it is sure that its file is the one that was indexed."""
        file, block = self.index.block(number)
        check_unchanged(self.index.path(file), self.index.stamps[file])
        return self._reader(file).read(block)

    def read_ahead(self, number: int) -> "Future[Data]":
        """A block of the data set, read in the background."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="midepoch-read-ahead")
        return self._pool.submit(self.read, number)

    def close(self) -> None:
        """Let go of the thread and the files."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = None
        self._open.clear()

    def _reader(self, file: int) -> BlockReader:
        reader = self._open.get(file)
        if reader is None:
            if len(self._open) >= OPEN_FILES:
                self._open.pop(next(iter(self._open)), None)
            reader = FORMATS[self.index.formats[file]].open_blocks(self.index.path(file), self._columns)
            self._open[file] = reader
        return reader


@dataclass(slots=True)
class _Held:
    data: "Data | Future[Data]"
    mapped: bool
    step: int


class HeldBlocks:
    """The blocks that a lane works on. Time is counted in steps: one step uses some blocks, the next others."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._held: dict[int, _Held] = {}
        self._step = 0

    def __getitem__(self, number: int) -> Data:
        held = self._held[number]
        assert not isinstance(held.data, Future)
        return held.data

    def load(self, numbers: Iterable[int]) -> None:
        """Begin a step that uses these blocks, and no others but those that are read ahead."""
        self._step += 1
        for number in numbers:
            held = self._held.pop(number, None)
            if held is None:
                held = _Held(self._files.read(number), self._files.is_mapped(number), 0)
            elif isinstance(held.data, Future):
                held.data = held.data.result()
            held.step = self._step
            self._held[number] = held
        self._drop()

    def ahead(self, numbers: Iterable[int]) -> None:
        """Begin to read these blocks in the background, except those that are mapped or there already."""
        for number in numbers:
            if number not in self._held and not self._files.is_mapped(number):
                self._held[number] = _Held(self._files.read_ahead(number), False, self._step)

    def _drop(self) -> None:
        """Let go of decoded blocks that neither this step nor the last used, and of mapped ones beyond a bound."""
        spare = len(self._held) - MAPPED_BLOCKS
        for number, held in list(self._held.items()):
            idle = self._step - held.step
            waiting = isinstance(held.data, Future)
            if (not held.mapped and idle > 1 and not waiting) or (held.mapped and spare > 0 and idle):
                del self._held[number]
                spare -= 1
