"""A session: part of a run with the same readers. The items that are left are one sequence, which readers take in turn.

The sequence goes round the lanes, and passes over a lane that has run out. Reader ``c`` of ``C`` takes the items ``c,
c + C, c + 2 C …``, so readers differ by at most one item, however uneven the lanes are. What was delivered follows from
the number of items, because the items of lanes are counted. ``FileSession`` and ``BalancedSession`` give the same items
to readers in other ways.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from midepoch._common.checks import count
from midepoch._common.hashing import I64
from midepoch.checkpoint.lanes import Cursor, LanePosition
from midepoch.checkpoint.state import LanePositions, State
from midepoch.delivery.rounds import NO_END, Rounds, Run
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.pipeline import Pipeline, PipelineLanes
from midepoch.stages.counted import CountedItems, CountedOutputs, Pieces, Wanted
from midepoch.stages.flow import Flow

WANTED_ROWS = 1024
"""The items of about this many rows are asked for, and counted, at a time."""
MOST_TURNS = 64
"""The most turns that a balanced session plans at a time."""
STEPS_KEPT = 128
"""It is remembered how the items of this many steps are shared."""


class Undelivered(CountedOutputs):
    """The items of a lane without those that were delivered ahead of others."""

    def __init__(self, items: CountedItems, position: LanePosition) -> None:
        super().__init__(items)
        self._position = position

    def has(self, number: int) -> bool:
        return self._inputs.has(self._position.offset(number))

    def total(self) -> int:
        return max(0, self._inputs.total() - len(self._position.delivered_ahead))

    def cursor(self, items: int) -> Cursor:
        return self._inputs.cursor(self._position.offset(items - 1) + 1 if items else 0)

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        return self._inputs.flow(opened, map(self._position.offsets, wanted))

    def inputs_of(self, numbers: I64) -> Pieces:
        return Pieces(np.arange(len(numbers)), self._position.offsets(numbers))

    def outputs_of(self, inputs: I64) -> I64:
        ahead = np.array(self._position.delivered_ahead, np.int64)
        return np.where(np.isin(inputs, ahead), -1, inputs - np.searchsorted(ahead, inputs))


class Delivered(NamedTuple):
    """When an item is delivered. All numbers count from the session's start."""

    reader: int
    step: int
    item: int


class AnySession:
    """What all sessions know: the position of every lane when their readers started.

    The items that a lane had left then are numbered by their ordinals.
    """

    counted: bool
    """True if what readers have delivered follows from the number of their items."""
    is_endless = False
    """True if the epoch never ends, as with ``mix(stop="never")``."""

    def __init__(self, pipeline: Pipeline, start: State, readers: int) -> None:
        """Begin at ``start``, a complete state of an epoch that is cut into lanes."""
        if start.lanes is None or start.reader_progress is not None:
            raise CheckpointMismatchError.damaged("it is not the complete state of an epoch with lanes")
        self.pipeline, self.start, self.readers = pipeline, start, readers
        self.lanes, self.assignment = PipelineLanes.of(pipeline, start), start.assigned_to(readers)
        self.positions: list[LanePosition] = start.positions.expand()

    def check(self) -> None:
        """Raise if a lane is at a position that no run can have reached."""
        for lane, position in enumerate(self.positions):
            ahead = position.delivered_ahead if self.pipeline.uniform else ()  # else a row may make many items
            self.check_cursor(lane, position.cursor, max(ahead, default=0))

    def check_cursor(self, lane: int, cursor: Cursor, ahead: int = 0) -> None:
        """Raise if a cursor, or the last item ``ahead`` of it, is after the lane's end."""
        reached = self.lanes.reaches(lane, cursor, self.start.item_rows)
        if not reached or ahead > self.lanes.size(lane):
            where = f"lane {lane} of {len(self.positions)}"
            raise CheckpointMismatchError.damaged(f"the cursor {list(cursor)} of {where} is after the lane's end")


class Session(AnySession):
    """The sequence of items that were not delivered when these readers started."""

    counted = True
    plans_ahead = True
    """True if it costs little to know which items are next."""

    def __init__(self, pipeline: Pipeline, start: State, readers: int) -> None:
        super().__init__(pipeline, start, readers)
        self._most_rounds = max(1, WANTED_ROWS // pipeline.item_rows)
        self._items: dict[int, CountedItems] = {}
        self._reached: dict[int, tuple[int, LanePosition]] = {}
        lanes = len(self.positions)
        turn_order = [(start.turn + number) % lanes for number in range(lanes)]
        self.rounds = Rounds(turn_order, (self.has, self.total), self._most_rounds)

    def lane_items(self, lane: int) -> CountedItems:
        """The items that a lane had left."""
        if lane not in self._items:
            position = self.positions[lane]
            items = self.lanes.counted(lane, position.cursor)
            self._items[lane] = Undelivered(items, position) if position.delivered_ahead else items
        return self._items[lane]

    def has(self, lane: int, ordinal: int) -> bool:
        """True if a lane had an item with this ordinal left. Counts no further than it must."""
        return self.lane_items(lane).has(ordinal)

    def total(self, lane: int) -> int:
        """The number of items that a lane had left."""
        return self.lane_items(lane).total()

    def lane_after(self, lane: int, ordinals: int) -> LanePosition:
        """A lane's position once its first ``ordinals`` items are delivered. Most lanes have not moved since."""
        position = self.positions[lane]
        if ordinals == 0:
            return position
        if self._reached.get(lane, (0,))[0] != ordinals:
            self._reached[lane] = ordinals, position.after(ordinals, self.lane_items(lane).cursor(ordinals))
        return self._reached[lane][1]

    @property
    def is_endless(self) -> bool:  # type: ignore[override]
        return not self.pipeline.uniform and any(self.lane_items(lane).is_endless for lane in self.rounds.order)

    def sequence(self, reader: int) -> tuple[Rounds, int, int]:
        """The sequence that has a reader's items, the number of its first item there, and the step to its next."""
        return self.rounds, reader, self.readers

    def runs(self, reader: int, turns: range) -> Iterator[Run]:
        """A reader's turns, counted from 0, as runs that go round lanes."""
        rounds, first, step = self.sequence(reader)
        numbers = range(first + step * turns.start, first + step * turns.stop, step * turns.step)
        return rounds.runs(numbers, self._most_rounds)

    def reader_items(self, reader: int) -> int:
        """The number of items that a reader takes."""
        rounds, first, step = self.sequence(reader)
        return len(range(first, rounds.total(), step))

    def is_complete(self, items: int) -> bool:
        """True if no reader has more than this number of items."""
        return all(self.item(reader, items) is None for reader in range(self.readers))

    def item(self, reader: int, items: int) -> tuple[int, int] | None:
        """The lane and the ordinal of the item that a reader gets after its first ``items``; None if there is none."""
        rounds, first, step = self.sequence(reader)
        return rounds.located(first + step * items)

    def delivery_of(self, lane: int, ordinal: int) -> Delivered:
        """When an item, which exists, is delivered."""
        number = self.rounds.number(lane, ordinal)
        step, reader = divmod(number, self.readers)
        return Delivered(reader, step, number)

    def upcoming(self, reader: int, items: int) -> tuple[int, Cursor] | None:
        """The lane and cursor of the item that a reader gets after its first ``items``."""
        found = self.item(reader, items)
        return None if found is None else (found[0], self.lane_after(*found).cursor)

    def items_in(self, turns: int) -> int:
        """The number of items in the first ``turns`` turns, if turns at lanes that ran out count too."""
        return self.rounds.before(*divmod(turns, len(self.positions)))

    def items_of_reader(self, reader: int, turns: int) -> int:
        """The number of items that a reader gets in the first ``turns`` turns of all readers."""
        return len(range(reader, self.items_in(turns), self.readers))

    def after_turns(self, turns: int) -> State:
        """The state after the first ``turns`` turns."""
        return replace(self._state(self.items_in(turns)), turn=self.start.turn + turns)

    def after(self, items: int) -> State:
        """The state after every reader has delivered this number of items, or all that it has."""
        return self.after_items(self.readers * items)

    def after_items(self, number: int) -> State:
        """The state after the first items of the sequence, so many of all readers together."""
        start, lanes = self.start, len(self.positions)
        if self.pipeline.uniform and not start.edits and start.positions.in_step:
            segment = self.rounds.segment(number + lanes)
            # Before the last round of all lanes their items are whole, and neighbouring lanes move alike.
            if segment is not None and segment.first == 0 and len(segment.lanes) == lanes:
                moved = start.positions.advanced(start.turn, number, start.item_rows)
                return replace(start, turn=start.turn + number, positions=moved)
        return self._state(self._at_most(number))

    def _at_most(self, number: int) -> int:
        """A number of items, or that of all items if there are not so many."""
        return number if number == 0 or self.rounds.has(number - 1) else self.rounds.total()

    def after_each(self, items: Sequence[int]) -> State:
        """The same if each rank has several workers; ``items`` has the number of items of each worker."""
        ranks, first = self.readers // len(items), self._at_most(self.readers * min(items))
        delivered: set[int] = set()
        for reader in range(self.readers):
            end = self._at_most(self.readers * items[reader // ranks])
            delivered.update(range(first + (reader - first) % self.readers, end, self.readers))
        return self._after(first, delivered)

    def _after(self, first: int, delivered: Collection[int]) -> State:
        """The state after the first items of the sequence, and after these ones, whose numbers may be larger."""
        number = next(number for number in range(first, NO_END) if number not in delivered)
        return self._state(number, [one for one in delivered if one > number])

    def _state(self, number: int, ahead: Collection[int] = ()) -> State:
        """The state after the first ``number`` items, and after these ones, which are ahead of others."""
        delivered = self.rounds.delivered(number)
        positions = [self.lane_after(lane, delivered[lane]) for lane in range(len(delivered))]
        for found in map(self.rounds.located, ahead):
            assert found is not None
            lane, ordinal = found
            cursor, known = positions[lane]
            offset = self.lane_after(lane, delivered[lane]).offset(ordinal - delivered[lane])
            positions[lane] = LanePosition(cursor, tuple(sorted({*known, offset})))
        return self._at(positions, self._turn_after(number))

    def _at(self, positions: Sequence[LanePosition], turn: int) -> State:
        return replace(self.start, turn=turn, positions=LanePositions.pack((1, position) for position in positions))

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
        own_lanes = (range(reader, len(self.positions), readers) for reader in range(readers))
        self._of_readers = [self._rounds_of(lanes) for lanes in own_lanes]

    def _rounds_of(self, lanes: range) -> Rounds:
        """The sequence of a reader's items. An item's round is its place in its lane."""
        begins = {lane: self._items_before(lane) for lane in lanes}
        return Rounds(lanes, (self.has, self.total), self._most_rounds, begins)

    def _items_before(self, lane: int) -> int:
        """The number of items that a lane had delivered."""
        if self.start.edits:
            return self.lanes.counted(lane, self.pipeline.begin).total() - self.total(lane)
        return -(-self.positions[lane].cursor[0] // self.start.item_rows)

    def sequence(self, reader: int) -> tuple[Rounds, int, int]:
        return self._of_readers[reader], 0, 1

    def delivery_of(self, lane: int, ordinal: int) -> Delivered:
        reader = lane % self.readers
        step = self._of_readers[reader].number(lane, ordinal)
        items = (min(step + (other < reader), self.reader_items(other)) for other in range(self.readers))
        return Delivered(reader, step, sum(items))

    def items_of_reader(self, reader: int, turns: int) -> int:
        return min(turns // self.readers, self.reader_items(reader))

    def items_in(self, turns: int) -> int:
        return sum(self.items_of_reader(reader, turns) for reader in range(self.readers))

    def after_turns(self, turns: int) -> State:
        return replace(self.after(turns // self.readers), turn=self.start.turn + turns)

    def after(self, items: int) -> State:
        return self.after_each([items])

    def after_each(self, items: Sequence[int]) -> State:
        ranks, positions = self.readers // len(items), list(self.positions)
        if len(items) > 1 and ranks > 1:
            self._check_in_step(items, ranks)
        most = 0
        for reader, rounds in enumerate(self._of_readers):
            delivered = min(items[reader // ranks], rounds.total())
            most = max(most, delivered)
            for lane, ordinals in rounds.delivered(delivered).items():
                positions[lane] = self.lane_after(lane, ordinals)
        # Each rank has a turn at every step of the rank that has most.
        steps = sum(items) if len(items) > 1 else most
        return self._at(positions, self.start.turn + ranks * steps)

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


def share_evenly(costs: Sequence[int], ranks: int) -> list[list[int]]:
    """Which of the items each rank gets: as many for each, with sums that are near each other. Ranks divide the items.

    The dearest item that is left goes to the rank that has least and still has room.
    """
    room = len(costs) // ranks
    shares: list[list[int]] = [[] for _ in range(ranks)]
    sums = [(0, rank) for rank in range(ranks)]
    heapify(sums)
    for item in sorted(range(len(costs)), key=lambda number: (-costs[number], number)):
        total, rank = heappop(sums)
        shares[rank].append(item)
        if len(shares[rank]) < room:
            heappush(sums, (total + costs[item], rank))
    return [sorted(share) for share in shares]


class BalancedSession(Session):
    """A session in global steps of ``pipeline.balanced`` items, in which ranks get near-equal costs.

    A step has the same items as without it, and each rank as many. Who gets which follows from the plan of the packs
    alone, so all ranks find the same. The last step of an epoch, if it is not whole, is shared in turn.
    """

    plans_ahead = False

    def __init__(self, pipeline: Pipeline, start: State, readers: int) -> None:
        super().__init__(pipeline, start, readers)
        self._size = pipeline.balanced or 1
        if self._size % readers:
            raise ValueError(
                f"A global batch has {count('micro-batch', self._size, 'micro-batches')}, which {readers} ranks cannot "
                "share evenly, so balance='cost' is not possible. Choose a number of ranks that divides it."
            )
        self._share = self._size // readers
        self._shares_of = lru_cache(STEPS_KEPT)(self._find_shares)

    def _find_shares(self, step: int) -> list[list[int]] | None:
        """The numbers of a step's items, by rank and rising; None if the step is not whole."""
        first = step * self._size
        places = [self.rounds.located(first + item) for item in range(self._size)]
        if None in places:
            return None
        lanes, ordinals = np.array(places, np.int64).T
        costs = np.zeros(self._size, np.int64)
        for lane in np.unique(lanes).tolist():
            costs[lanes == lane] = self.lane_items(lane).costs(ordinals[lanes == lane])
        return [[first + item for item in share] for share in share_evenly(costs.tolist(), self.readers)]

    def _number_of(self, reader: int, items: int) -> int:
        """The number, in the sequence, of the item that a reader gets after its first ``items``."""
        step, place = divmod(items, self._share)
        shares = self._shares_of(step)
        return reader + self.readers * items if shares is None else shares[reader][place]

    def item(self, reader: int, items: int) -> tuple[int, int] | None:
        return self.rounds.located(self._number_of(reader, items))

    def runs(self, reader: int, turns: range) -> Iterator[Run]:
        size = 1
        while found := [*takewhile(bool, (self.item(reader, turn) for turn in turns[:size]))]:
            places = [place for place in found if place is not None]
            yield Run([lane for lane, _ in places], [ordinal for _, ordinal in places], 1, len(places))
            turns, size = turns[size:], min(2 * size, MOST_TURNS)

    def delivery_of(self, lane: int, ordinal: int) -> Delivered:
        found = super().delivery_of(lane, ordinal)
        step = found.item // self._size
        shares = self._shares_of(step)
        if shares is None:
            return found
        reader = next(reader for reader, share in enumerate(shares) if found.item in share)
        return Delivered(reader, step * self._share + shares[reader].index(found.item), found.item)

    def after(self, items: int) -> State:
        step, done = divmod(items, self._share)
        shares = self._shares_of(step) if done else None
        if shares is None:
            return super().after(items)
        return self._after(step * self._size, {number for share in shares for number in share[:done]})

    def after_each(self, items: Sequence[int]) -> State:
        raise NotImplementedError("A balanced session has one reader a rank.")
