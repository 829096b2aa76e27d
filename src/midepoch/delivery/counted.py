"""A session of a counted pipeline: its items are one sequence, which readers take in turn.

The sequence goes round the lanes, and passes over a lane that has run out. So no turn is empty, and readers differ by
at most one item, however uneven the lanes are. To the readers the sequence is a single lane: reader ``c`` of ``C``
takes the items ``c, c + C, c + 2 C …``. Only a state knows the real lanes again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np

from midepoch._common.text import count
from midepoch._common.types import I64
from midepoch.checkpoint.lanes import Cursor, LaneAssignment, LaneDelivery, LanePosition, join
from midepoch.checkpoint.state import LanePositions, State
from midepoch.delivery.session import NO_END, Session
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


@dataclass(slots=True)
class Segment:
    """Rounds in which the same lanes have items left. Each lane gives one item a round: its ordinal is the round."""

    first: int
    """The number, in the sequence, of the segment's first item."""
    first_round: int
    lanes: tuple[int, ...]
    """The lanes that have items left, in the order of their turns."""
    rounds: int
    """How many rounds are known to be in the segment."""
    ended: bool = False

    @property
    def end(self) -> int:
        """One more than the number of the last item that is known to be in the segment."""
        return self.first + self.rounds * len(self.lanes)


class CountedSession(Session):
    """The sequence of items that were not delivered when these readers started."""

    counted = True
    tracks_cursors = False

    def __init__(self, pipeline: Pipeline, start: State, readers: int) -> None:
        super().__init__(pipeline, start, readers)
        lanes = self.assignment.lanes
        self.assignment = LaneAssignment(lanes=1, turn=0, readers=readers)
        self._turn_order = [(start.turn + number) % lanes for number in range(lanes)]
        self._most_at_once = max(1, WANTED_ROWS // pipeline.item_rows)
        self._own_lane = 0
        self._items: dict[int, LaneItems] = {}
        self._segments: list[Segment] = []

    def lane_items(self, lane: int) -> LaneItems:
        """The items that a lane had left."""
        if lane not in self._items:
            position = self.positions[lane]
            self._items[lane] = LaneItems(self.lanes.counted(lane, position.cursor), position)
        return self._items[lane]

    def read_as(self, reader: int) -> None:
        """Count the lanes from a reader's own on: meanwhile the readers of the others count theirs, and share it."""
        self._own_lane = self._turn_order[reader % len(self._turn_order)]

    def _without(self, lanes: Sequence[int], ordinal: int) -> set[int]:
        """The lanes that do not have an item with this ordinal."""
        own_first = sorted(lanes, key=lambda lane: (lane - self._own_lane) % len(self._turn_order))
        return {lane for lane in own_first if not self.lane_items(lane).has(ordinal)}

    def _add_segment(self, first: int, first_round: int) -> None:
        ended = self._without(self._turn_order, first_round)
        alive = tuple(lane for lane in self._turn_order if lane not in ended)
        self._segments.append(Segment(first, first_round, alive, int(bool(alive)), ended=not alive))

    def segment(self, number: int) -> Segment | None:
        """The segment of an item of the sequence; None if there is no such item."""
        if not self._segments:
            self._add_segment(0, 0)
        while True:
            for segment in reversed(self._segments):
                if segment.first <= number < segment.end:
                    return segment
            last = self._segments[-1]
            if last.ended:
                return None
            self._extend(last, (number - last.first) // len(last.lanes) + 1)

    def _extend(self, segment: Segment, needed: int) -> None:
        """Find out whether a segment has this number of rounds. If it has not, a new one follows."""
        rounds = needed + min(segment.rounds, self._most_at_once)
        last_round = segment.first_round + rounds - 1
        short = self._without(segment.lanes, last_round)
        if not short:
            segment.rounds = rounds
            return
        end = min(self.lane_items(lane).total() for lane in short)
        known, segment.rounds, segment.ended = segment.rounds, end - segment.first_round, True
        self._add_segment(segment.end, end)
        if segment.rounds < known or len(self._segments[-1].lanes) >= len(segment.lanes):
            raise RuntimeError(
                f"A lane has {count('item', end)}, and more or fewer were counted before. Please report this."
            )

    @property
    def is_endless(self) -> bool:  # type: ignore[override]
        return any(self.lane_items(lane).is_endless for lane in self._turn_order)

    def has(self, number: int) -> bool:
        """True if the sequence has an item with this number."""
        return self.segment(number) is not None

    def total(self) -> int:
        """The number of items in the sequence."""
        return sum(self.lane_items(lane).total() for lane in self._turn_order)

    def items_left(self, lane: int) -> int:
        return self.total()

    def is_over(self) -> bool:
        return not self.has(0)

    def is_complete(self, items: int) -> bool:
        return not self.has(self.assignment.readers * items)

    def turns_for(self, reader: int, items: int) -> int:
        return items

    def limits(self, reader: int) -> list[int | None]:
        return [None]

    def located(self, number: int) -> tuple[int, int] | None:
        """The lane of an item of the sequence, and its ordinal there; None if there is no such item."""
        segment = self.segment(number)
        if segment is None:
            return None
        rounds, slot = divmod(number - segment.first, len(segment.lanes))
        return segment.lanes[slot], segment.first_round + rounds

    def items_at(self, reader: int, turns: I64) -> tuple[I64, I64]:
        numbers = self.numbers_of(reader, turns)
        lanes, ordinals = np.empty_like(numbers), np.empty_like(numbers)
        begin = 0
        while begin < len(numbers):
            segment = self.segment(int(numbers[begin]))
            assert segment is not None, "the turns of a counted session have items"
            end = int(np.searchsorted(numbers, segment.end))
            rounds, slots = np.divmod(numbers[begin:end] - segment.first, len(segment.lanes))
            lanes[begin:end], ordinals[begin:end] = np.array(segment.lanes)[slots], segment.first_round + rounds
            begin = end
        return lanes, ordinals

    def numbers_of(self, reader: int, turns: I64) -> I64:
        """The numbers, in the sequence, of the items that a reader gets at rising turns."""
        return reader + self.assignment.readers * turns

    def number_of(self, reader: int, items: int) -> int:
        """The number, in the sequence, of the item that a reader gets after its first ``items``."""
        return reader + self.assignment.readers * items

    def turn_of(self, number: int) -> tuple[int, int]:
        """The reader that gets an item, and how many it gets before."""
        items, reader = divmod(number, self.assignment.readers)
        return reader, items

    def upcoming(self, reader: int, items: int) -> tuple[int, Cursor] | None:
        found = self.located(self.number_of(reader, items))
        if found is None:
            return None
        lane, ordinal = found
        return lane, self.lane_items(lane).after(ordinal).cursor

    def after(self, items: int) -> State:
        number = self.assignment.readers * items
        return self._state(number if number == 0 or self.has(number - 1) else self.total())

    def after_each(self, items: Sequence[int]) -> State:
        ranks = self.assignment.readers // len(items)
        deliveries = []
        for reader in range(self.assignment.readers):
            end = self.end(reader, 0, items[reader // ranks])
            if end and not self.has(end - 1):
                end = self.end(reader, 0, self.assignment.reader_items(reader, 0, self.total()))
            deliveries.append(LaneDelivery(reader, end, (end,)))
        joined = join(LanePosition((0,)), self.assignment.stride, deliveries)
        return self._state(joined.cursor[0], joined.delivered_ahead)

    def _state(self, number: int, ahead: Sequence[int] = ()) -> State:
        """The state after the first ``number`` items, and after those ``ahead`` of them."""
        delivered = self._delivered_of_lanes(number)
        positions = [self.lane_items(lane).after(delivered[lane]) for lane in range(len(delivered))]
        offsets: dict[int, list[int]] = {}
        for offset in ahead:
            found = self.located(number + offset)
            assert found is not None
            lane, ordinal = found
            offsets.setdefault(lane, []).append(positions[lane].offset(ordinal - delivered[lane]))
        for lane, more in offsets.items():
            cursor, known = positions[lane]
            positions[lane] = LanePosition(cursor, tuple(sorted({*known, *more})))
        packed = LanePositions.pack((1, position) for position in positions)
        return replace(self.start, turn=self._turn_after(number), positions=packed)

    def _delivered_of_lanes(self, number: int) -> list[int]:
        """How many of the first ``number`` items are of each lane."""
        delivered = [0] * len(self._turn_order)
        if number == 0:
            return delivered
        segment = self.segment(number - 1)
        assert segment is not None
        for lane in set(self._turn_order).difference(segment.lanes):
            delivered[lane] = self.lane_items(lane).total()
        rounds, extra = divmod(number - segment.first, len(segment.lanes))
        for slot, lane in enumerate(segment.lanes):
            delivered[lane] = segment.first_round + rounds + (slot < extra)
        return delivered

    def _turn_after(self, number: int) -> int:
        """The turn of the next item, if turns at lanes that have run out are counted too."""
        if number == 0:
            return self.start.turn
        segment = self.segment(number - 1)
        assert segment is not None
        rounds, extra = divmod(number - 1 - segment.first, len(segment.lanes))
        last = self.start.turn + (segment.first_round + rounds) * len(self._turn_order)
        return last + self._turn_order.index(segment.lanes[extra]) + 1

    def wanted(self, lane: int, numbers: range) -> Iterator[I64]:
        """The ordinals in a lane of the items that have these numbers in the sequence."""
        size = 1  # so that the first item after a resume comes as soon as possible
        index = 0
        while (segment := self._segment_at(index)) is not None and lane in segment.lanes:
            ordinals = _common_items(segment, segment.lanes.index(lane), numbers)
            while ordinals:
                last = ordinals.start + (size - 1) * ordinals.step
                self.segment(segment.first + (last - segment.first_round + 1) * len(segment.lanes) - 1)
                known = segment.first_round + segment.rounds - ordinals.start
                here = ordinals[: max(0, -(-known // ordinals.step))][:size]
                if not here:
                    break  # the segment has ended
                yield np.arange(here.start, here.stop, here.step)
                ordinals = ordinals[len(here) :]
                size = min(2 * size, self._most_at_once)
            if numbers.stop < NO_END:
                self.segment(numbers[-1])  # so that it is known whether this segment goes so far
                if segment.end > numbers[-1]:
                    return
            index += 1

    def _segment_at(self, index: int) -> Segment | None:
        """The segment with this index, if there is one that has items."""
        if not self._segments:
            self._add_segment(0, 0)
        while index >= len(self._segments):
            last = self._segments[-1]
            if last.ended:
                return None
            self.segment(last.end)
        return self._segments[index] if self._segments[index].lanes else None


def _common_items(segment: Segment, slot: int, numbers: range) -> range:
    """The ordinals of a lane's items, from the segment's start on, that have these numbers in the sequence."""
    lanes = len(segment.lanes)
    shared = gcd(lanes, numbers.step)
    missing = numbers.start - segment.first - slot
    if missing % shared:
        return range(0)
    period = numbers.step // shared
    rounds = missing // shared * pow(lanes // shared, -1, period) % period if period > 1 else 0
    least = max(0, -(-missing // lanes))
    rounds += -(-max(0, least - rounds) // period) * period
    rounds_before_stop = -((segment.first + slot - numbers.stop) // lanes)
    return range(segment.first_round + rounds, segment.first_round + rounds_before_stop, period)
