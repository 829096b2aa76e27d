"""Reading blocks of files: on demand, or ahead of their use in background threads."""

import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from threading import Event, Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from midepoch._common.lazy import cached_property
from midepoch._common.thread_clock import REQUESTS
from midepoch._common.world import torch_worker, usable_cores
from midepoch.errors import DataChangedError, StaleIteratorError
from midepoch.formats import EMPTY, FORMATS, Block, BlockReader, read_all
from midepoch.index.files import is_mapped
from midepoch.index.index import Index
from midepoch.sources.cached_blocks import CachedBlocks
from midepoch.sources.growth import Growth
from midepoch.sources.read_block import Data, PendingBlock, ReadBlock, as_batch
from midepoch.sources.virtual import BlockTable
from midepoch.storage.options import Fetch
from midepoch.storage.ranges import GROUP_BLOCKS, GROUP_BYTES
from midepoch.values.file_checks import Check, all_checks

MAX_OPEN_FILES = 256
CLOSE_SECONDS = 2.0
"""How long requests under way are waited for when an iterator is dropped. They end by themselves after that."""
FETCH_THREADS = 24
"""Most of their time is spent waiting. The S3 client of Arrow keeps 25 connections."""
GROUPS_AHEAD = 8
"""Of what is read ahead, one group of blocks that are fetched together is this part, at most."""
ROW_FETCH_THREADS = 16
"""Runs of rows are small, and each needs a few requests one after the other, so more of them are fetched at a time."""
DECODE_THREADS = 12
"""How many threads decode blocks of local files, at most: more of them only wait for the interpreter lock."""
BYTES_OF_A_THREAD = 8 << 20
"""How many bytes of local blocks are decoded ahead for each thread but the first, counted as they are in memory."""
DECODED_TOGETHER = 4 << 20
"""How many bytes of local blocks a thread decodes one after the other before it asks for more, at most: whenever work
is handed over, threads wait for the interpreter lock."""
MAX_BLOCKS_AHEAD, MAX_RUNS_AHEAD = 256, 4096
GROUP_RUNS = 16
"""How many runs of rows are fetched together, at most."""


class BlockFetcher:
    """The open files and the reading threads of one reader. Belongs to the process that created it.

    Blocks are named by their number, which counts through all files: that in the index, or among other ``blocks``.
    """

    def __init__(
        self,
        index: Index,
        wanted: pa.Schema,
        fetch: Fetch | None = None,
        lanes: int = 1,
        blocks: BlockTable | None = None,
    ) -> None:
        self.index, self.view, self.blocks = index, index.view, blocks or index.view
        self.has_runs = blocks is not None
        """True if runs of rows are fetched, at least of some files."""
        self._wanted, self._fetch = wanted, fetch or Fetch()
        self.is_remote = index.store is not None
        self.decode_threads = self._threads_to_decode()
        ahead = self._fetch.read_ahead if self.is_remote else BYTES_OF_A_THREAD * (self.decode_threads - 1)
        self.bytes_ahead = ahead // lanes
        """How many bytes each lane reads ahead. If it is 0, a lane of local files reads what its next step needs."""
        self.growth = Growth(1.0 if self.has_runs else None)
        """How much larger blocks are in memory than in the index. Runs of rows are stored as they are in memory."""
        self.blocks_ahead = MAX_BLOCKS_AHEAD if blocks is None else MAX_RUNS_AHEAD
        """How many blocks each lane reads ahead, at most."""
        self.threads = ROW_FETCH_THREADS if self.has_runs else FETCH_THREADS if self.is_remote else self.decode_threads
        """How many threads read ahead. So many blocks are requested until it is known how much blocks grow."""
        together = GROUP_BYTES if self.is_remote else DECODED_TOGETHER
        self._group_bytes = min(together, self.bytes_ahead // GROUPS_AHEAD)
        self._open_files: dict[int, _OpenFile] = {}
        self._lock = Lock()
        self._thread_pools: dict[bool, ThreadPoolExecutor] = {}
        self._jobs: set[Future[None]] = set()
        self._stop = Event()
        """Set when nobody waits for the requests of the threads any more."""
        self._reserved_bytes = 0
        self._reserved: dict[int, list[int]] = {}
        """What was reserved for each block, once for each lane that reads it ahead."""
        self._process = os.getpid()
        on_disk = self._fetch.cache if self.is_remote else None
        self.cache = None if on_disk is None else CachedBlocks(on_disk, index, self.blocks, wanted)
        """The blocks of a store that are on a local disk, if the user wants that."""
        self.fetched = self.decoded = 0.0  # seconds of all threads
        self._last_check: tuple[set[int], Check] = set(), lambda: None
        self._decoded: WeakValueDictionary[int, Data] = WeakValueDictionary()
        """The decoded blocks that a lane holds: others that are in the same window share them."""

    def _threads_to_decode(self) -> int:
        """How many threads decode blocks of local files: several if they can decode the same file side by side.

        There is one more than cores, because a thread that has decoded a block waits for the interpreter lock. Workers
        share the cores, and each reads ahead as its threads need it.
        """
        side_by_side = all(name == EMPTY or FORMATS[name].has_spans for name in set(self.view.formats))
        cores, worker = usable_cores(), torch_worker()
        own = cores if worker is None else max(1, cores // worker[1])
        return min(DECODE_THREADS, own + 1) if cores > 1 and side_by_side and not self.is_remote else 1

    @property
    def _is_of_this_process(self) -> bool:
        return self._process == os.getpid()

    def is_mapped(self, number: int) -> bool:
        """True if a block's file is memory-mapped: reading it ahead would gain nothing."""
        return not self.is_remote and is_mapped(self.index, self.blocks.file_of(number))

    @cached_property
    def all_mapped(self) -> bool:
        """True if all files are memory-mapped."""
        first_of_format = {name: file for file, name in enumerate(self.view.formats)}
        return all(name == EMPTY or is_mapped(self.index, file) for name, file in first_of_format.items())

    def check(self, numbers: Sequence[int]) -> None:
        """Raise if the files of these blocks have changed since they were indexed, or in a forked process."""
        if not self._is_of_this_process:  # the threads that read ahead do not exist here
            raise StaleIteratorError.forked(self._process)
        self.file_check(numbers)()

    def file_check(self, numbers: Sequence[int]) -> Check:
        """A function that raises if the files of these blocks have changed since they were indexed.

        Blocks that lie in the files of the last call get the same function.
        """
        files = set((np.searchsorted(self.blocks.first_blocks, numbers, "right") - 1).tolist())
        if files != self._last_check[0]:
            checks = [partial(self.index.check, file) for file in files]
            self._last_check = files, all_checks(checks) or (lambda: None)
        return self._last_check[1]

    def read(self, number: int) -> ReadBlock:
        """One block, read by the calling thread."""
        ((_, block),) = self.read_all([number])
        return block

    def read_all(self, numbers: Iterable[int]) -> Generator[tuple[int, ReadBlock], None, None]:
        """Blocks of one file with their numbers, in any order, each as soon as it is decoded.

        Of a local file, each number is asked for when the blocks before it are decoded.
        """
        for number, block in self._read_remote(numbers) if self.is_remote else self._read_local(numbers):
            if not block.is_view:
                self._decoded[number] = block.data
            yield number, block

    def read_ahead(self, group: Sequence[int], *, urgent: bool = False) -> dict[int, PendingBlock]:
        """Fetch a group of blocks together in the background. Their file is checked when they are used.

        Each future is done as soon as its block is decoded. Urgent groups have threads of their own, so they never
        wait for blocks that other lanes need later. Of other groups, the blocks that are not begun are cancelled as
        soon as blocks turn out to grow far more than was known when they were requested.
        """
        pool = self._thread_pools.get(urgent)
        if pool is None:
            store = self.index.store
            begin = None if store is None else partial(store.stop_with, self._stop)
            pool = self._thread_pools[urgent] = ThreadPoolExecutor(self.threads, "midepoch-read-ahead", begin)
        pending: dict[int, PendingBlock] = {number: Future() for number in group}
        # Nobody else would ever finish the futures that the job leaves: all, if the pool is shut down before it begins.
        job = pool.submit(self._fill, pending, None if urgent else self.growth.factor)
        job.add_done_callback(lambda _: [block.cancel() for block in pending.values()])
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return pending

    def joins(self, group: Sequence[int], number: int) -> bool:
        """True if a block is fetched together with the group before it.

        For whole blocks that needs the block that follows in the same file, and of a store all columns to be read, so
        that the bytes are adjacent and become one request. Runs of rows of one file share a version check, and requests
        where they lie near each other. A group is only a fraction of what is read ahead, so that several groups are
        fetched at a time.
        """
        if not self._group_bytes:
            return False
        file = self.blocks.file_of(group[-1])
        if not self.blocks.first_blocks[file] <= number < self.blocks.first_blocks[file + 1]:
            return False
        if self._fetches_rows(file):
            if len(group) >= GROUP_RUNS:
                return False
        elif (
            number != group[-1] + 1 or len(group) >= GROUP_BLOCKS or (self.is_remote and not self._is_read_whole(file))
        ):
            return False
        growth = 1.0 if self.is_remote else self.growth.factor  # a request is as large as the bytes that are stored
        return bool(self.blocks.block_lengths[[*group, number]].sum() * growth <= self._group_bytes)

    def can_grow(self, group: Sequence[int]) -> bool:
        """True if the block that comes next in its file could join a group. Runs of rows come in another order."""
        return not self._fetches_rows(self.blocks.file_of(group[-1])) and self.joins(group, group[-1] + 1)

    def reserve(self, number: int) -> bool:
        """Reserve memory for a block to read ahead, and return whether there was enough.

        One block always fits, unless nothing is to be read ahead. Blocks count as large as they become, as far as that
        is known.
        """
        if not self.is_remote:
            return True
        length = int(self.blocks.block_lengths[number] * self.growth.factor)
        limit = self._fetch.read_ahead
        if not limit or (self._reserved_bytes and self._reserved_bytes + length > limit):
            return False
        self._reserved_bytes += length
        self._reserved.setdefault(number, []).append(length)
        return True

    def release(self, number: int) -> None:
        """Release the memory that was reserved for a block."""
        if self.is_remote:
            self._reserved_bytes -= self._reserved[number].pop()
            if not self._reserved[number]:
                del self._reserved[number]

    def close(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Stop the threads and close the files. Requests that a store does not answer are not waited for.

        Does nothing while the interpreter shuts down, which does so itself and may have cleared ``sys`` already. Nor in
        a forked process: it has none of the threads, and a lock of theirs may be held forever.
        """
        if is_finalizing() or not self._is_of_this_process:
            return
        self._stop.set()
        for pool in self._thread_pools.values():
            pool.shutdown(wait=not self.is_remote, cancel_futures=True)
        wait(list(self._jobs), CLOSE_SECONDS)
        self._thread_pools.clear()
        self._open_files.clear()

    def _read_local(self, numbers: Iterable[int]) -> Iterator[tuple[int, ReadBlock]]:
        """Blocks of one file. One check is for all: if the file is unchanged now, all bytes were of its version."""
        blocks, problem, file = list[tuple[int, ReadBlock]](), None, -1
        try:
            for number in numbers:
                held = self._decoded.get(number)
                if held is not None:
                    blocks.append((number, ReadBlock(held, False)))
                    continue
                file, block = self.blocks.block(number)
                reader = self._reader(file)
                data = self._timed(reader.read, block)
                self._check_rows(data, file, block)
                is_view = reader.is_view(data)
                if not is_view:
                    self._note_growth(number, data)
                blocks.append((number, ReadBlock(as_batch(data), is_view)))
        except Exception as error:
            problem = error
        if file >= 0 and (problem is not None or not all(block.is_view for _, block in blocks)):
            self.index.check(file)  # a file that is being rewritten looks broken
        yield from blocks
        if problem is not None:
            raise problem

    def _read_remote(self, numbers: Iterable[int]) -> Iterator[tuple[int, ReadBlock]]:
        """Blocks of one object: those that a lane holds or that are in the cache first, then the others."""
        missing = dict[int, tuple[int, Block]]()
        for number in numbers:
            held = self._decoded.get(number)
            if held is not None:
                yield number, ReadBlock(held, False)
            else:
                missing[number] = self.blocks.block(number)
        for number, block in self._fetched(missing) if self.cache is None else self.cache.read(missing, self._fetched):
            self._note_growth(number, block.data)
            yield number, block

    def _check_rows(self, data: Data, file: int, block: Block) -> None:
        """Raise if a block has other rows than the index says: the index was damaged, or it is of another file."""
        if data.num_rows != block.rows:
            saved_at = self.view.saved_at
            where = f" Delete the index, {saved_at}, and open the dataset again." if saved_at else ""
            raise DataChangedError(
                f"{self.view.path(file)}: block {block.number} has {data.num_rows:,} rows, and the index says "
                f"{block.rows:,}.{where}"
            )

    def _fetched(self, missing: Mapping[int, tuple[int, Block]]) -> Iterator[tuple[int, ReadBlock]]:
        if missing:
            reader = self._reader(next(iter(missing.values()))[0])
            read = iter(read_all(reader, [block for _, block in missing.values()]))
            for number, (file, block) in missing.items():
                data = self._timed(next, read)
                self._check_rows(data, file, block)
                yield number, ReadBlock(as_batch(data), False)

    def _timed(self, read: Callable[..., Data], what: Any) -> Data:
        """Read a block. How long the thread waits for requests is noted, and the rest, which is decoding."""
        begun, waited = time.perf_counter(), REQUESTS.seconds
        data = read(what)
        waited = REQUESTS.seconds - waited
        with self._lock:
            self.fetched += waited
            self.decoded += time.perf_counter() - begun - waited
        return data

    def _fill(self, pending: dict[int, PendingBlock], growth: float | None) -> None:
        """Read the blocks that are still wanted, in a background thread, until blocks outgrow ``growth``."""
        begun = list[int]()

        def wanted() -> Iterator[int]:
            for number, future in pending.items():
                if growth is not None and self.growth.outdates(growth):
                    return
                if future.set_running_or_notify_cancel():
                    begun.append(number)
                    yield number

        # A group of a store is one request, so no other may claim blocks of it any more.
        numbers = list(wanted()) if self.is_remote else wanted()
        try:
            with closing(self.read_all(numbers)) as blocks:  # at once, also after an error: it may have claimed some
                for number, block in blocks:
                    pending[number].set_result(block)
            if unread := [number for number in begun if not pending[number].done()]:
                raise RuntimeError(f"The blocks {unread} were requested and not read.")  # else who waits would hang
        except BaseException as error:
            for number in begun:
                if not pending[number].done():
                    pending[number].set_exception(error)

    def _note_growth(self, number: int, data: Data) -> None:
        if not self.has_runs or not self.view.divisible[self.blocks.file_of(number)]:
            self.growth.note(int(self.blocks.block_lengths[number]), data.get_total_buffer_size())

    def _fetches_rows(self, file: int) -> bool:
        """True if runs of rows of a file are fetched, not whole blocks."""
        return self.has_runs and self.view.divisible[file]

    def _is_read_whole(self, file: int) -> bool:
        """True if all columns of a file are read, and its format knows the bytes of each block."""
        own = self.view.schemas[file]
        return own is not None and FORMATS[self.view.formats[file]].has_spans and self._names.issuperset(own.names)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self._wanted.names)

    def _reader(self, file: int) -> BlockReader:
        with self._lock:
            opened = self._open_files.get(file)
            if opened is None:
                if len(self._open_files) >= MAX_OPEN_FILES:
                    self._open_files.pop(next(iter(self._open_files)), None)
                opened = self._open_files[file] = _OpenFile()
        with opened.lock:  # if two threads want the same file, one opens it and the other waits
            if opened.reader is None:
                opened.reader = self.index.open(file, self._wanted)
            return opened.reader


class _OpenFile:
    """A file that a thread has opened or is opening."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.reader: BlockReader | None = None
