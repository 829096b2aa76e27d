"""What one reader has delivered."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from operator import length_hint
from typing import Any, NamedTuple

from midepoch.checkpoint.lanes import Cursor
from midepoch.checkpoint.state import LanePositions, ReaderProgress, State
from midepoch.delivery.session import Session
from midepoch.pipeline.pipeline import Pipeline


class Turns(NamedTuple):
    """Some turns that follow each other, of lanes that are taken in turn."""

    items: Sequence[Any]
    """The items of the turns, ``EMPTY`` where the lane has run out."""
    cursors: Sequence[Sequence[Sequence[int]]]
    """For each lane in turn the cursors behind its items; none for a lane that has run out."""


EMPTY = object()


class Progress:
    """What one reader of a leg has delivered. It moves as items are handed over, never earlier."""

    def __init__(
        self, session: Session, reader: int, *, workers: int = 1, delivered: ReaderProgress | None = None
    ) -> None:
        """Stand at the leg's start, or behind ``part`` of it; ``workers`` readers make a rank."""
        self.session, self.reader, self.workers = session, reader, workers
        assignment = session.assignment
        self.rotation = assignment.rotation(reader)
        self.uniform = session.pipeline.uniform
        self.repeated = 0
        self.process = os.getpid()
        self._current: Turns | None = None
        self._left: Iterator[Any] = iter(())
        self.cursors: list[Cursor] = [session.positions[lane].cursor for lane in self.rotation]
        if self.uniform:
            self._begun = assignment.turns_of(reader, delivered.items[0], session.left) if delivered is not None else 0
            self.limits: list[int | None] = [session.own(reader, *at) for at in enumerate(self.rotation)]
        else:
            self._begun = delivered.turns if delivered is not None else 0
            self.limits = [None] * assignment.period
            deliveries = (
                {lane: (end, cursor) for lane, end, cursor in delivered.deliveries} if delivered is not None else {}
            )
            for slot, lane in enumerate(self.rotation):
                end, self.cursors[slot] = deliveries.get(lane, (0, self.cursors[slot]))
                count = (end - 1 - assignment.phase(reader, slot)) // assignment.stride + 1 if end else 0
                if count < assignment.taken(self.turns, slot):
                    self.limits[slot] = count

    def is_of(self, pipeline: Pipeline) -> bool:
        """Whether this is the progress of a pipeline, by a reader of this process."""
        return self.session.pipeline is pipeline and self.process == os.getpid()

    def again(self) -> "Progress":
        """The same reader, standing where this one came to."""
        again = Progress(self.session, self.reader, workers=self.workers, delivered=self.reader_progress())
        again.repeated = self.repeated
        return again

    def reader_progress(self) -> ReaderProgress:
        """What this reader has delivered of its leg."""
        readers = self.session.assignment.readers
        if self.uniform:
            return ReaderProgress(readers=readers, workers=self.workers, items=(self.items - self.repeated,))
        self._settle()
        ends = ((lane, self.end(slot), self.cursors[slot]) for slot, lane in enumerate(self.rotation))
        deliveries = tuple((lane, end, cursor) for lane, end, cursor in ends if end)
        return ReaderProgress(readers=readers, reader=self.reader, turns=self.turns, deliveries=deliveries)

    @property
    def turns(self) -> int:
        """How many turns were taken, with those that found their lane run out."""
        return self._begun + self._taken

    @property
    def _taken(self) -> int:
        """How many turns of the present stretch were taken: what its iterator has given away."""
        return len(self._current.items) - length_hint(self._left) if self._current is not None else 0

    def follow(self, turns_in_order: Iterable[Turns]) -> Iterator[Iterable[Any]]:
        """Hand over the items of this reader's turns, a stretch at a time; each must be used up before the next.

        Nothing is done for a single item: how many are gone, the stretch's iterator knows.
        """
        for turns in turns_in_order:
            self._current, self._left = turns, iter(turns.items)
            if all(map(len, turns.cursors)):
                yield self._left
            else:
                yield (item for item in self._left if item is not EMPTY)
            self._settle()
            self._begun, self._current = self.turns, None
            del turns  # so that the next rows are made in the memory of these, which is still in the cache

    def _settle(self) -> None:
        """Bring the cursors up to the turns that were counted."""
        if self._current is None:
            return
        cursors, taken = self._current.cursors, self._taken
        for number in range(min(len(cursors), taken)):
            slot = (self._begun + number) % len(self.rotation)
            if len(cursors[number]):
                self.cursors[slot] = tuple(map(int, cursors[number][(taken - number - 1) // len(cursors)]))
            elif self.limits[slot] is None:
                self.limits[slot] = self.session.assignment.taken(self._begun + number, slot)

    def upcoming(self) -> tuple[int, int] | None:
        """The lane of the next turn that can bring something, and the position in it at which reading goes on."""
        self._settle()
        assignment, positions = self.session.assignment, self.session.positions
        # That a lane has run out before its last row is found by reading on, and is in the state of a part alone: the
        # answer must be the same once the state is loaded.
        known = self.uniform or assignment.readers > 1
        for turns in range(self.turns, self.turns + len(self.rotation)):
            slot = turns % len(self.rotation)
            lane, taken = self.rotation[slot], assignment.taken(turns, slot)
            position = self.cursors[slot][0]
            if self.uniform:
                ahead = positions[lane].ordinal(assignment.phase(self.reader, slot) + assignment.stride * taken)
                position = positions[lane].cursor[0] + ahead * self.session.start.item_rows
            limit = self.limits[slot] if known else None
            if position < self.session.lanes.size(lane) and (limit is None or taken < limit):
                return lane, position
        return None

    def delivered(self, slot: int) -> int:
        """How many items of the lane at a place were handed over."""
        self._settle()
        taken, limit = self.session.assignment.taken(self.turns, slot), self.limits[slot]
        return taken if limit is None else min(taken, limit)

    def end(self, slot: int) -> int:
        """One more than the last ordinal handed over of the lane at a place, or 0."""
        return self.session.end(self.reader, slot, self.delivered(slot))

    @property
    def items(self) -> int:
        """How many items were handed over, with those that were repeated to keep ranks even."""
        if self.turns <= self._never_empty and not self.repeated:
            return self.turns
        return sum(map(self.delivered, range(len(self.limits)))) + self.repeated

    @cached_property
    def _never_empty(self) -> int:
        """So many turns of a uniform pipeline surely bring an item."""
        return min((limit for limit in self.limits if limit is not None), default=0) * len(self.limits) * self.uniform

    def state(self) -> State:
        """The state at this moment."""
        session = self.session
        if self.uniform and self.workers == 1:
            return session.after(self.items)
        delivered = self.reader_progress()
        if self.uniform or session.assignment.readers > 1:
            return replace(session.start, reader_progress=delivered)
        positions = list(session.positions)
        for lane, end, cursor in delivered.deliveries:
            positions[lane] = positions[lane].after(end, cursor)
        packed = LanePositions.pack((1, position) for position in positions)
        return replace(session.start, turn=session.assignment.turn + self.turns, positions=packed)
