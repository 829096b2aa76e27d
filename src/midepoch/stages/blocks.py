"""Blocks in memory: which files are open, which blocks are held, and which are being read ahead."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
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
        """Whether a block's file is mapped, so that nothing is gained by reading it ahead."""
        return FORMATS[self.index.formats[self.index.block(number)[0]]].MAPPED

    def check(self, numbers: Sequence[int]) -> None:
        """Raise unless the files of these blocks are the ones that were indexed."""
        files = np.unique(np.searchsorted(self.index.first_blocks, numbers, "right") - 1)
        for file in files.tolist():
            check_unchanged(self.index.path(file), self.index.stamps[file])

    def read(self, number: int) -> tuple[Data, bool]:
        """A block of the data set, and whether it is a view of its file."""
        file, block = self.index.block(number)
        reader = self._reader(file)
        data = reader.read(block)
        return data, reader.is_view(data)

    def read_ahead(self, number: int) -> "Future[tuple[Data, bool]]":
        """A block of the data set, read in the background. Its file is checked when it is used."""
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
    data: Data
    mapped: bool
    step: int


class HeldBlocks:
    """The blocks that a lane works on. Time is counted in steps: one step uses some blocks, the next others."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._held: dict[int, _Held] = {}
        self._waiting: dict[int, Future[tuple[Data, bool]]] = {}
        self._step = 0

    def __getitem__(self, number: int) -> Data:
        return self._held[number].data

    def check(self, number: int) -> None:
        """Raise if the file of a block has changed: a mapped one shows whatever the file now holds."""
        if self._held[number].mapped:
            self._files.check([number])

    def load(self, numbers: Sequence[int]) -> None:
        """Begin a step that uses these blocks, and no others but those that are read ahead."""
        self._step += 1
        self._files.check(numbers)
        for number in numbers:
            held = self._held.pop(number, None)
            if held is None:
                waiting = self._waiting.pop(number, None)
                held = _Held(*(self._files.read(number) if waiting is None else waiting.result()), step=0)
            held.step = self._step
            self._held[number] = held
        self._drop()

    def ahead(self, numbers: Iterable[int]) -> None:
        """Begin to read these blocks in the background, except those that are mapped or there already."""
        for number in numbers:
            if not (number in self._held or number in self._waiting or self._files.is_mapped(number)):
                self._waiting[number] = self._files.read_ahead(number)

    def _drop(self) -> None:
        """Let go of decoded blocks that neither this step nor the last used, and of mapped ones beyond a bound."""
        spare = len(self._held) - MAPPED_BLOCKS
        for number, held in list(self._held.items()):
            idle = self._step - held.step
            if (not held.mapped and idle > 1) or (held.mapped and spare > 0 and idle):
                del self._held[number]
                spare -= 1
