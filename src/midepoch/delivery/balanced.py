"""A counted session whose ranks get near-equal costs: inside a global step, any rank may get any of its items.

A step has the same items as without it, and each rank as many. Who gets which follows from the plan of the packs alone,
so all ranks find the same. The last step of an epoch, if it is not whole, is shared in turn.
"""

from collections import defaultdict, deque
from collections.abc import Generator, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice

import numpy as np

from midepoch._common.text import count
from midepoch._common.types import I64
from midepoch.checkpoint.state import State
from midepoch.delivery.counted import CountedSession
from midepoch.delivery.counted_reading import ReadLane
from midepoch.delivery.progress import Progress, Turns
from midepoch.pipeline.ledger import Ledgers
from midepoch.pipeline.pipeline import Pipeline

STEPS_AT_ONCE = 16
"""The costs of this many steps are looked up together."""
STEPS_KEPT = 8 * STEPS_AT_ONCE


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


class BalancedSession(CountedSession):
    """A counted session in steps of ``pipeline.balanced`` items, in which ranks get near-equal costs."""

    def __init__(self, pipeline: Pipeline, start: State, readers: int) -> None:
        super().__init__(pipeline, start, readers)
        self._size = pipeline.balanced or 1
        if self._size % readers:
            raise ValueError(
                f"A global batch has {count('micro-batch', self._size, 'micro-batches')}, which {readers} ranks cannot "
                "share evenly, so balance='cost' is not possible. Choose a number of ranks that divides it."
            )
        self._share = self._size // readers
        self._shares: dict[int, list[list[int]] | None] = {}

    def shares(self, step: int) -> list[list[int]] | None:
        """The numbers of a step's items, by rank and rising; None if the step is not whole."""
        if step not in self._shares:
            for old in list(self._shares)[: max(0, len(self._shares) - STEPS_KEPT)]:
                del self._shares[old]
            first = step - step % STEPS_AT_ONCE
            whole = [number for number in range(first, first + STEPS_AT_ONCE) if self._is_whole(number)]
            self._shares.update(dict.fromkeys(range(first, first + STEPS_AT_ONCE)))
            for number, costs in zip(whole, self._costs(whole), strict=True):
                begin, ranks = number * self._size, self.assignment.readers
                self._shares[number] = [[begin + item for item in share] for share in share_evenly(costs, ranks)]
        return self._shares[step]

    def _is_whole(self, step: int) -> bool:
        return self.rounds.has((step + 1) * self._size - 1)

    def _costs(self, steps: Sequence[int]) -> list[list[int]]:
        """The costs of the items of whole steps. Those of a lane are looked up together."""
        of_lanes: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for place in range(len(steps) * self._size):
            lane, ordinal = self.rounds.located(steps[0] * self._size + place) or (0, 0)
            of_lanes[lane].append((ordinal, place))
        costs = np.zeros(len(steps) * self._size, np.int64)
        for lane, entries in of_lanes.items():
            ordinals, places = np.array(entries, np.int64).T
            costs[places] = self.lane_items(lane).costs(ordinals)
        return [list(map(int, of_step)) for of_step in costs.reshape(len(steps), self._size)]

    def number_of(self, reader: int, items: int) -> int:
        """The number, in the sequence, of the item that a reader gets after its first ``items``."""
        step, place = divmod(items, self._share)
        shares = self.shares(step) if self.assignment.readers > 1 else None
        return reader + self.assignment.readers * items if shares is None else shares[reader][place]

    def item(self, reader: int, items: int) -> tuple[int, int] | None:
        return self.rounds.located(self.number_of(reader, items))

    def items_at(self, reader: int, turns: I64) -> tuple[I64, I64]:
        return self.rounds.located_all(np.array([self.number_of(reader, turn) for turn in turns.tolist()], np.int64))

    def turn_of(self, number: int) -> tuple[int, int]:
        """The reader that gets an item, and how many it gets before."""
        step = number // self._size
        shares = self.shares(step) if self.assignment.readers > 1 else None
        if shares is None:
            items, reader = divmod(number, self.assignment.readers)
            return reader, items
        reader = next(reader for reader, share in enumerate(shares) if number in share)
        return reader, step * self._share + shares[reader].index(number)

    def after(self, items: int) -> State:
        step, done = divmod(items, self._share)
        shares = self.shares(step) if done and self.assignment.readers > 1 else None
        if shares is None:
            return super().after(items)
        delivered = sorted(number for share in shares for number in share[:done])
        number = step * self._size
        while delivered and delivered[0] == number:
            del delivered[0]
            number += 1
        return self._state(number, [ahead - number for ahead in delivered])

    def after_each(self, items: Sequence[int]) -> State:
        raise NotImplementedError("A balanced session has one reader a rank.")


def take_shares(
    progress: Progress, session: BalancedSession, ledgers: Ledgers, turns: range
) -> Generator[Turns, None, None]:
    """A reader's items at some turns, counted from where its progress is, until the end."""
    opened, before = session.open_source(len(session.positions)), progress.turns_taken
    agenda = Agenda(session, progress.reader, (before + turn for turn in turns))
    reading: dict[int, ReadLane] = {}
    try:
        while (lane := agenda.next_lane()) is not None:
            if lane not in reading:
                reading[lane] = ReadLane(session.lane_items(lane).flow(opened, agenda.wanted(lane)))
                ledgers.update(session.lanes.pop_ledgers())
            yield Turns(reading[lane].take(1), ())
    finally:
        session.close_source(opened)


class Agenda:
    """Some turns of a reader: their lanes, and what to ask of each lane."""

    def __init__(self, session: BalancedSession, reader: int, turns: Iterator[int]) -> None:
        self._session, self._reader, self._turns = session, reader, turns
        self._lanes: deque[int] = deque()
        self._ordinals: dict[int, list[int]] = defaultdict(list)
        self._at_once = 1  # so that the first item after a resume comes as soon as possible

    def next_lane(self) -> int | None:
        """The lane of the next turn; None if there is none."""
        if not self._lanes:
            self._plan()
        return self._lanes.popleft() if self._lanes else None

    def wanted(self, lane: int) -> Iterator[I64]:
        """The ordinals of a lane's items. An empty array says that the next ones are not known yet."""
        ordinals = self._ordinals[lane]
        while True:
            known = np.array(ordinals, np.int64)
            ordinals.clear()
            yield known
            yield np.empty(0, np.int64)
            while not ordinals:
                if not self._plan():
                    return

    def _plan(self) -> bool:
        """Look for the next turns; false if there are none."""
        planned = False
        for turn in islice(self._turns, self._at_once):
            found = self._session.item(self._reader, turn)
            if found is None:
                break
            self._lanes.append(found[0])
            self._ordinals[found[0]].append(found[1])
            planned = True
        self._at_once = min(2 * self._at_once, 4 * STEPS_AT_ONCE)
        return planned
