"""Blocks in memory: which files are open, which blocks are held, and which are being read ahead."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from threading import Lock
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from midepoch.formats import EMPTY, SPANNED, BlockReader, read_all
from midepoch.index.index import Index
from midepoch.storage.cache import block_key
from midepoch.storage.options import Fetch
from midepoch.storage.ranges import STRETCH_BLOCKS, STRETCH_BYTES, stretches

Data: TypeAlias = "pa.Table | pa.RecordBatch"
Promise: TypeAlias = "Future[tuple[Data, bool]]"

OPEN_FILES = 256
FETCHERS = 8


class Files:
    """The open files of one reader, and the threads that read ahead. Belongs to the process that made it."""

    def __init__(self, index: Index, wanted: pa.Schema, fetch: Fetch | None = None, lanes: int = 1) -> None:
        self.index, self._wanted, self._fetch = index, wanted, fetch or Fetch()
        self.is_remote = index.store is not None
        self.bytes_ahead = self._fetch.read_ahead // lanes if self.is_remote else 0
        """How much each of the lanes reads ahead; of local files, that is what its next step needs."""
        self._stretch_bytes = min(STRETCH_BYTES, self.bytes_ahead // FETCHERS)
        self._open: dict[int, OpenFile] = {}
        self._lock = Lock()
        self._pools: dict[bool, ThreadPoolExecutor] = {}
        self._ahead = 0

    def is_mapped(self, number: int) -> bool:
        """Whether a block's file is mapped, so that nothing is gained by reading it ahead."""
        return self.index.is_mapped(self.index.block(number)[0])

    @cached_property
    def all_mapped(self) -> bool:
        """Whether all files are."""
        firsts = {name: file for file, name in enumerate(self.index.formats)}
        return all(name == EMPTY or self.index.is_mapped(file) for name, file in firsts.items())

    def check(self, numbers: Sequence[int]) -> None:
        """Raise unless the files of these blocks are the ones that were indexed."""
        files = np.searchsorted(self.index.first_blocks, numbers, "right") - 1
        for file in set(files.tolist()):
            self.index.check(file)

    def read(self, number: int) -> tuple[Data, bool]:
        """A block of the data set, and whether it is a view of its file."""
        ((_, read),) = self.read_all([number])
        return read

    def read_all(self, numbers: Sequence[int]) -> Iterator[tuple[int, tuple[Data, bool]]]:
        """Blocks of one file, each with its number and whether it is a view, in any order."""
        return self._fetch_all(numbers) if self.is_remote else ((number, self._read(number)) for number in numbers)

    def _read(self, number: int) -> tuple[Data, bool]:
        file, block = self.index.block(number)
        reader = self._reader(file)
        data = reader.read(block)
        return _in_one(data), reader.is_view(data)

    def _fetch_all(self, numbers: Sequence[int]) -> Iterator[tuple[int, tuple[Data, bool]]]:
        """Blocks of one object, each with its number, and that it is no view: first those that are in the cache."""
        cache = self._fetch.cache
        found = {number: self.index.block(number) for number in numbers}
        keys = dict[int, str]()
        if cache is not None:
            keys = {number: self._key(file, block.number) for number, (file, block) in found.items()}
            for number, key in keys.items():
                if (kept := cache.get(key)) is not None:
                    del found[number]
                    yield number, (_in_one(kept), False)
        if not found:
            return
        reader = self._reader(next(iter(found.values()))[0])
        for number, data in zip(found, read_all(reader, [block for _, block in found.values()]), strict=True):
            if cache is not None:
                cache.put(keys[number], data)
            yield number, (_in_one(data), False)

    def read_ahead(self, stretch: Sequence[int], *, urgent: bool = False) -> dict[int, Promise]:
        """Blocks that are fetched together, in the background. Their file is checked when they are used.

        Each is there as soon as it is decoded. What is ``urgent`` does not wait behind what others want later.
        """
        pool = self._pools.get(urgent)
        if pool is None:
            threads = FETCHERS if self.is_remote else 1
            pool = self._pools[urgent] = ThreadPoolExecutor(threads, thread_name_prefix="midepoch-read-ahead")
        promises: dict[int, Promise] = {number: Future() for number in stretch}
        # Without threads, nobody would keep what is promised.
        pool.submit(self._keep, promises).add_done_callback(lambda _: [one.cancel() for one in promises.values()])
        return promises

    def joins(self, stretch: Sequence[int], number: int) -> bool:
        """Whether a block is fetched together with those of a stretch.

        It is if it follows them in their file and all columns are read, so that their bytes lie side by side. A stretch
        has a part of what is read ahead at most, so that several are fetched at a time.
        """
        if number != stretch[-1] + 1 or len(stretch) >= STRETCH_BLOCKS:
            return False
        file, _ = self.index.block(stretch[-1])
        if number >= self.index.first_blocks[file + 1] or not self._is_read_whole(file):
            return False
        return bool(self.index.places[1][stretch[0] : number + 1].sum() <= self._stretch_bytes)

    def reserve(self, number: int) -> bool:
        """Whether there is room to read a block ahead, which is then taken until it is released.

        There is always room for one block, unless nothing is to be read ahead.
        """
        if not self.is_remote:
            return True
        length = int(self.index.places[1][number])
        if not self._fetch.read_ahead or (self._ahead and self._ahead + length > self._fetch.read_ahead):
            return False
        self._ahead += length
        return True

    def release(self, number: int) -> None:
        """Give back the room of a block that was read ahead."""
        if self.is_remote:
            self._ahead -= int(self.index.places[1][number])

    def close(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        """Let go of the threads and the files; the end of the interpreter has done so, and forgotten ``sys``."""
        if is_over():
            return
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)
        self._pools.clear()
        self._open.clear()

    def _keep(self, promises: dict[int, Promise]) -> None:
        """Read the blocks that were promised and are still wanted."""
        begun = [number for number, promise in promises.items() if promise.set_running_or_notify_cancel()]
        try:
            for number, read in self.read_all(begun):
                promises[number].set_result(read)
        except BaseException as error:
            for number in begun:
                if not promises[number].done():
                    promises[number].set_exception(error)

    def _is_read_whole(self, file: int) -> bool:
        """Whether all bytes of a file are read, and it is known which are those of a block."""
        own = self.index.schemas[file]
        return self.index.formats[file] in SPANNED and own is not None and self._names.issuperset(own.names)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self._wanted.names)

    def _reader(self, file: int) -> BlockReader:
        with self._lock:
            opened = self._open.get(file)
            if opened is None:
                if len(self._open) >= OPEN_FILES:
                    self._open.pop(next(iter(self._open)), None)
                opened = self._open[file] = OpenFile()
        with opened.lock:  # two threads want one file, and open it once
            if opened.reader is None:
                opened.reader = self.index.open(file, self._wanted)
            return opened.reader

    def _key(self, file: int, block: int) -> str:
        """What a block's content depends on."""
        index = self.index
        stamp = index.stamps[file]
        version = index.versions[file] or str(stamp.mtime_ns)
        identity = index.store.identity if index.store is not None else ""
        return block_key(identity, index.path(file), stamp.size, version, block, self._schema_digest)

    @cached_property
    def _schema_digest(self) -> str:
        return block_key(self._wanted.serialize().to_pybytes().hex())


def _in_one(data: Data) -> Data:
    """A block as one record batch, which is cut quicker than a table; but as it is, where that would need a copy.

    A column of more strings than Arrow has offsets for comes in several parts, which could not be joined.
    """
    batches = data.to_batches() if isinstance(data, pa.Table) else [data]
    return batches[0] if len(batches) == 1 else data


class OpenFile:
    """A file that some thread is opening, or has opened."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.reader: BlockReader | None = None


class HeldBlocks:
    """The blocks that a lane works on. Time is counted in steps: one step uses some blocks, the next others."""

    def __init__(self, files: Files, views: int) -> None:
        self._files, self._most_views = files, views
        self._views: dict[int, Data] = {}
        self._decoded: dict[int, Data] = {}
        self._idle: set[int] = set()
        self._waiting: dict[int, Promise] = {}
        self._urgent: dict[int, Promise] = {}
        self._asked: list[set[int]] = [set(), set()]

    def __getitem__(self, number: int) -> Data:
        return self._views[number] if number in self._views else self._decoded[number]

    def is_view(self, number: int) -> bool:
        """Whether a block is a view of its file."""
        return number in self._views

    def load(self, numbers: Sequence[int], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Begin a step that uses these blocks, and no others but those that are read ahead.

        ``meanwhile`` is called while a store is waited for. Of files on this machine it is called behind the step, in
        whose way it would be.
        """
        self._files.check(numbers)
        if self._files.is_remote:
            self._hurry(numbers)
            meanwhile()
        for number in numbers:
            if number in self._views:
                self._views[number] = self._views.pop(number)
            elif number not in self._decoded:
                waiting = self._urgent.pop(number, None) or self._given(number)
                data, is_view = self._files.read(number) if waiting is None else waiting.result()
                (self._views if is_view else self._decoded)[number] = data
        self._let_go(set(numbers))
        if not self._files.is_remote:
            meanwhile()

    def ahead(self, numbers: Iterable[int], *, more: bool = False) -> None:
        """Begin to read these blocks in the background, except those that are mapped or there already.

        Those that come first are read first. What was asked for two times ago and is not used yet was for others, who
        share the lane: it is given up. If ``more`` come behind them, the last wait for those they are fetched with.
        """
        numbers = list(numbers)
        self._asked = [self._asked[1], set(numbers)]
        for number in self._waiting.keys() - self._asked[0] - self._asked[1]:
            if (unused := self._given(number)) is not None:
                unused.cancel()
        wanted = list[int]()
        for number in numbers:
            there = number in self._decoded or number in self._waiting or number in self._urgent
            if not (there or self._files.is_mapped(number)):
                if not self._files.reserve(number):
                    more = True
                    break
                wanted.append(number)
        found = stretches(wanted, self._files.joins)
        if more and found and (self._waiting or found[1:]) and self._files.joins(found[-1], found[-1][-1] + 1):
            for number in found.pop():
                self._files.release(number)
        for stretch in found:
            self._waiting |= self._files.read_ahead(stretch)

    def _given(self, number: int) -> "Promise | None":
        """A block that was read ahead, whose room is free again."""
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            self._files.release(number)
        return waiting

    def _hurry(self, numbers: Sequence[int]) -> None:
        """Have all blocks of a step fetched side by side, those too whose turn had not come."""
        wanted = list[int]()
        for number in numbers:
            if number in self._decoded or number in self._views:
                continue
            waiting = self._waiting.get(number)
            if waiting is None or waiting.cancel():
                self._given(number)
                wanted.append(number)
        for stretch in stretches(wanted, self._files.joins):
            self._urgent |= self._files.read_ahead(stretch, urgent=True)

    def _let_go(self, used: set[int]) -> None:
        """Drop decoded blocks that neither this step nor the last used, and the views used longest ago."""
        for number in self._idle - used:
            self._decoded.pop(number, None)
        self._idle = self._decoded.keys() - used
        while len(self._views) > max(self._most_views, len(used)):
            del self._views[next(iter(self._views))]
