"""What one reader of files holds open, and how much it reads at a time."""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from midepoch.formats.arrow import holds_dictionary
from midepoch.index.index import Index
from midepoch.sources.fetcher import BlockFetcher
from midepoch.sources.lane import ROW_STEP_BYTES, WINDOW_STEP_BYTES, ReadSizes
from midepoch.sources.read_counts import ReadCounts
from midepoch.sources.virtual import BlockTable
from midepoch.stages.flow import RowRun
from midepoch.storage.options import Fetch


class OpenFiles:
    """The open files of one reader, and how much it reads at a time."""

    def __init__(
        self,
        index: Index,
        wanted: pa.Schema,
        lanes: int,
        fetch: Fetch | None = None,
        blocks: BlockTable | None = None,
        window_bytes: int = 0,
        *,
        is_scattered: bool = False,
    ) -> None:
        """``is_scattered`` is true if rows that follow each other lie in different blocks."""
        has_dictionaries = any(holds_dictionary(field.type) for field in wanted)
        self.fetcher = BlockFetcher(index, wanted, fetch, lanes, blocks)
        self.window_bytes = window_bytes
        self._counts, self._store = ReadCounts(), index.store
        self._earlier_retries = 0 if index.store is None else index.store.retries
        self.sizes = ReadSizes.of(
            index.view.row_bytes,
            lanes,
            has_dictionaries=has_dictionaries,
            is_decoded=not self.fetcher.all_mapped,
            scattered_bytes=_scattered_bytes(lanes, window_bytes, is_scattered and self.fetcher.all_mapped),
        )

    @property
    def decodes(self) -> bool:
        return not self.fetcher.all_mapped

    def timed(self, runs: Iterator[RowRun]) -> Iterator[RowRun]:
        """The same runs, counted."""
        return self._counts.timed(runs)

    def counts(self) -> ReadCounts:
        fetcher, cache = self.fetcher, self.fetcher.cache
        return replace(
            self._counts,
            fetched=fetcher.fetched,
            decoded=fetcher.decoded,
            retries=0 if self._store is None else self._store.retries - self._earlier_retries,
            cache_hits=0 if cache is None else cache.hits,
            cache_misses=0 if cache is None else cache.misses,
        )

    def close(self) -> None:
        self.fetcher.close()


def _scattered_bytes(lanes: int, window_bytes: int, is_scattered: bool) -> int:
    """How many bytes of rows that lie in different blocks a lane picks together."""
    of_rows = ROW_STEP_BYTES // lanes if is_scattered else 0
    return max(of_rows, WINDOW_STEP_BYTES if window_bytes or is_scattered else 0)
