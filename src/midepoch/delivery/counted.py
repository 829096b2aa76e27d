"""A session of a counted pipeline: its items are one sequence, which readers take in turn.

The sequence goes round the lanes, and passes over a lane that has run out. So no turn is empty, and readers differ by
at most one item, however uneven the lanes are. To the readers the sequence is a single lane: reader ``c`` of ``C``
takes the items ``c, c + C, c + 2 C …``. Only a state knows the real lanes again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from midepoch._common.types import I64
from midepoch.checkpoint.lanes import Cursor, LaneAssignment, LaneDelivery, LanePosition, join
from midepoch.checkpoint.state import LanePositions, State
from midepoch.delivery.rounds import Rounds
from midepoch.delivery.session import Session
from midepoch.pipeline.pipeline import Pipeline
from midepoch.stages.counted import CountedItems
from midepoch.stages.flow import Flow
from midepoch.stages.traced import TracedRows

WANTED_ROWS = 1024
"""The items of about this many rows are asked for, and counted, at a time."""


class LaneItems:
    """The items of a lane that were not delivered when the session started. They are numbered by their ordinals."""

    def __init__(self, items: CountedItems, position: LanePosition) -> None:
        self._items, self._position = items, position
        self._reached = 0, position

    @property
    def is_endless(self) -> bool:
        return self._items.is_endless

    def has(self, ordinal: int) -> bool:
        return self._items.has(self._position.offset(ordinal))

    def total(self) -> int:
        return max(0, self._items.total() - len(self._position.delivered_ahead))

    def after(self, ordinals: int) -> LanePosition:
        """The lane's position once its first ``ordinals`` items are delivered. Most lanes have not moved since."""
        if ordinals == 0:
            return self._position
        if self._reached[0] != ordinals:
            cursor = self._items.cursor(self._position.offset(ordinals - 1) + 1)
            self._reached = ordinals, self._position.after(ordinals, cursor)
        return self._reached[1]

    def costs(self, ordinals: I64) -> I64:
        """The costs of items, whose ordinals rise."""
        return self._items.costs(np.array([*map(self._position.offset, ordinals.tolist())], np.int64))

    def trace(self, ordinal: int) -> TracedRows:
        """The rows of an item."""
        return self._items.trace(np.array([self._position.offset(ordinal)], np.int64))

    def find(self, file: str, row: int) -> list[int]:
        """The ordinals of the items that have a row of a file, if no item was delivered ahead of others."""
        assert not self._position.delivered_ahead
        return [number for number in self._items.find(file, row).tolist() if self._items.has(number)]

    def flow(self, opened: Any, wanted: Iterator[I64]) -> Flow:
        """The items with these ordinals."""
        if not self._position.delivered_ahead:
            return self._items.flow(opened, wanted)
        offset = self._position.offset
        return self._items.flow(opened, (np.array([*map(offset, numbers.tolist())], np.int64) for numbers in wanted))


class CountedSession(Session):
    """The sequence of items that were not delivered when these readers started."""

    counted = True
    tracks_cursors = False

    def __init__(self, pipeline: Pipeline, start: State, readers: int) -> None:
        super().__init__(pipeline, start, readers)
        lanes = self.assignment.lanes
        self.assignment = LaneAssignment(lanes=1, turn=0, readers=readers)
        self.most_at_once = max(1, WANTED_ROWS // pipeline.item_rows)
        self._items: dict[int, LaneItems] = {}
        turn_order = [(start.turn + number) % lanes for number in range(lanes)]
        self.rounds = Rounds(turn_order, self, at_once=self.most_at_once, formula=pipeline.uniform)

    def lane_items(self, lane: int) -> LaneItems:
        """The items that a lane had left."""
        if lane not in self._items:
            position = self.positions[lane]
            self._items[lane] = LaneItems(self.lanes.counted(lane, position.cursor), position)
        return self._items[lane]

    def has(self, lane: int, ordinal: int) -> bool:
        """True if a lane had an item with this ordinal left."""
        return self.lane_items(lane).has(ordinal)

    def total(self, lane: int) -> int:
        """The number of items that a lane had left."""
        return self.lane_items(lane).total()

    def lane_after(self, lane: int, ordinals: int) -> LanePosition:
        """A lane's position once its first ``ordinals`` items are delivered."""
        return self.lane_items(lane).after(ordinals)

    def sequence(self, reader: int) -> tuple[Rounds, int, int]:
        """The sequence that has a reader's items, the number of its first item there, and the step to its next."""
        return self.rounds, reader, self.assignment.readers

    @property
    def is_endless(self) -> bool:  # type: ignore[override]
        return any(self.lane_items(lane).is_endless for lane in self.rounds.order)

    def reader_items(self, reader: int) -> int:
        rounds, first, step = self.sequence(reader)
        return len(range(first, rounds.total(), step))

    def is_complete(self, items: int) -> bool:
        return not self.rounds.has(self.assignment.readers * items)

    def item(self, reader: int, items: int) -> tuple[int, int] | None:
        """The lane and the ordinal of the item that a reader gets after its first ``items``; None if there is none."""
        rounds, first, step = self.sequence(reader)
        return rounds.located(first + step * items)

    def limits(self, reader: int) -> list[int | None]:
        return [None]

    def items_at(self, reader: int, turns: I64) -> tuple[I64, I64]:
        rounds, first, step = self.sequence(reader)
        return rounds.located_all(first + step * turns)

    def upcoming(self, reader: int, items: int) -> tuple[int, Cursor] | None:
        found = self.item(reader, items)
        if found is None:
            return None
        lane, ordinal = found
        return lane, self.lane_after(lane, ordinal).cursor

    def after(self, items: int) -> State:
        """The state after every reader has delivered this number of items, or all that it has."""
        number = self.assignment.readers * items
        return self._state(number if number == 0 or self.rounds.has(number - 1) else self.rounds.total())

    def after_each(self, items: Sequence[int]) -> State:
        """The same if each rank has several workers; ``items`` has the number of items of each worker."""
        ranks = self.assignment.readers // len(items)
        deliveries = []
        for reader in range(self.assignment.readers):
            end = self.end(reader, 0, items[reader // ranks])
            if end and not self.rounds.has(end - 1):
                end = self.end(reader, 0, self.reader_items(reader))
            deliveries.append(LaneDelivery(reader, end, (end,)))
        joined = join(LanePosition((0,)), self.assignment.stride, deliveries)
        return self._state(joined.cursor[0], joined.delivered_ahead)

    def _state(self, number: int, ahead: Sequence[int] = ()) -> State:
        """The state after the first ``number`` items, and after those ``ahead`` of them."""
        delivered = self.rounds.delivered(number)
        positions = [self.lane_after(lane, delivered[lane]) for lane in range(len(delivered))]
        offsets: dict[int, list[int]] = {}
        for offset in ahead:
            found = self.rounds.located(number + offset)
            assert found is not None
            lane, ordinal = found
            offsets.setdefault(lane, []).append(positions[lane].offset(ordinal - delivered[lane]))
        for lane, more in offsets.items():
            cursor, known = positions[lane]
            positions[lane] = LanePosition(cursor, tuple(sorted({*known, *more})))
        packed = LanePositions.pack((1, position) for position in positions)
        return replace(self.start, turn=self._turn_after(number), positions=packed)

    def _turn_after(self, number: int) -> int:
        """The turn of the next item, if turns at lanes that have run out are counted too."""
        if number == 0:
            return self.start.turn
        segment = self.rounds.segment(number - 1)
        assert segment is not None
        rounds, extra = divmod(number - 1 - segment.first, len(segment.lanes))
        last = self.start.turn + (segment.first_round + rounds) * len(self.rounds.order)
        return last + self.rounds.order.index(segment.lanes[extra]) + 1

    def read_lane(self, opened: Any, lane: int, numbers: range) -> Flow:
        """The items of a lane that have these numbers in the sequence."""
        return self.lane_items(lane).flow(opened, self.rounds.wanted(lane, numbers, self.most_at_once))
