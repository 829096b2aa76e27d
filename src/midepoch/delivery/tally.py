"""What making items took, in this process and in workers: numbers that add up, and travel with messages."""

import struct
from operator import add, sub
from typing import NamedTuple

from midepoch.delivery.session import Session


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


def tally_of(session: Session) -> Tally:
    """What this process has read and packed in a session."""
    counts, packs = session.read_counts(), session.lanes.packs
    return Tally(
        read=counts.seconds,
        fetched=counts.fetched,
        decoded=counts.decoded,
        functions=session.function_seconds,
        rows=counts.rows,
        cache_hits=counts.cache_hits,
        cache_misses=counts.cache_misses,
        retries=counts.retries,
        packs=packs.packs,
        tokens=packs.tokens,
    )
