"""What one reader has delivered."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import length_hint
from typing import Any, NamedTuple

import numpy as np

from midepoch.checkpoint.lanes import Cursor
from midepoch.checkpoint.row_digest import LaneSums, RowDigest
from midepoch.checkpoint.state import MOST_APART, LanePositions, ReaderProgress, State
from midepoch.delivery.session import Session
from midepoch.delivery.sums import Sums
from midepoch.delivery.tally import Tally
from midepoch.pipeline.ledger import units_of_item


class Turns(NamedTuple):
    """Consecutive turns of a reader, which go round some lanes."""

    items: Sequence[Any]
    """The item of each turn; ``EMPTY`` if the lane has run out."""
    cursors: Sequence[Sequence[Sequence[int]]]
    """For each of these lanes, the cursors after its items; none if the lane has run out."""
    sums: Sums | None = None
    """What has the sums of the hashes of what the items are made of, if a digest is kept: the same for many turns."""


EMPTY = object()
UNITS_UNSUMMED = 1 << 14
"""The sums of a digest are asked for after about this many rows: few enough to stay in the CPU cache."""


class Progress:
    """What one reader of a session has delivered. It moves as items are handed over, never earlier."""

    def __init__(
        self,
        session: Session,
        reader: int,
        *,
        workers: int = 1,
        delivered: ReaderProgress | None = None,
        own_sums: LaneSums = (),
    ) -> None:
        """Start with the session, or after what was ``delivered`` of it. A rank has ``workers`` readers.

        ``own_sums`` has a sum for each lane, if a digest is kept.
        """
        self.session, self.reader, self.workers = session, reader, workers
        assignment = session.assignment
        self.rotation = assignment.rotation(reader)
        self.counted = session.counted
        self.repeated = 0
        self._current: Turns | None = None
        self._remaining: Iterator[Any] = iter(())
        self._own_sums = np.array(own_sums, np.uint64)
        self._sums: Sums | None = None
        self.of_workers = Tally()
        """What making the items has taken in worker processes."""
        self._most_unsummed = max(1, UNITS_UNSUMMED // units_of_item(session.pipeline.groupings))
        self.cursors: list[Cursor] = [session.positions[lane].cursor for lane in self.rotation]
        self._turns_before_current = 0
        self.limits: list[int | None] = session.limits(reader)
        """For each slot, the number of items that the reader takes of its lane; None while that is unknown."""
        if delivered is not None and self.counted:
            self._turns_before_current = delivered.items[0]
        elif delivered is not None:
            self._restore(delivered)
        self._turns_summed = self._turns_before_current

    def _restore(self, delivered: ReaderProgress) -> None:
        """Take over the cursors of a pipeline that is not uniform. A lane with fewer items than turns has run out."""
        assignment = self.session.assignment
        self._turns_before_current = delivered.turns_taken
        deliveries = {lane: (end, cursor) for lane, end, cursor in delivered.deliveries}
        for slot, lane in enumerate(self.rotation):
            end, self.cursors[slot] = deliveries.get(lane, (0, self.cursors[slot]))
            items = (end - 1 - assignment.phase(self.reader, slot)) // assignment.stride + 1 if end else 0
            if items < assignment.turns_at(slot, delivered.turns_taken):
                self.limits[slot] = items

    def check(self) -> None:
        """Raise if the state from which this was restored says what no run can have reached."""
        self.session.check()
        for lane, cursor in zip(self.rotation, self.cursors, strict=True):
            self.session.check_cursor(lane, cursor)

    def reader_progress(self) -> ReaderProgress:
        """What this reader has delivered of its session, as a value."""
        readers = self.session.assignment.readers
        if self.counted:
            return ReaderProgress(readers=readers, workers=self.workers, items=(self.items - self.repeated,))
        self._settle()
        ends = ((lane, self.end(slot), self.cursors[slot]) for slot, lane in enumerate(self.rotation))
        deliveries = tuple((lane, end, cursor) for lane, end, cursor in ends if end)
        return ReaderProgress(readers=readers, reader=self.reader, turns_taken=self.turns_taken, deliveries=deliveries)

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
            self._current, self._remaining, self._sums = turns, iter(turns.items), turns.sums
            if all(map(len, turns.cursors)):
                yield self._remaining
            else:
                yield (item for item in self._remaining if item is not EMPTY)
            self._turns_before_current, self._current = self._turns_before_current + self._settle(), None
            if self._turns_before_current - self._turns_summed >= self._most_unsummed:
                self._settle_sums()
            del turns  # so that the next rows are made in the memory of these, which is still in the cache

    def cut_off(self) -> None:
        """Hand over none of the items that are ready. Those that were handed over stay delivered."""
        if self._current is None:
            return
        items = self._current.items
        self._turns_before_current, self._current = self._turns_before_current + self._settle(), None
        if isinstance(items, list):
            items.clear()  # which ends the iterator that hands them over

    def _settle(self) -> int:
        """Move the cursors to the turns that are taken. Returns how many of the current ones are."""
        taken = self._turns_of_current
        if self._current is None or not self.session.tracks_cursors:
            return taken
        cursors = self._current.cursors
        for turn in range(max(0, taken - len(cursors)), taken):  # in their order: several may be at one lane
            place, number = divmod(turn, len(cursors))
            slot = (self._turns_before_current + turn) % len(self.rotation)
            if len(cursors[number]):
                self.cursors[slot] = tuple(map(int, cursors[number][place]))
            elif self.limits[slot] is None:
                self.limits[slot] = self.session.assignment.turns_at(slot, self._turns_before_current + number)
        return taken

    def _settle_sums(self) -> None:
        """Add the sums of the turns that are taken to those of their lanes."""
        first, self._turns_summed = self._turns_summed, self.turns_taken
        if self._sums is None or first == self._turns_summed:
            return
        turns = np.arange(first, self._turns_summed)
        lanes, _ = self.session.items_at(self.reader, turns)
        np.add.at(self._own_sums, lanes, self._sums.take(len(turns)))

    @property
    def own_sums(self) -> LaneSums:
        """For each lane, the sum of the hashes of what this reader delivered, if a digest is kept."""
        self._settle_sums()
        return tuple(self._own_sums.tolist())

    def upcoming(self) -> tuple[int, Cursor] | None:
        """The lane of the next turn that may have an item, and the cursor in it from which reading continues."""
        if self.counted:
            return self.session.upcoming(self.reader, self.items - self.repeated)
        self._settle()
        assignment = self.session.assignment
        # That a lane ends early is learned by reading only, and only a partial state stores it. The answer
        # must be the same before a state is saved and after it is loaded.
        limits_are_kept = assignment.readers > 1
        for turns_taken in range(self.turns_taken, self.turns_taken + len(self.rotation)):
            slot = turns_taken % len(self.rotation)
            lane, items = self.rotation[slot], assignment.turns_at(slot, turns_taken)
            cursor = self.cursors[slot]
            limit = self.limits[slot] if limits_are_kept else None
            if cursor[0] < self.session.lanes.size(lane) and (limit is None or items < limit):
                return lane, cursor
        return None

    def delivered(self, slot: int) -> int:
        """The number of items handed over of the lane at a slot."""
        self._settle()
        turns, limit = self.session.assignment.turns_at(slot, self.turns_taken), self.limits[slot]
        return turns if limit is None else min(turns, limit)

    def end(self, slot: int) -> int:
        """One more than the last ordinal handed over of the lane at a slot, or 0."""
        return self.session.end(self.reader, slot, self.delivered(slot))

    @property
    def items(self) -> int:
        """The number of items handed over, including those repeated to keep ranks even."""
        if self.counted:
            return self.turns_taken + self.repeated
        return sum(map(self.delivered, range(len(self.limits)))) + self.repeated

    def state(self) -> State:
        """The state at this moment."""
        start = self.session.start
        if start.digest is None:
            return self._state()
        ranks = self.session.assignment.readers
        return replace(self._state(), digest=RowDigest.of_session(start.digest, self.own_sums, self.reader, ranks))

    def _state(self) -> State:
        session = self.session
        if self.counted and self.workers == 1:
            return session.after(self.items)
        delivered = self.reader_progress()
        if self.counted or session.assignment.readers > 1:
            return replace(session.start, reader_progress=delivered)
        positions = list(session.positions)
        for lane, end, cursor in delivered.deliveries:
            positions[lane] = positions[lane].after(end, cursor)
        packed = LanePositions.pack((1, position) for position in positions)
        return replace(session.start, turn=session.assignment.turn + self.turns_taken, positions=packed)

    def following(self) -> State:
        """The state in the next epoch, once this reader has delivered everything of this one.

        If there are other readers, whose numbers of items are unknown, they may be in this epoch for longer. So the
        state keeps what this reader delivered of it, until it is ``MOST_APART`` epochs ahead.
        """
        start = self.session.start
        if self.counted or self.session.assignment.readers == 1:
            return start.following()
        finished = replace(self.state(), earlier=(), later=())
        return replace(start.following(), earlier=(*start.earlier, finished)[-MOST_APART:])
