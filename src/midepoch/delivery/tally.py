"""What making items took, in this process and in workers: numbers that add up, and travel with messages."""

import struct
from dataclasses import astuple, dataclass, fields

from midepoch.delivery.session import Session


@dataclass(slots=True)
class Tally:
    """Seconds and counts of one or more processes."""

    read: float = 0.0
    """Seconds in which rows were fetched and decoded."""
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

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "Tally") -> "Tally":
        return Tally(*(one - less for one, less in zip(astuple(self), astuple(other), strict=True)))

    def write(self) -> bytes:
        """The numbers as bytes."""
        return NUMBERS.pack(*astuple(self))

    @classmethod
    def read_back(cls, content: bytes) -> "Tally":
        """The numbers that :meth:`write` wrote."""
        return cls(*NUMBERS.unpack(content))


NUMBERS = struct.Struct(f"<{len(fields(Tally))}d")


def tally_of(session: Session) -> Tally:
    """What this process has read and packed in a session."""
    counts, packs = session.read_counts(), session.lanes.packs
    return Tally(
        read=counts.seconds,
        rows=counts.rows,
        cache_hits=counts.cache_hits,
        cache_misses=counts.cache_misses,
        retries=counts.retries,
        packs=packs.packs,
        tokens=packs.tokens,
    )
