"""Numbered rows in memory, and a model of who delivers which of them: every turn by itself, assumed to be right."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from midepoch.checkpoint.lanes import LanePosition, lane_cuts
from midepoch.checkpoint.state import LanePositions, State
from midepoch.delivery.turns import Turns
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.source import AdoptedCheckpoint, EpochCut, ReadCounts
from midepoch.stages.batch import Batch
from midepoch.stages.counted import CountedItems
from midepoch.stages.flow import Context, Flow, ItemRun

Item = tuple[Any, ...]
"""A row as ``(lane, number)``, or a batch: a tuple of rows."""


class Opened:
    """What a reader holds open, which says whether it was closed."""

    def __init__(self, decodes: bool) -> None:
        self.decodes, self.closed = decodes, False

    def counts(self) -> ReadCounts:
        return ReadCounts()

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True, kw_only=True)
class MemoryRows:
    """A source whose lane ``l`` has the rows ``(l, 0), (l, 1) …``, less those that are dropped, as by a filter."""

    sizes: tuple[int, ...]
    dropped: frozenset[tuple[int, int]] | None = None
    bulk: int = 0
    """How many items are made at a time; 0 for one by one."""
    decodes: bool = False
    opened: list[Opened] = field(default_factory=list, compare=False)
    read: list[tuple[int, int]] = field(default_factory=list, compare=False)
    """The rows that were read, in the order of reading."""
    begin = (0,)
    label = "memory"
    has_rows = False
    item_spec = ("python", False)
    survives_fork = True
    shuffled = False
    functions = ()
    stateless = True
    items_together: int = 0
    schema = None

    @property
    def uniform(self) -> bool:
        return self.dropped is None

    def why_not_counted(self, survey: None) -> str | None:
        return None if self.uniform else "some rows are dropped"

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {"files": 1, "rows": sum(self.sizes), "digest": "00", "list": []}

    def describe(self) -> list[dict[str, Any]]:
        return []

    def cut(self, cut: EpochCut, survey: Any) -> "MemoryLanes":
        sizes = self.sizes
        if len(sizes) != cut.lanes:
            sizes = tuple(end - begin for begin, end in pairwise(lane_cuts(sum(sizes), cut.lanes)))
        return MemoryLanes(self, sizes)

    def open(self, lanes: int) -> Opened:
        self.opened.append(Opened(self.decodes))
        return self.opened[-1]

    def context(self, epoch: int, rows_until: int) -> Context:
        return Context(seed=0, epoch=epoch, rows_until=0, locate=lambda key: ("memory", key))

    def adopt(self, then: Any) -> AdoptedCheckpoint:
        return AdoptedCheckpoint(None, then["pipeline"])


@dataclass(frozen=True)
class MemoryLanes:
    source: MemoryRows
    sizes: tuple[int, ...]

    def size(self, lane: int) -> int:
        return self.sizes[lane]

    def reaches(self, lane: int, cursor: tuple[int, ...], margin: int) -> bool:
        return cursor[0] < self.sizes[lane] + margin

    def flow(self, opened: Opened, lane: int, cursor: tuple[int, ...]) -> Flow:
        rows = [row for row in range(cursor[0], self.sizes[lane]) if (lane, row) not in (self.source.dropped or ())]
        bulk = self.source.bulk
        if not bulk:
            return Flow(single_items=((self._read(lane, row), (row + 1,), row) for row in rows))
        return Flow(item_runs=(self._item_run(lane, rows[at : at + bulk]) for at in range(0, len(rows), bulk)))

    def counted(self, lane: int, cursor: tuple[int, ...]) -> "MemoryItems":
        return MemoryItems(self, lane, cursor[0])

    def _read(self, lane: int, row: int) -> tuple[int, int]:
        self.source.read.append((lane, row))
        return lane, row

    def _item_run(self, lane: int, rows: Sequence[int]) -> ItemRun:
        numbers = np.array(rows, np.int64)
        return ItemRun([self._read(lane, row) for row in rows], numbers[:, None] + 1, numbers)


class MemoryItems(CountedItems):
    """The rows of a lane from a cursor on, by their numbers."""

    def __init__(self, lanes: MemoryLanes, lane: int, start: int) -> None:
        self._lanes, self._lane, self._start = lanes, lane, start

    def has(self, number: int) -> bool:
        return number < self.total()

    def total(self) -> int:
        return max(0, self._lanes.sizes[self._lane] - self._start)

    def cursor(self, items: int) -> tuple[int]:
        return (self._start + items,)

    def flow(self, opened: Any, wanted: Any) -> Flow:
        rows = (self._start + number for numbers in wanted for number in numbers.tolist())
        return Flow(single_items=((self._lanes._read(self._lane, row), (row + 1,), row) for row in rows))

    def keys(self, numbers: Any) -> Any:
        return numbers + self._start

    def passed(self, cursor: Any, *more: Any, **options: Any) -> Any:
        raise NotImplementedError

    def amounts(self, *more: Any) -> Any:
        raise NotImplementedError

    def trace(self, numbers: Any) -> Any:
        raise NotImplementedError

    def find(self, file: str, row: int) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class MemoryWorld:
    """Rows in lanes, and the pipeline that makes items of them."""

    sizes: tuple[int, ...]
    dropped: frozenset[tuple[int, int]] | None = None
    batch: int = 1
    drop_last: bool = False

    def pipeline(self, **options: Any) -> Pipeline:
        source = MemoryRows(sizes=self.sizes, dropped=self.dropped, **options)
        stages = (Batch(size=self.batch, drop_last=self.drop_last, collate=tuple),) if self.batch > 1 else ()
        return Pipeline(source=source, stages=stages)

    def start(self, positions: Sequence[LanePosition] | None = None, turn: int = 0) -> State:
        """A state in which each lane has a position; by default the beginning of an epoch."""
        lanes = [LanePosition((0,)) for _ in self.sizes] if positions is None else positions
        packed = LanePositions.pack((1, position) for position in lanes)
        return State(lanes=len(self.sizes), turn=turn, item_rows=self.batch, positions=packed)

    def items(self, lane: int, cursor: int = 0) -> list[Item]:
        """The items of a lane from a cursor on."""
        rows = [(lane, row) for row in range(cursor, self.sizes[lane]) if (lane, row) not in (self.dropped or ())]
        if self.batch == 1:
            return rows
        batches = [tuple(rows[at : at + self.batch]) for at in range(0, len(rows), self.batch)]
        return [batch for batch in batches if len(batch) == self.batch or not self.drop_last]

    def waiting(self, state: State) -> list[list[Item]]:
        """The items of each lane that are not delivered by a complete state: what the state means."""
        assert state.reader_progress is None
        assert state.lanes == len(self.sizes)
        return [
            [
                item
                for number, item in enumerate(self.items(lane, position.cursor[0]))
                if number not in position.delivered_ahead
            ]
            for lane, position in enumerate(state.positions.expand())
        ]


def cursor_after(item: Item) -> tuple[int]:
    """The cursor of its lane after an item."""
    _, row = item[-1] if isinstance(item[-1], tuple) else item
    return (row + 1,)


class Simulation:
    """The turns of all readers of a session, one by one: ``turns[reader]`` has the lane and item (or None) of each."""

    def __init__(self, waiting: Sequence[Sequence[Item]], turn: int, readers: int) -> None:
        self.waiting, self.turn, self.readers = waiting, turn, readers
        self.turns: list[list[tuple[int, Item | None]]] = [[] for _ in range(readers)]
        taken = [0] * len(waiting)
        rounds = readers * (1 + max(map(len, waiting)))
        for number in range(len(waiting) * rounds):
            lane = (turn + number) % len(waiting)
            item = waiting[lane][taken[lane]] if taken[lane] < len(waiting[lane]) else None
            self.turns[number % readers].append((lane, item))
            taken[lane] += 1

    def items_of(self, reader: int, turns_taken: int | None = None) -> list[Item]:
        """The items of a reader's first turns, or of all."""
        return [item for _, item in self.turns[reader][:turns_taken] if item is not None]

    def turns_for(self, reader: int, items: int) -> int:
        """The number of turns that a reader takes for its first items, or for all if there are fewer."""
        having = [number for number, (_, item) in enumerate(self.turns[reader], start=1) if item is not None]
        return ([0, *having])[min(items, len(having))]

    def left(self, turns_taken: Sequence[int]) -> tuple[int, list[list[Item]]]:
        """The next turn, and what is left of each lane, after each reader took these numbers of turns."""
        done = {item for reader, taken in enumerate(turns_taken) for item in self.items_of(reader, taken)}
        turn = min(self.turn + reader + self.readers * taken for reader, taken in enumerate(turns_taken))
        return turn, [[item for item in lane if item not in done] for lane in self.waiting]

    def as_turns(self, reader: int, period: int, begin: int = 0, rounds: int = 0) -> Iterator[Turns]:
        """A reader's turns from ``begin`` on as they are read: one at a time, or at most ``rounds`` of its rotation."""
        turns = self.turns[reader]
        while any(item is not None for _, item in turns[begin:]):
            lanes = [turns[begin + slot :: period] for slot in range(period)] if rounds else [turns[begin:]]
            ready = [[item for _, item in lane if item is not None] for lane in lanes]
            count = min([rounds, *(len(lane) for lane in ready if lane)]) if rounds else 1
            items = [item for _, item in turns[begin : begin + (count * period if rounds else 1)]]
            yield turns_of(items)
            begin += len(items)


def turns_of(items: Sequence[Item | None], hashes: Sequence[int] | None = None) -> Turns:
    """A turn of each item, or an empty one of None."""
    places = np.array([place for place, item in enumerate(items) if item is not None], np.int64)
    having = [item for item in items if item is not None]
    of_items = None if hashes is None else np.array(hashes, np.uint64)
    return Turns(having, [*map(cursor_after, having)], of_items, len(items) - len(having), places)


@st.composite
def memory_worlds(draw: Any, uniform: bool | None = None, batch: int | None = None) -> MemoryWorld:
    """A few lanes of a few rows, batched or not; where it is not uniform, some rows are dropped."""
    sizes = tuple(draw(st.lists(st.integers(0, 8), min_size=1, max_size=5)))
    uniform = draw(st.booleans()) if uniform is None else uniform
    rows = [(lane, row) for lane, size in enumerate(sizes) for row in range(size)]
    dropped = None if uniform else frozenset(draw(st.sets(st.sampled_from(rows)))) if rows else frozenset()
    batch = draw(st.sampled_from([1, 1, 2, 3])) if batch is None else batch
    return MemoryWorld(sizes=sizes, dropped=dropped, batch=batch, drop_last=batch > 1 and draw(st.booleans()))


@st.composite
def starts(draw: Any, world: MemoryWorld, ahead: bool = True) -> State:
    """A state that a run can have reached: any cursor and turn, maybe with items delivered ahead."""
    in_step = not ahead or draw(st.booleans())
    positions = []
    for lane, size in enumerate(world.sizes):
        cursor = draw(st.integers(0, size))
        numbers = range(len(world.items(lane, cursor)))
        done = () if in_step or not numbers else tuple(sorted(draw(st.sets(st.sampled_from(numbers), max_size=3))))
        positions.append(LanePosition((cursor,), done))
    first_turn = 1 if any(positions[0].cursor) else 0  # the first turn moves the first lane
    return world.start(positions, draw(st.integers(first_turn, 20)))
