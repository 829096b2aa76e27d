"""Blocks of a store that are kept on a local disk, and which of them are needed last."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from threading import Lock
from typing import TypeAlias

import pyarrow as pa

from midepoch._common.lazy import cached_property
from midepoch._common.types import F64, I64
from midepoch.formats import Block
from midepoch.index.files import check_version
from midepoch.index.index import Index
from midepoch.sources.read_block import ReadBlock, as_batch
from midepoch.sources.virtual import BlockTable
from midepoch.storage.cache import BlockCache, block_key

Located: TypeAlias = "tuple[int, Block]"
"""A block and the number of its file."""


class CachedBlocks:
    """The blocks of one reader in a cache that it may share with others. Any thread may read them."""

    def __init__(self, cache: BlockCache, index: Index, blocks: BlockTable, wanted: pa.Schema) -> None:
        self._cache, self._index, self._blocks, self._wanted = cache, index, blocks, wanted
        self._lock = Lock()
        self.hits = self.misses = 0
        """How many blocks were in the cache, and how many were not."""
        self._used: dict[str, int] = {}
        """The keys of the blocks that were read in this epoch, with their numbers."""
        self._checked: set[int] = set()
        """The files whose version is known to be the indexed one."""
        self._epoch = -1
        self._next_uses: Callable[[], F64 | None] = lambda: None

    def read(
        self,
        missing: dict[int, Located],
        fetch: Callable[[Mapping[int, Located]], Iterator[tuple[int, ReadBlock]]],
    ) -> Iterator[tuple[int, ReadBlock]]:
        """Blocks of one object by their numbers: those in the cache first, then the others, which are fetched."""
        for file in {file for file, _ in missing.values()} - self._checked:
            self._check_version(file)
        keys = {number: self.key(file, block) for number, (file, block) in missing.items()}
        yield from self._found(keys, missing)
        if not missing:
            return
        with self._cache.claim([keys[number] for number in missing]):  # another process may have fetched them meanwhile
            yield from self._found(keys, missing)
            for number, block in fetch(missing):
                self._cache.put(keys[number], block.data, self._next_use)
                with self._lock:
                    self.misses += 1
                    self._used[keys[number]] = number
                yield number, block

    def plan(self, epoch: int, next_uses: Callable[[I64], F64 | None]) -> None:
        """Note how late in the next epoch the blocks that begin at some rows are needed.

        It is asked once an epoch, when the cache is full.
        """
        if epoch != self._epoch:
            self._epoch, self._next_uses = epoch, cache(lambda: next_uses(self._blocks.block_starts[:-1]))
            self._used = {}

    def key(self, file: int, block: Block) -> str:
        """A hash of everything that the content of a block depends on."""
        view, store = self._index.view, self._index.store
        stamp = view.stamps[file]
        version = view.versions[file] or str(stamp.mtime_ns)
        identity = store.identity if store is not None else ""
        rows = () if block.first is None else (block.first, block.rows)
        return block_key(identity, view.path(file), stamp.size, version, block.number, self._schema_digest, *rows)

    def _check_version(self, file: int) -> None:
        """Raise ``DataChangedError`` unless an object is the indexed one, if its listing could not tell.

        A listing without etags knows an object by its size and time, and two versions may have the same second.
        """
        stamp = self._index.view.stamps[file]
        if not stamp.version and stamp.mtime_ns % 10**9 == 0:
            check_version(self._index, file)
        self._checked.add(file)

    def _found(self, keys: Mapping[int, str], missing: dict[int, Located]) -> Iterator[tuple[int, ReadBlock]]:
        """The missing blocks that are in the cache. They are missing no longer."""
        for number in list(missing):
            cached = self._cache.get(keys[number])
            if cached is not None and self._fits(cached, missing[number][1]):
                del missing[number]
                with self._lock:
                    self.hits += 1
                    self._used[keys[number]] = number
                yield number, ReadBlock(as_batch(cached), False)

    def _fits(self, cached: pa.Table, block: Block) -> bool:
        """True if a cached block has the rows and columns that the index says. One that was forged may have others."""
        return cached.num_rows == block.rows and list(cached.schema) == list(self._wanted)

    def _next_use(self, key: str) -> float | None:
        """How late in the next epoch a block is needed; None if this reader has not read it in this one."""
        number = self._used.get(key)
        next_uses = None if number is None else self._next_uses()
        return None if next_uses is None else float(next_uses[number])

    @cached_property
    def _schema_digest(self) -> str:
        return block_key(self._wanted.serialize().to_pybytes().hex())
