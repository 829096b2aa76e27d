"""A session whose ranks get near-equal costs: inside a global step, any rank may get any of its items.

A step has the same items as without it, and each rank as many. Who gets which follows from the plan of the packs alone,
so all ranks find the same. The last step of an epoch, if it is not whole, is shared in turn.
"""

from collections import defaultdict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from midepoch._common.checks import count
from midepoch._common.hashing import I64
from midepoch.checkpoint.state import State
from midepoch.delivery.session import Delivered, Session
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


class BalancedSession(Session):
    """A session in steps of ``pipeline.balanced`` items, in which ranks get near-equal costs."""

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
                begin, shares = number * self._size, share_evenly(costs, self.readers)
                self._shares[number] = [[begin + item for item in share] for share in shares]
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
        shares = self.shares(step) if self.readers > 1 else None
        return reader + self.readers * items if shares is None else shares[reader][place]

    def item(self, reader: int, items: int) -> tuple[int, int] | None:
        return self.rounds.located(self.number_of(reader, items))

    def items_at(self, reader: int, turns: I64) -> tuple[I64, I64]:
        return self.rounds.located_all(np.array([self.number_of(reader, turn) for turn in turns.tolist()], np.int64))

    def delivery_of(self, lane: int, ordinal: int) -> Delivered:
        found = super().delivery_of(lane, ordinal)
        step = found.item // self._size
        shares = self.shares(step) if self.readers > 1 else None
        if shares is None:
            return found
        reader = next(reader for reader, share in enumerate(shares) if found.item in share)
        return Delivered(reader, step * self._share + shares[reader].index(found.item), found.item)

    def after(self, items: int) -> State:
        step, done = divmod(items, self._share)
        shares = self.shares(step) if done and self.readers > 1 else None
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
