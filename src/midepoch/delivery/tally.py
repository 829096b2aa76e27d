"""What making items took, in this process and in workers: numbers that add up, and travel with messages."""

import struct
import sys
from collections.abc import Callable
from operator import add, sub
from typing import NamedTuple

from midepoch.pipeline.pipeline import PipelineLanes
from midepoch.sources.source import OpenSource, ReadCounts, sum_counts


class Tally(NamedTuple):
    """Seconds and counts of one or more processes."""

    read: float = 0.0
    """Seconds in which readers waited for rows to be fetched and decoded."""
    fetched: float = 0.0
    """Seconds of requests to a store, in all threads."""
    decoded: float = 0.0
    """Seconds in which blocks were decoded, in all threads."""
    functions: float = 0.0
    """Seconds in functions of the user."""
    rows: float = 0.0
    cache_hits: float = 0.0
    cache_misses: float = 0.0
    retries: float = 0.0
    packs: float = 0.0
    tokens: float = 0.0
    """The tokens of packs, without padding."""
    made: float = 0.0
    """Seconds in which a worker made items, reading included."""
    sent: float = 0.0
    """Seconds in which a worker wrote items to shared memory."""
    idle: float = 0.0
    """Seconds in which a worker was as far ahead as it may be."""
    received: float = 0.0
    """Seconds in which the main process copied items from there."""

    def plus(self, other: "Tally") -> "Tally":
        """Both together."""
        return Tally(*map(add, self, other))

    def minus(self, other: "Tally") -> "Tally":
        """What was added since ``other``."""
        return Tally(*map(sub, self, other))

    def write(self) -> bytes:
        """The numbers as bytes."""
        return NUMBERS.pack(*self)

    @classmethod
    def read_back(cls, content: bytes) -> "Tally":
        """The numbers that :meth:`write` wrote."""
        return cls(*NUMBERS.unpack(content))


NUMBERS = struct.Struct(f"<{len(Tally._fields)}d")


class Reading:
    """What one process holds open to read the lanes of an epoch, and what that has taken."""

    def __init__(self, lanes: PipelineLanes) -> None:
        self._lanes = lanes
        self._opened: list[OpenSource] = []
        self._closed_counts = ReadCounts()
        self.function_seconds = 0.0
        """How long functions of the user have taken."""

    def open(self, lanes: int) -> OpenSource:
        """What this process holds open to read this number of lanes."""
        self._opened.append(self._lanes.pipeline.source.open(lanes))
        return self._opened[-1]

    def close(self, opened: OpenSource, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Close what was opened to read. What that has taken stays counted.

        While the interpreter shuts down nothing is counted, because modules may have been cleared already.
        """
        self._opened.remove(opened)
        opened.close()
        if is_finalizing():
            return
        self._closed_counts = sum_counts((self._closed_counts, opened.counts()))

    def tally(self) -> Tally:
        """What this process has read and packed so far."""
        counts = sum_counts((self._closed_counts, *(opened.counts() for opened in self._opened)))
        return Tally(
            read=counts.seconds,
            fetched=counts.fetched,
            decoded=counts.decoded,
            functions=self.function_seconds,
            rows=counts.rows,
            cache_hits=counts.cache_hits,
            cache_misses=counts.cache_misses,
            retries=counts.retries,
            packs=self._lanes.packs.packs,
            tokens=self._lanes.packs.tokens,
        )
