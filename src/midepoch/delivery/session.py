"""A leg: a stretch of a run with the same readers. What each has delivered is counted from the leg's start."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from operator import length_hint
from typing import Any, Literal, NamedTuple

from midepoch.checkpoint.lanes import Cursor, Deal, Share, Standing
from midepoch.checkpoint.state import Part, Standings, State, joined_at
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.pipeline import Lanes, Pipeline


class Leg:
    """Where every lane stood when these readers started, and how the turns are dealt among them."""

    def __init__(self, pipeline: Pipeline, start: State, readers: int) -> None:
        """Begin at ``start``, a state whose lanes are dealt and which is no part."""
        assert start.lanes is not None
        assert start.part is None
        self.pipeline, self.start = pipeline, start
        self.lanes = Lanes(pipeline, epoch=start.epoch, lanes=start.lanes, mode=start.mode, grown=start.grown)
        self.deal = Deal(lanes=start.lanes, turn=start.turn, readers=readers)
        self.standings: list[Standing] = start.standings.expand()

    def check(self) -> None:
        """Raise if a lane stands behind its end: no run can have come there."""
        for lane, standing in enumerate(self.standings):
            ahead = standing.done[-1] if standing.done and self.pipeline.uniform else 0
            reached = self.lanes.origin.reaches(lane, standing.cursor, self.start.item_rows)
            if not reached or (ahead and ahead > self.lanes.size(lane)):
                raise CheckpointMismatchError(
                    f"The state is damaged: lane {lane} of {self.deal.lanes} stands at {list(standing.cursor)}, behind "
                    "its end. Load an earlier checkpoint."
                )

    def left(self, lane: int) -> int:
        """How many items a lane of a uniform pipeline had left at the start."""
        standing = self.standings[lane]
        rows = self.lanes.size(lane) - standing.cursor[0]
        return max(0, self.pipeline.items(rows, self.start.item_rows) - len(standing.done))

    def own(self, reader: int, place: int, lane: int) -> int:
        """How many of those a reader takes of a lane, which is at ``place`` of its rotation."""
        return max(0, -(-(self.left(lane) - self.deal.phase(reader, place)) // self.deal.stride))

    def is_over(self) -> bool:
        """Whether a uniform pipeline had nothing left at the start."""
        return not any(self.left(lane) for lane in range(self.deal.lanes))

    @cached_property
    def first_empty(self) -> int:
        """The first turn of a uniform pipeline that finds its lane run out."""
        turn, lanes = self.deal.turn, self.deal.lanes
        return min(turn + (lane - turn) % lanes + self.left(lane) * lanes for lane in range(lanes))

    def after(self, items: int) -> State:
        """The state of a uniform pipeline once every reader has delivered so many items."""
        turns = self.deal.readers * items
        if self.deal.turn + turns <= self.first_empty and self.start.standings.in_step:
            moved = self.start.standings.advanced(self.deal.turn, turns, self.start.item_rows)
            return replace(self.start, turn=self.deal.turn + turns, standings=moved)
        return self.after_each([items])

    def after_each(self, items: Sequence[int]) -> State:
        """The same where each rank has several workers, which have delivered these numbers of items."""
        deal, ranks = self.deal, self.deal.readers // len(items)
        shares: list[list[Share]] = [[] for _ in range(deal.lanes)]
        turns = [deal.turns_of(reader, items[reader // ranks], self.left) for reader in range(deal.readers)]
        for reader in range(deal.readers):
            for place, lane in enumerate(deal.rotation(reader)):
                end = self.end(reader, place, min(deal.taken(turns[reader], place), self.own(reader, place, lane)))
                shares[lane].append(Share(deal.phase(reader, place), end, self._cursor(lane, end)))
        return joined_at(self.start, deal, shares, turns)

    def end(self, reader: int, place: int, delivered: int) -> int:
        """One more than the last ordinal, if a reader delivered so many items of the lane at a place; else 0."""
        return self.deal.phase(reader, place) + self.deal.stride * (delivered - 1) + 1 if delivered else 0

    def _cursor(self, lane: int, end: int) -> Cursor:
        """A uniform pipeline's cursor behind the ordinal ``end - 1``."""
        standing = self.standings[lane]
        items = standing.ordinal(end - 1) + 1 if end else 0
        return (standing.cursor[0] + items * self.start.item_rows, *standing.cursor[1:])


class Stretch(NamedTuple):
    """Some turns that follow each other, of lanes that are taken in turn."""

    items: Sequence[Any]
    """The items of the turns, ``EMPTY`` where the lane has run out."""
    cursors: Sequence[Sequence[Sequence[int]]]
    """For each lane in turn the cursors behind its items; none for a lane that has run out."""


EMPTY = object()


class Progress:
    """What one reader of a leg has delivered. It moves as items are handed over, never earlier."""

    def __init__(self, leg: Leg, reader: int, *, workers: int = 1, part: Part | None = None) -> None:
        """Stand at the leg's start, or behind ``part`` of it; ``workers`` readers make a rank."""
        self.leg, self.reader, self.workers = leg, reader, workers
        deal = leg.deal
        self.rotation = deal.rotation(reader)
        self.uniform = leg.pipeline.uniform
        self.repeated = 0
        self.process = os.getpid()
        self._stretch: Stretch | None = None
        self._left: Iterator[Any] = iter(())
        self.cursors: list[Cursor] = [leg.standings[lane].cursor for lane in self.rotation]
        if self.uniform:
            self._begun = deal.turns_of(reader, part.items[0], leg.left) if part is not None else 0
            self.limits: list[int | None] = [leg.own(reader, *at) for at in enumerate(self.rotation)]
        else:
            self._begun = part.turns if part is not None else 0
            self.limits = [None] * deal.period
            shares = {lane: (end, cursor) for lane, end, cursor in part.shares} if part is not None else {}
            for place, lane in enumerate(self.rotation):
                end, self.cursors[place] = shares.get(lane, (0, self.cursors[place]))
                delivered = (end - 1 - deal.phase(reader, place)) // deal.stride + 1 if end else 0
                if delivered < deal.taken(self.turns, place):
                    self.limits[place] = delivered

    def is_of(self, pipeline: Pipeline) -> bool:
        """Whether this is the progress of a pipeline, by a reader of this process."""
        return self.leg.pipeline is pipeline and self.process == os.getpid()

    def again(self) -> "Progress":
        """The same reader, standing where this one came to."""
        again = Progress(self.leg, self.reader, workers=self.workers, part=self.part())
        again.repeated = self.repeated
        return again

    def part(self) -> Part:
        """What this reader has delivered of its leg."""
        readers = self.leg.deal.readers
        if self.uniform:
            return Part(readers=readers, workers=self.workers, items=(self.items - self.repeated,))
        self._settle()
        ends = ((lane, self.end(place), self.cursors[place]) for place, lane in enumerate(self.rotation))
        shares = tuple((lane, end, cursor) for lane, end, cursor in ends if end)
        return Part(readers=readers, reader=self.reader, turns=self.turns, shares=shares)

    @property
    def turns(self) -> int:
        """How many turns were taken, with those that found their lane run out."""
        return self._begun + self._taken

    @property
    def _taken(self) -> int:
        """How many turns of the present stretch were taken: what its iterator has given away."""
        return len(self._stretch.items) - length_hint(self._left) if self._stretch is not None else 0

    def follow(self, stretches: Iterable[Stretch]) -> Iterator[Iterable[Any]]:
        """Hand over the items of this reader's turns, a stretch at a time; each must be used up before the next.

        Nothing is done for a single item: how many are gone, the stretch's iterator knows.
        """
        for stretch in stretches:
            self._stretch, self._left = stretch, iter(stretch.items)
            if all(map(len, stretch.cursors)):
                yield self._left
            else:
                yield (item for item in self._left if item is not EMPTY)
            self._settle()
            self._begun, self._stretch = self.turns, None
            del stretch  # so that the next rows are made in the memory of these, which is still in the cache

    def _settle(self) -> None:
        """Bring the cursors up to the turns that were counted."""
        if self._stretch is None:
            return
        cursors, taken = self._stretch.cursors, self._taken
        for number in range(min(len(cursors), taken)):
            place = (self._begun + number) % len(self.rotation)
            if len(cursors[number]):
                self.cursors[place] = tuple(map(int, cursors[number][(taken - number - 1) // len(cursors)]))
            elif self.limits[place] is None:
                self.limits[place] = self.leg.deal.taken(self._begun + number, place)

    def upcoming(self) -> tuple[int, int] | None:
        """The lane of the next turn that can bring something, and the position in it at which reading goes on."""
        self._settle()
        deal, standings = self.leg.deal, self.leg.standings
        # That a lane has run out before its last row is found by reading on, and is in the state of a part alone: the
        # answer must be the same once the state is loaded.
        known = self.uniform or deal.readers > 1
        for turns in range(self.turns, self.turns + len(self.rotation)):
            place = turns % len(self.rotation)
            lane, taken = self.rotation[place], deal.taken(turns, place)
            position = self.cursors[place][0]
            if self.uniform:
                ahead = standings[lane].ordinal(deal.phase(self.reader, place) + deal.stride * taken)
                position = standings[lane].cursor[0] + ahead * self.leg.start.item_rows
            limit = self.limits[place] if known else None
            if position < self.leg.lanes.size(lane) and (limit is None or taken < limit):
                return lane, position
        return None

    def delivered(self, place: int) -> int:
        """How many items of the lane at a place were handed over."""
        self._settle()
        taken, limit = self.leg.deal.taken(self.turns, place), self.limits[place]
        return taken if limit is None else min(taken, limit)

    def end(self, place: int) -> int:
        """One more than the last ordinal handed over of the lane at a place, or 0."""
        return self.leg.end(self.reader, place, self.delivered(place))

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
        leg = self.leg
        if self.uniform and self.workers == 1:
            return leg.after(self.items)
        part = self.part()
        if self.uniform or leg.deal.readers > 1:
            return replace(leg.start, part=part)
        standings = list(leg.standings)
        for lane, end, cursor in part.shares:
            standings[lane] = standings[lane].after(end, cursor)
        packed = Standings.pack((1, standing) for standing in standings)
        return replace(leg.start, turn=leg.deal.turn + self.turns, standings=packed)


def begin(
    pipeline: Pipeline,
    state: State,
    *,
    reader: int,
    readers: int,
    workers: int,
    lanes: int | None,
    mode: Literal["file", "example"],
) -> Progress:
    """Where a reader goes on from a state that some readers, maybe others, have reached."""
    part = state.part
    if state.lanes is None:
        return Progress(
            Leg(pipeline, _dealt(pipeline, state, lanes or readers, mode), readers), reader, workers=workers
        )
    whole = replace(state, part=None)
    if part is None:
        return Progress(Leg(pipeline, _regrouped(pipeline, whole), readers), reader, workers=workers)
    if part.reader is None and len(part.items) == part.workers:
        reached = Leg(pipeline, whole, part.readers).after_each(part.items)
        return Progress(Leg(pipeline, _regrouped(pipeline, reached), readers), reader, workers=workers)
    _check_part(part, reader=reader, readers=readers, workers=workers)
    if state.item_rows != pipeline.item_rows and (part.reader is None or Leg(pipeline, whole, readers).deal.stride > 1):
        raise _other_batches(state.item_rows, pipeline.item_rows)
    return Progress(Leg(pipeline, whole, readers), reader, workers=workers, part=part)


def _check_part(part: Part, *, reader: int, readers: int, workers: int) -> None:
    """Raise unless a partial state is this reader's own."""
    if part.readers != readers or (part.reader is None and part.workers != workers):
        raise CheckpointMismatchError(
            f"The state holds what one of {part.readers} readers delivered; now there are {readers}. "
            "To go on with another number of ranks or workers, join the states of all ranks with merge_states, "
            "or those of a StatefulDataLoader's workers with from_stateful_dataloader, and load the result."
        )
    if part.reader is not None and part.reader != reader:
        raise CheckpointMismatchError(
            f"The state is that of reader {part.reader} of {readers} and was given to reader {reader}. A filtering or "
            "packing pipeline's state holds its own rank's part only: give each rank its own, or all the merged one."
        )


def _dealt(pipeline: Pipeline, state: State, lanes: int, mode: Literal["file", "example"]) -> State:
    """The beginning of an epoch, with its lanes dealt."""
    standings = Standings(((lanes, Standing(pipeline.begin)),))
    return replace(state, lanes=lanes, mode=mode, turn=0, item_rows=pipeline.item_rows, standings=standings)


def _regrouped(pipeline: Pipeline, state: State) -> State:
    """A complete state, gone on from with the batch size of now."""
    if state.item_rows != pipeline.item_rows and not state.standings.in_step:
        raise _other_batches(state.item_rows, pipeline.item_rows)
    if state.item_rows == pipeline.item_rows:
        return state
    if not pipeline.uniform:
        return replace(state, item_rows=pipeline.item_rows)
    lanes = Lanes(pipeline, epoch=state.epoch, lanes=len(state.standings), mode=state.mode, grown=state.grown)
    within = [
        (1, Standing((min(standing.cursor[0], lanes.size(lane)), *standing.cursor[1:])))
        for lane, standing in enumerate(state.standings.expand())
    ]
    return replace(state, item_rows=pipeline.item_rows, standings=Standings.pack(within))


def _other_batches(then: int, now: int) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"The state was taken at the end of an epoch, or by one of several readers, with {then} rows an item, and "
        f"counts whole items; with {now} rows an item it cannot be gone on from. Resume with the old batch size until "
        "the next epoch or a merged checkpoint, then change it."
    )
