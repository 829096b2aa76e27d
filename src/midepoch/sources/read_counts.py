"""What reading takes and finds: seconds, rows, blocks of a cache, and requests that were tried again."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from operator import attrgetter

from midepoch.stages.flow import RowRun


@dataclass(slots=True)
class ReadCounts:
    """Counts of one reader."""

    seconds: float = 0.0
    """In which rows were fetched and decoded, while the reader waited for them."""
    fetched: float = 0.0
    """Seconds of requests to a store, in all threads: they can be more than the reader waited."""
    decoded: float = 0.0
    """Seconds in which blocks were decoded, in all threads."""
    rows: float = 0.0
    cache_hits: float = 0.0
    cache_misses: float = 0.0
    retries: float = 0.0

    def timed(self, runs: Iterator[RowRun], clock: Callable[[], float] = time.perf_counter) -> Iterator[RowRun]:
        """The same runs. It costs two looks at the clock a run."""
        begun = clock()
        for run in runs:
            self.seconds += clock() - begun
            self.rows += len(run)
            yield run
            del run  # so that the next one is made in its memory, which is still in the CPU cache
            begun = clock()


_values = attrgetter(*(field.name for field in fields(ReadCounts)))


def sum_counts(counts: Iterable[ReadCounts]) -> ReadCounts:
    """All counts as one. A worker sends them with each message, so this must not take long."""
    return ReadCounts(*map(sum, zip(_values(ReadCounts()), *map(_values, counts), strict=True)))
