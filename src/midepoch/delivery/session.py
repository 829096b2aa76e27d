"""A session: part of a run with the same readers. The items that are left are one sequence, which readers take in turn.

The sequence goes round the lanes, and passes over a lane that has run out. Reader ``c`` of ``C`` takes the items ``c,
c + C, c + 2 C …``, so readers differ by at most one item, however uneven the lanes are. What was delivered follows from
the number of items, because the items of lanes are counted; in a uniform pipeline by a formula. ``FileSession`` and
``BalancedSession`` give the same items to readers in other ways.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from midepoch._common.checks import cached_property, count
from midepoch._common.hashing import I64
from midepoch.checkpoint.lanes import Cursor, LaneDelivery, LanePosition, join
from midepoch.checkpoint.state import LanePositions, State
from midepoch.delivery.rounds import Rounds
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.lanes import PipelineLanes
from midepoch.pipeline.pipeline import Pipeline
from midepoch.stages.counted import CountedItems, TracedRows
from midepoch.stages.flow import Flow

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
        return self._items.costs(self._position.offsets(ordinals))

    def hashes(self, ordinals: I64) -> int:
        """The sum of what items, whose ordinals rise, add to a digest."""
        return int(self._items.hashes(self._position.offsets(ordinals)).sum(dtype=np.uint64))

    def trace(self, ordinal: int) -> TracedRows:
        """The rows of an item."""
        return self._items.trace(self._position.offsets(np.array([ordinal])))

    def find(self, file: str, row: int) -> list[int]:
        """The ordinals of the items that have a row of a file, if no item was delivered ahead of others."""
        assert not self._position.delivered_ahead
        found: list[int] = self._items.find(file, row).tolist()
        return found

    def flow(self, opened: Any, wanted: Iterator[I64]) -> Flow:
        """The items with these ordinals."""
        return self._items.flow(opened, map(self._position.offsets, wanted))


class Delivered(NamedTuple):
    """When an item is delivered. All numbers count from the session's start."""

    reader: int
    step: int
    item: int


class AnySession:
    """What all sessions know: the position of every lane when their readers started."""

    counted: bool
    """True if what readers have delivered follows from the number of their items."""
    is_endless = False
    """True if the epoch never ends, as with ``mix(stop="never")``."""

    def __init__(self, pipeline: Pipeline, start: State, readers: int) -> None:
        """Begin at ``start``, a complete state of an epoch that is cut into lanes."""
        if start.lanes is None or start.reader_progress is not None:
            raise CheckpointMismatchError(
                "The state is damaged: it is not the complete state of an epoch with lanes. Load an earlier checkpoint."
            )
        self.pipeline, self.start, self.readers = pipeline, start, readers
        self.lanes = PipelineLanes.of(pipeline, start)
        self.positions: list[LanePosition] = start.positions.expand()

    def items_at(self, reader: int, turns: I64) -> tuple[I64, I64]:
        """The lanes of a reader's turns, counted from 0, and the ordinals of their items."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise if a lane is at a position, or the session at a turn, that no run can have reached."""
        for lane, position in enumerate(self.positions):
            self.check_cursor(lane, position.cursor)

    def check_cursor(self, lane: int, cursor: Cursor, ahead: int = 0) -> None:
        """Raise if a cursor, or the last item ``ahead`` of it, is after the lane's end."""
        reached = self.lanes.reaches(lane, cursor, self.start.item_rows)
        if not reached or ahead > self.lanes.size(lane):
            raise CheckpointMismatchError(
                f"The state is damaged: the cursor {list(cursor)} of lane {lane} of {len(self.positions)} is after "
                "the lane's end. Load an earlier checkpoint."
            )


class Session(AnySession):
    """The sequence of items that were not delivered when these readers started."""

    counted = True

    def __init__(self, pipeline: Pipeline, start: State, readers: int) -> None:
        super().__init__(pipeline, start, readers)
        self.most_at_once = max(1, WANTED_ROWS // pipeline.item_rows)
        self._items: dict[int, LaneItems] = {}
        lanes = len(self.positions)
        turn_order = [(start.turn + number) % lanes for number in range(lanes)]
        self.rounds = Rounds(turn_order, self, at_once=self.most_at_once, formula=self.has_formula)

    def check(self) -> None:
        if not self.pipeline.uniform:
            super().check()
            return
        for lane, position in enumerate(self.positions):
            self.check_cursor(lane, position.cursor, position.delivered_ahead[-1] if position.delivered_ahead else 0)
        if self.start.edits:
            return
        lanes, turn = len(self.positions), self.start.turn
        # The first lane is the longest, so the first turn of an epoch delivered an item of it.
        first = self.positions[0]
        still = self.start.mode == "example" and not any(first.cursor) and 0 not in first.delivered_ahead
        rows = sum(self.lanes.size(lane) for lane in range(lanes))
        if turn > lanes * (rows + 1) or (turn and still):
            raise CheckpointMismatchError(
                f"The state is damaged: {count('turn', turn)} at {count('lane', lanes)} of {count('row', rows)} do not "
                f"bring the first lane to {list(first.cursor)}. Load an earlier checkpoint."
            )

    def lane_items(self, lane: int) -> LaneItems:
        """The items that a lane had left."""
        if lane not in self._items:
            position = self.positions[lane]
            self._items[lane] = LaneItems(self.lanes.counted(lane, position.cursor), position)
        return self._items[lane]

    @property
    def has_formula(self) -> bool:
        """True if counts follow from the numbers of rows: the pipeline is uniform, and no row was left out."""
        return self.pipeline.uniform and not self.start.edits

    @cached_property
    def _totals(self) -> list[int] | None:
        """The number of items that each lane had left, by the formula of a uniform pipeline."""
        if not self.has_formula:
            return None
        rows = [self.lanes.size(lane) - position.cursor[0] for lane, position in enumerate(self.positions)]
        items = [self.pipeline.items(left, self.start.item_rows) for left in rows]
        return [
            max(0, left - len(position.delivered_ahead)) for left, position in zip(items, self.positions, strict=True)
        ]

    def has(self, lane: int, ordinal: int) -> bool:
        """True if a lane had an item with this ordinal left."""
        return self.lane_items(lane).has(ordinal) if self._totals is None else ordinal < self._totals[lane]

    def total(self, lane: int) -> int:
        """The number of items that a lane had left."""
        return self.lane_items(lane).total() if self._totals is None else self._totals[lane]

    def lane_after(self, lane: int, ordinals: int) -> LanePosition:
        """A lane's position once its first ``ordinals`` items are delivered."""
        if self._totals is None:
            return self.lane_items(lane).after(ordinals)
        position = self.positions[lane]
        if ordinals == 0:
            return position
        first, *rest = position.cursor
        rows = first + (position.offset(ordinals - 1) + 1) * self.start.item_rows
        return position.after(ordinals, (min(rows, self.lanes.size(lane)), *rest))

    @property
    def is_endless(self) -> bool:  # type: ignore[override]
        return self._totals is None and any(self.lane_items(lane).is_endless for lane in self.rounds.order)

    def sequence(self, reader: int) -> tuple[Rounds, int, int]:
        """The sequence that has a reader's items, the number of its first item there, and the step to its next."""
        return self.rounds, reader, self.readers

    def reader_items(self, reader: int) -> int:
        """The number of items that a reader takes."""
        rounds, first, step = self.sequence(reader)
        return len(range(first, rounds.total(), step))

    def is_complete(self, items: int) -> bool:
        """True if no reader has more than this number of items."""
        return not self.rounds.has(self.readers * items)

    def item(self, reader: int, items: int) -> tuple[int, int] | None:
        """The lane and the ordinal of the item that a reader gets after its first ``items``; None if there is none."""
        rounds, first, step = self.sequence(reader)
        return rounds.located(first + step * items)

    def items_at(self, reader: int, turns: I64) -> tuple[I64, I64]:
        """The lanes of a reader's turns, counted from 0, and the ordinals of their items, which exist."""
        rounds, first, step = self.sequence(reader)
        return rounds.located_all(first + step * turns)

    def delivery_of(self, lane: int, ordinal: int) -> Delivered:
        """When an item, which exists, is delivered."""
        number = self.rounds.number(lane, ordinal)
        step, reader = divmod(number, self.readers)
        return Delivered(reader, step, number)

    def upcoming(self, reader: int, items: int) -> tuple[int, Cursor] | None:
        """The lane and cursor of the item that a reader gets after its first ``items``."""
        found = self.item(reader, items)
        if found is None:
            return None
        lane, ordinal = found
        return lane, self.lane_after(lane, ordinal).cursor

    def items_of_lane(self, lane: int, turns: int) -> int:
        """The number of items of a lane in the first ``turns`` turns, if turns at lanes that ran out count too."""
        offset = (lane - self.start.turn) % len(self.positions)
        most = max(0, -(-(turns - offset) // len(self.positions)))
        return most if most == 0 or self.has(lane, most - 1) else self.total(lane)

    def items_of_reader(self, reader: int, turns: int) -> int:
        """The number of items that a reader gets in the first ``turns`` turns of all readers."""
        return len(range(reader, self.items_in(turns), self.readers))

    def items_in(self, turns: int) -> int:
        """The number of items in the first ``turns`` turns."""
        return sum(self.items_of_lane(lane, turns) for lane in range(len(self.positions)))

    def after_turns(self, turns: int) -> State:
        """The state after the first ``turns`` turns."""
        positions = (self.lane_after(lane, self.items_of_lane(lane, turns)) for lane in range(len(self.positions)))
        packed = LanePositions.pack((1, position) for position in positions)
        return replace(self.start, turn=self.start.turn + turns, positions=packed)

    def after(self, items: int) -> State:
        """The state after every reader has delivered this number of items, or all that it has."""
        number, start = self.readers * items, self.start
        if self._totals is not None and start.positions.in_step:
            segment = self.rounds.segment_at(0)
            # Before the last round of all lanes their items are whole, and neighbouring lanes move alike.
            whole_rounds = 0 if segment is None or len(segment.lanes) < len(self.positions) else segment.rounds - 1
            if number <= whole_rounds * len(self.positions):
                moved = start.positions.advanced(start.turn, number, start.item_rows)
                return replace(start, turn=start.turn + number, positions=moved)
        return self._state(number if number == 0 or self.rounds.has(number - 1) else self.rounds.total())

    def after_each(self, items: Sequence[int]) -> State:
        """The same if each rank has several workers; ``items`` has the number of items of each worker."""
        ranks, deliveries = self.readers // len(items), []
        for reader in range(self.readers):
            delivered = items[reader // ranks]
            if delivered and not self.rounds.has(reader + self.readers * (delivered - 1)):
                delivered = self.reader_items(reader)
            end = reader + self.readers * (delivered - 1) + 1 if delivered else 0
            deliveries.append(LaneDelivery(reader, end, (end,)))
        joined = join(LanePosition((0,)), self.readers, deliveries)
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


class FileSession(Session):
    """A session of a uniform pipeline whose lanes are whole files: lane ``l`` belongs to reader ``l % readers``.

    So no file is read by two readers, and every reader has a sequence of its own. Its next item is that of the lane of
    which least is delivered, the first of these: so it follows from the cursors alone.
    """

    def __init__(self, pipeline: Pipeline, start: State, readers: int) -> None:
        """Begin at a state of lanes of which no items were delivered ahead. There are as many for each reader."""
        super().__init__(pipeline, start, readers)
        self._of_readers: dict[int, Rounds] = {}

    def _rounds_of(self, reader: int) -> Rounds:
        """The sequence of a reader's items. An item's round is its place in its lane."""
        if reader not in self._of_readers:
            lanes = range(reader, len(self.positions), self.readers)
            begins = {lane: self._items_before(lane) for lane in lanes}
            self._of_readers[reader] = Rounds(lanes, self, begins=begins, formula=True)
        return self._of_readers[reader]

    def _items_before(self, lane: int) -> int:
        """The number of items that a lane had delivered."""
        if self.has_formula:
            return -(-self.positions[lane].cursor[0] // self.start.item_rows)
        return self.lanes.counted(lane, self.pipeline.begin).total() - self.total(lane)

    def sequence(self, reader: int) -> tuple[Rounds, int, int]:
        return self._rounds_of(reader), 0, 1

    def is_complete(self, items: int) -> bool:
        return all(self.item(reader, items) is None for reader in range(self.readers))

    def delivery_of(self, lane: int, ordinal: int) -> Delivered:
        reader = lane % self.readers
        step = self._rounds_of(reader).number(lane, ordinal)
        items = (min(step + (other < reader), self.reader_items(other)) for other in range(self.readers))
        return Delivered(reader, step, sum(items))

    def items_of_reader(self, reader: int, turns: int) -> int:
        return min(turns // self.readers, self.reader_items(reader))

    def items_of_lane(self, lane: int, turns: int) -> int:
        reader = lane % self.readers
        return self._rounds_of(reader).delivered(self.items_of_reader(reader, turns))[lane]

    def after(self, items: int) -> State:
        return self.after_each([items])

    def after_each(self, items: Sequence[int]) -> State:
        ranks, positions = self.readers // len(items), list(self.positions)
        if len(items) > 1 and ranks > 1:
            self._check_in_step(items, ranks)
        most = 0
        for reader in range(self.readers):
            rounds = self._rounds_of(reader)
            delivered = min(items[reader // ranks], rounds.total())
            most = max(most, delivered)
            for lane, ordinals in rounds.delivered(delivered).items():
                positions[lane] = self.lane_after(lane, ordinals)
        # Each rank has a turn at every step of the rank that has most.
        steps = sum(items) if len(items) > 1 else min(items[0], most)
        packed = LanePositions.pack((1, position) for position in positions)
        return replace(self.start, turn=self.start.turn + ranks * steps, positions=packed)

    def _check_in_step(self, items: Sequence[int], ranks: int) -> None:
        """Raise if workers of some rank have run out: then those of other ranks delivered other numbers of items."""
        totals = [self.reader_items(reader) for reader in range(self.readers)]
        if max(items) - min(items) > 1 or any(items[reader // ranks] > total for reader, total in enumerate(totals)):
            raise CheckpointMismatchError(
                "The checkpoint holds what the workers of one rank delivered of whole files. Some workers had run out, "
                "so it is unknown what those of the other ranks delivered. Resume each rank from its own checkpoint, "
                "with as many workers as before; or use shard(mode='example') or midepoch.Loader, with which the state "
                "of one rank restores all."
            )
