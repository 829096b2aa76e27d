"""Sums of what items are made of, on their way from the process that reads to the one that delivers.

They are asked for when a state or a digest is, or after many turns, so that hashes are computed for many rows together.
"""

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from midepoch._common.types import I64, U64
from midepoch.delivery.session import Session
from midepoch.pipeline.ledger import Ledgers


class Sums(Protocol):
    """The sums of a sequence of turns."""

    def take(self, turns: int) -> U64:
        """The sum of each of the next turns, which were taken; 0 if a turn is empty."""


class ReadSums:
    """The sums of the turns that this process takes: ``turn``, ``turn + step`` … of a reader."""

    def __init__(self, session: Session, reader: int, turn: int, step: int) -> None:
        self.ledgers: Ledgers = {}
        """The ledgers of the lanes that are open."""
        self._session, self._reader, self._turn, self._step = session, reader, turn, step

    def take(self, turns: int) -> U64:
        numbers = np.arange(self._turn, self._turn + turns * self._step, self._step)
        self._turn += turns * self._step
        lanes, _ = self._session.items_at(self._reader, numbers)
        sums = np.zeros(turns, np.uint64)
        for lane in set(lanes.tolist()):
            own = slice(None) if len(self.ledgers) == 1 else lanes == lane
            sums[own] = self._of_lane(lane, len(sums[own]))
        return sums

    def _of_lane(self, lane: int, turns: int) -> U64:
        sums = self.ledgers[lane].take(turns)
        if len(sums) == turns:
            return sums
        return np.concatenate([sums, np.zeros(turns - len(sums), np.uint64)])  # the lane has run out


class ArrivedSums:
    """The sums of turns that other processes have taken, in the order in which the turns arrive."""

    def __init__(self) -> None:
        self._arrived: list[int] = []

    def add(self, sums: Iterable[int]) -> None:
        """Add the sums of the next turns, as signed numbers of 64 bits."""
        self._arrived.extend(sums)

    def take(self, turns: int) -> U64:
        sums: I64 = np.array(self._arrived[:turns], np.int64)
        del self._arrived[:turns]
        return sums.view(np.uint64)
