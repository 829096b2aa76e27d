"""Blocks in memory: which files are open, which blocks are held, and which are being read ahead."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from midepoch.formats import EMPTY, FORMATS, BlockReader
from midepoch.index import Index

Data: TypeAlias = "pa.Table | pa.RecordBatch"

OPEN_FILES = 256


class Files:
    """The open files of one reader, and the thread that reads ahead. Belongs to the process that made it."""

    def __init__(self, index: Index, wanted: pa.Schema) -> None:
        self.index, self._wanted = index, wanted
        self._open: dict[int, BlockReader] = {}
        self._pool: ThreadPoolExecutor | None = None

    def is_mapped(self, number: int) -> bool:
        """Whether a block's file is mapped, so that nothing is gained by reading it ahead."""
        return FORMATS[self.index.formats[self.index.block(number)[0]]].MAPPED

    @cached_property
    def all_mapped(self) -> bool:
        """Whether all files are."""
        return all(name == EMPTY or FORMATS[name].MAPPED for name in set(self.index.formats))

    def check(self, numbers: Sequence[int]) -> None:
        """Raise unless the files of these blocks are the ones that were indexed."""
        files = np.searchsorted(self.index.first_blocks, numbers, "right") - 1
        for file in set(files.tolist()):
            self.index.check(file)

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
            reader = self.index.open(file, self._wanted)
            self._open[file] = reader
        return reader


class HeldBlocks:
    """The blocks that a lane works on. Time is counted in steps: one step uses some blocks, the next others."""

    def __init__(self, files: Files, views: int) -> None:
        self._files, self._most_views = files, views
        self._views: dict[int, Data] = {}
        self._decoded: dict[int, Data] = {}
        self._idle: set[int] = set()
        self._waiting: dict[int, Future[tuple[Data, bool]]] = {}
        self._asked: list[set[int]] = [set(), set()]

    def __getitem__(self, number: int) -> Data:
        return self._views[number] if number in self._views else self._decoded[number]

    def check(self, number: int) -> None:
        """Raise if the file of a block has changed: a view shows whatever the file now holds."""
        if number in self._views:
            self._files.check([number])

    def load(self, numbers: Sequence[int]) -> None:
        """Begin a step that uses these blocks, and no others but those that are read ahead."""
        self._files.check(numbers)
        for number in numbers:
            if number in self._views:
                self._views[number] = self._views.pop(number)
            elif number not in self._decoded:
                waiting = self._waiting.pop(number, None)
                data, is_view = self._files.read(number) if waiting is None else waiting.result()
                (self._views if is_view else self._decoded)[number] = data
        self._let_go(set(numbers))

    def ahead(self, numbers: Iterable[int]) -> None:
        """Begin to read these blocks in the background, except those that are mapped or there already.

        What was asked for two times ago and is not used yet was for others, who share the lane: it is given up.
        """
        self._asked = [self._asked[1], set(numbers)]
        for number in self._waiting.keys() - self._asked[0] - self._asked[1]:
            self._waiting.pop(number).cancel()
        for number in self._asked[1]:
            if not (number in self._decoded or number in self._waiting or self._files.is_mapped(number)):
                self._waiting[number] = self._files.read_ahead(number)

    def _let_go(self, used: set[int]) -> None:
        """Drop decoded blocks that neither this step nor the last used, and the views used longest ago."""
        for number in self._idle - used:
            self._decoded.pop(number, None)
        self._idle = self._decoded.keys() - used
        while len(self._views) > max(self._most_views, len(used)):
            del self._views[next(iter(self._views))]
