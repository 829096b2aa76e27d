"""Reading blocks of files: by any thread of one reader, checked against the index, and kept on disk if asked."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TypeAlias

import pyarrow as pa

from midepoch._common.checks import cached_property
from midepoch._common.jobs import REQUESTS
from midepoch.errors import DataChangedError
from midepoch.formats import FORMATS, Block, BlockReader, read_all
from midepoch.index.build import is_mapped
from midepoch.index.index import Index
from midepoch.sources.source import ReadCounts
from midepoch.storage.block_cache import BlockCache, block_key

Data: TypeAlias = "pa.Table | pa.RecordBatch"
MAX_OPEN_FILES = 256
MAX_VIEWS = 4096
"""How many views of mapped blocks are kept. They take no memory, but time to make."""
MADE_BYTES = 256 << 20
"""The bytes of their columns that are made: cast to the type of the dataset, or added to what the file has."""


class CurrentReads:
    """The reads of all threads that are under way, written where the parent sees them if this process is killed.

    They are written nowhere until there is a place for them.
    """

    def __init__(self) -> None:
        self._place: memoryview | None = None
        self._names: list[str] = []
        self._lock = Lock()

    def write_to(self, place: memoryview) -> None:
        """Write what is read to some shared bytes, from now on."""
        self._place, self._names, self._lock = place, [], Lock()  # a thread may have held the lock in a forked parent

    @contextmanager
    def noted(self, name: str) -> Iterator[None]:
        """Note that something is read, as long as the context lasts."""
        place = self._place
        if place is None:
            yield
            return
        self._change(place, self._names.append, name)
        try:
            yield
        finally:
            self._change(place, self._names.remove, name)

    def _change(self, place: memoryview, change: Callable[[str], None], name: str) -> None:
        with self._lock:
            change(name)
            content = "; ".join(filter(None, self._names)).encode()[: len(place) - 1] + b"\0"
            place[: len(content)] = content


def written(place: memoryview) -> str:
    """What is written at a place."""
    return bytes(place).partition(b"\0")[0].decode(errors="replace")


CURRENT_READS = CurrentReads()


class FileBlocks:
    """The blocks of files, known by their numbers in the index. It belongs to the process that created it."""

    def __init__(self, index: Index, wanted: pa.Schema, cache: BlockCache | None = None) -> None:
        self.index, self.view, self.is_remote = index, index.view, index.store is not None
        self.wanted, self._cache = wanted, cache if self.is_remote else None
        self._lock = Lock()
        self._open_files: dict[int, _OpenFile] = {}
        self._views: dict[int, tuple[Data, int]] = {}
        self._made: dict[int, list[str]] = {}
        """For each schema of files, the columns that are no views."""
        self._made_bytes = 0
        self.counts = ReadCounts()

    @cached_property
    def views(self) -> Sequence[bool]:
        """For each file, whether its blocks are views of it, of which any rows can be copied alone."""
        return [divisible and is_mapped(self.index, file) for file, divisible in enumerate(self.view.divisible)]

    def is_copied(self, file: int) -> bool:
        """True if blocks of a file may be views of it, so that rows must be copied before they are handed on."""
        return is_mapped(self.index, file)

    def is_read_whole(self, file: int) -> bool:
        """True if all columns of a file are read, and its format knows the bytes of each block."""
        own = self.view.schemas[file]
        return own is not None and FORMATS[self.view.formats[file]].has_spans and self._names.issuperset(own.names)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.wanted.names)

    def view_of(self, number: int) -> Data:
        """A block as a view of its file, which the caller checks after rows were copied."""
        if (kept := self._views.get(number)) is not None:
            return kept[0]
        file, block = self.view.block(number)
        with CURRENT_READS.noted(self._name(file, block)):
            data = self._reader(file).read(block)
        self._check_rows(data, file, block)
        made = sum(data.column(name).nbytes for name in self._made_columns(file))
        with self._lock:
            while self._views and (len(self._views) >= MAX_VIEWS or self._made_bytes + made > MADE_BYTES):
                self._made_bytes -= self._views.pop(next(iter(self._views)))[1]
            if number not in self._views:
                self._views[number] = data, made
                self._made_bytes += made
        return data

    def _made_columns(self, file: int) -> list[str]:
        """The wanted columns that are no views: the file lacks them, or has them with another type."""
        own, number = self.view.schemas[file], self.view.schema_numbers[file]
        if number not in self._made:
            self._made[number] = [field.name for field in self.wanted if not self._is_stored(file, own, field)]
        return self._made[number]

    def _is_stored(self, file: int, own: pa.Schema | None, field: pa.Field) -> bool:
        name = self.index.stored_name(file, field.name)
        if own is None or name not in own.names or field.name in self.index.constants(file):
            return False
        return bool(own.field(name).type == field.type)

    def read(self, numbers: Sequence[int]) -> dict[int, Data]:
        """Blocks of one file, fetched together. They are of the version that was indexed."""
        file = self.view.file_of(numbers[0])
        missing = {number: self.view.block(number)[1] for number in numbers}
        begun, waited = time.perf_counter(), REQUESTS.seconds
        try:
            read = dict(
                self._fetched(file, missing) if self._cache is None else self._cached(self._cache, file, missing)
            )
        finally:
            self.index.check(file)  # also after an error: a file that is being rewritten looks broken
            waited = REQUESTS.seconds - waited
            with self._lock:
                self.counts.fetched += waited
                self.counts.decoded += time.perf_counter() - begun - waited
        return read

    def _fetched(self, file: int, blocks: Mapping[int, Block]) -> Iterator[tuple[int, Data]]:
        read: Iterator[Data] | None = None
        for number, block in blocks.items():
            with CURRENT_READS.noted(self._name(file, block)):
                read = read or iter(read_all(self._reader(file), [*blocks.values()]))
                data = next(read)
            self._check_rows(data, file, block)
            yield number, _as_batch(data)

    def _name(self, file: int, block: Block) -> str:
        return f"{self.view.path(file)}, {FORMATS[self.view.formats[file]].block} {block.number}"

    def _check_rows(self, data: Data, file: int, block: Block) -> None:
        """Raise if a block has other rows than the index says: the index was damaged, or it is of another file."""
        if data.num_rows != block.rows:
            saved_at = self.view.saved_at
            where = f" Delete the index, {saved_at}, and open the dataset again." if saved_at else ""
            raise DataChangedError(
                f"{self.view.path(file)}: block {block.number} has {data.num_rows:,} rows, and the index says "
                f"{block.rows:,}.{where}"
            )

    def _cached(self, cache: BlockCache, file: int, missing: dict[int, Block]) -> Iterator[tuple[int, Data]]:
        """Blocks of one object: those in the cache first, then the others, which are fetched."""
        keys = {number: self._key(file, block) for number, block in missing.items()}
        yield from self._found(cache, keys, missing)
        if not missing:
            return
        with cache.claim([keys[number] for number in missing]):  # another process may have fetched them meanwhile
            yield from self._found(cache, keys, missing)
            for number, data in self._fetched(file, missing):
                cache.put(keys[number], data)
                with self._lock:
                    self.counts.cache_misses += 1
                yield number, data

    def _found(
        self, cache: BlockCache, keys: Mapping[int, str], missing: dict[int, Block]
    ) -> Iterator[tuple[int, Data]]:
        """The missing blocks that are in the cache. They are missing no longer."""
        for number in list(missing):
            data = cache.get(keys[number])
            # One that was forged may have other rows and columns.
            if data is not None and data.num_rows == missing[number].rows and list(data.schema) == list(self.wanted):
                del missing[number]
                with self._lock:
                    self.counts.cache_hits += 1
                yield number, _as_batch(data)

    def _key(self, file: int, block: Block) -> str:
        """A hash of everything that the content of a block depends on."""
        stamp, store = self.view.stamps[file], self.index.store
        version = self.view.versions[file] or str(stamp.mtime_ns)
        identity = store.identity if store is not None else ""
        return block_key(identity, self.view.path(file), stamp.size, version, block.number, self._schema_digest)

    @cached_property
    def _schema_digest(self) -> str:
        return block_key(self.wanted.serialize().to_pybytes().hex())

    def _reader(self, file: int) -> BlockReader:
        with self._lock:
            opened = self._open_files.get(file)
            if opened is None:
                if len(self._open_files) >= MAX_OPEN_FILES:
                    del self._open_files[next(iter(self._open_files))]
                opened = self._open_files[file] = _OpenFile()
        with opened.lock:  # if two threads want the same file, one opens it and the other waits
            if opened.reader is None:
                opened.reader = self.index.open(file, self.wanted)
            return opened.reader

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            self._open_files.clear()
            self._views.clear()


class _OpenFile:
    """A file that a thread has opened or is opening."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.reader: BlockReader | None = None


def _as_batch(data: Data) -> Data:
    """A block as one record batch, which is sliced faster than a table; unchanged if that would need a copy.

    A string column with more bytes than 32-bit offsets can address comes in several chunks that cannot be joined.
    """
    batches = data.to_batches() if isinstance(data, pa.Table) else [data]
    return batches[0] if len(batches) == 1 else data
