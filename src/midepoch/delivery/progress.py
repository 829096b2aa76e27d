"""What one reader has delivered."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import length_hint
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from midepoch._common.hashing import U64
from midepoch.checkpoint.lanes import Cursor
from midepoch.checkpoint.row_digest import LaneSums, RowDigest
from midepoch.checkpoint.state import ReaderProgress, State
from midepoch.delivery.session import AnySession, Session
from midepoch.delivery.tally import Reading, Tally

SessionKind = TypeVar("SessionKind", bound=AnySession)


class Turns(NamedTuple):
    """Consecutive turns of a reader, which go round some lanes."""

    items: Sequence[Any]
    """The item of each turn; ``EMPTY`` if the lane has run out."""
    cursors: Sequence[Sequence[Sequence[int]]]
    """For each of these lanes, the cursors after its items; none if the lane has run out, or items are counted."""
    hashes: U64 | None = None
    """What each item adds to a digest, if one is kept; 0 if the lane has run out."""


EMPTY = object()
MOST_UNSUMMED = 1 << 10
"""What the items of this many turns add to a digest is summed together."""


class Progress(ABC, Generic[SessionKind]):
    """What one reader of a session has delivered. It moves as items are handed over, never earlier."""

    def __init__(
        self, session: SessionKind, reader: int, *, workers: int = 1, turns: int = 0, own_sums: LaneSums = ()
    ) -> None:
        """Start with the session, or after some turns of it. A rank has ``workers`` readers.

        ``own_sums`` has a sum for each lane, if a digest is kept.
        """
        self.session, self.reader, self.workers = session, reader, workers
        self.reading = Reading(session.lanes)
        """What this process has taken to make items."""
        self.of_workers = Tally()
        """What making the items has taken in worker processes."""
        self.repeated = 0
        self._current: Turns | None = None
        self._remaining: Iterator[Any] = iter(())
        self._turns_before_current = self._turns_summed = turns
        self._own_sums = np.array(own_sums, np.uint64)
        self._unsummed: list[U64] = []

    def check(self) -> None:
        """Raise if the state from which this was restored says what no run can have reached."""
        self.session.check()

    @abstractmethod
    def reader_progress(self) -> ReaderProgress:
        """What this reader has delivered of its session, as a value."""

    @property
    @abstractmethod
    def items(self) -> int:
        """The number of items handed over, including those repeated to keep ranks even."""

    @abstractmethod
    def upcoming(self) -> tuple[int, Cursor] | None:
        """The lane of the next turn that may have an item, and the cursor in it from which reading continues."""

    @abstractmethod
    def following(self) -> State:
        """The state in the next epoch, once this reader has delivered everything of this one."""

    @abstractmethod
    def _state(self) -> State:
        """The state at this moment, without a digest."""

    def state(self) -> State:
        """The state at this moment."""
        start = self.session.start
        if start.digest is None:
            return self._state()
        digest = RowDigest.of_session(start.digest, self.own_sums, self.reader, self.session.readers)
        return replace(self._state(), digest=digest)

    @property
    def turns_taken(self) -> int:
        """The number of turns, empty ones included."""
        return self._turns_before_current + self._turns_of_current

    @property
    def _turns_of_current(self) -> int:
        """The number of turns taken of the current ``Turns``: the items that its iterator has handed over."""
        current = self._current  # once: another thread may iterate over the same object
        return 0 if current is None else len(current.items) - length_hint(self._remaining)

    def follow(self, all_turns: Iterable[Turns]) -> Iterator[Iterable[Any]]:
        """Hand over the items of this reader's turns, many at a time. Each iterable must be used up before the next.

        No Python code runs for a single item: the iterator of the items knows how many are handed over.
        """
        for turns in all_turns:
            self._current, self._remaining = turns, iter(turns.items)
            if all(map(len, turns.cursors)):
                yield self._remaining
            else:
                yield (item for item in self._remaining if item is not EMPTY)
            self._finish_current()
            del turns  # so that the next rows are made in the memory of these, which is still in the cache

    def cut_off(self) -> None:
        """Hand over none of the items that are ready. Those that were handed over stay delivered."""
        if self._current is None:
            return
        items = self._current.items
        self._finish_current()
        if isinstance(items, list):
            items.clear()  # which ends the iterator that hands them over

    def _finish_current(self) -> None:
        taken, current = self._settle(), self._current
        if current is not None and current.hashes is not None:
            self._unsummed.append(current.hashes[:taken])
        self._turns_before_current, self._current = self._turns_before_current + taken, None
        if self._turns_before_current - self._turns_summed >= MOST_UNSUMMED:
            self._sum()

    def _settle(self) -> int:
        """The number of turns that are taken of the current ones."""
        return self._turns_of_current

    def _sum(self) -> None:
        """Add what the turns before the current ones add to a digest to the sums of their lanes."""
        if self._unsummed:
            hashes, self._unsummed = np.concatenate(self._unsummed), []
            self._own_sums += self._sums_of(self._turns_summed, hashes)
        self._turns_summed = self._turns_before_current

    def _sums_of(self, first: int, hashes: U64) -> U64:
        lanes, _ = self.session.items_at(self.reader, np.arange(first, first + len(hashes)))
        sums = np.zeros(len(self._own_sums), np.uint64)
        np.add.at(sums, lanes, hashes)
        return sums

    @property
    def own_sums(self) -> LaneSums:
        """For each lane, the sum of the hashes of what this reader delivered, if a digest is kept."""
        self._sum()
        sums, taken = self._own_sums, self._turns_of_current
        if taken and self._current is not None and self._current.hashes is not None:
            sums = sums + self._sums_of(self._turns_before_current, self._current.hashes[:taken])
        return tuple(sums.tolist())


class CountedProgress(Progress[Session]):
    """What one reader of a counted session has delivered: a number of items."""

    def reader_progress(self) -> ReaderProgress:
        delivered = self.items - self.repeated
        return ReaderProgress(readers=self.session.readers, workers=self.workers, items=(delivered,))

    @property
    def items(self) -> int:
        return self.turns_taken + self.repeated

    def upcoming(self) -> tuple[int, Cursor] | None:
        return self.session.upcoming(self.reader, self.items - self.repeated)

    def _state(self) -> State:
        if self.workers == 1:
            return self.session.after(self.items)
        return replace(self.session.start, reader_progress=self.reader_progress())

    def following(self) -> State:
        return self.session.start.following()


AnyProgress = Progress[Any]
