"""Who takes which item: lanes, turns, readers, and what they have delivered together. No I/O.

The positions of an epoch are cut into lanes. Turn ``i`` takes the next item of lane ``i % lanes``, and
reader ``c`` of ``C`` takes the turns ``i ≡ turn + c (mod C)`` from the turn at which the readers started.
With ``g = gcd(lanes, C)``, a reader touches ``lanes / g`` lanes and shares each with ``C / g - 1`` others.

Items of a lane are counted from where the lane stood when the readers started: 0, 1, 2 …, its *ordinals*.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

Cursor = tuple[int, ...]
"""Rows of the lane consumed, then for each stage that can split a group: its outputs already delivered."""


class LanePosition(NamedTuple):
    """Where a lane stands: everything before ``cursor`` is delivered, and so are the items ``done`` after it.

    ``done`` counts items from the cursor on. It is empty unless readers that share a lane got out of step.
    """

    cursor: Cursor
    delivered_ahead: tuple[int, ...] = ()

    def ordinal(self, number: int) -> int:
        """The place, counted from the cursor, of the item that is ``number``-th among those not done."""
        for delivered_ahead in self.delivered_ahead:
            if delivered_ahead > number:
                break
            number += 1
        return number

    def after(self, delivered: int, cursor: Cursor) -> "LanePosition":
        """Where the lane stands once its next ``delivered`` items are: ``cursor`` is the one behind the last."""
        if delivered == 0:
            return self
        last = self.ordinal(delivered - 1)
        return LanePosition(
            cursor,
            tuple(delivered_ahead - last - 1 for delivered_ahead in self.delivered_ahead if delivered_ahead > last),
        )


@dataclass(frozen=True, slots=True)
class LaneDelivery:
    """What one reader delivered of a lane: its ordinals ``phase, phase + stride, …`` below ``end``.

    ``end`` is 0, or one more than the last delivered ordinal; ``cursor`` is the lane's cursor there.
    """

    phase: int
    end: int
    cursor: Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneAssignment:
    """How turns are dealt from ``turn`` on: ``lanes`` lanes among ``readers`` readers."""

    lanes: int
    turn: int
    readers: int

    @property
    def stride(self) -> int:
        """How many readers share a lane."""
        return self.readers // gcd(self.lanes, self.readers)

    @property
    def period(self) -> int:
        """How many lanes a reader touches."""
        return self.lanes // gcd(self.lanes, self.readers)

    def rotation(self, reader: int) -> list[int]:
        """The lanes of a reader's first ``period`` turns, which repeat for ever."""
        return [(self.turn + reader + self.readers * slot) % self.lanes for slot in range(self.period)]

    def phase(self, reader: int, slot: int) -> int:
        """The ordinal of the first item that a reader takes of the lane at ``place`` of its rotation."""
        return (reader + self.readers * slot) // self.lanes

    def taken(self, turns: int, slot: int) -> int:
        """How many of a reader's first ``turns`` turns fell on the lane at ``place`` of its rotation."""
        return max(0, -(-(turns - slot) // self.period))

    def turns_of(self, reader: int, items: int, sizes: Callable[[int], int]) -> int:
        """After how many of its turns a reader holds ``items`` items, where lane ``l`` has ``sizes(l)``.

        Turns on a lane that has run out are empty. If there are fewer items in all, the turns of all of them.
        """
        own = [
            max(0, -(-(sizes(lane) - self.phase(reader, slot)) // self.stride))
            for slot, lane in enumerate(self.rotation(reader))
        ]
        items = min(items, sum(own))

        def items_after(turns: int) -> int:
            return sum(min(self.taken(turns, slot), count) for slot, count in enumerate(own))

        return bisect_left(range(max(own, default=0) * self.period + 1), items, key=items_after)


def lane_cuts(size: int, lanes: int) -> list[int]:
    """Where an epoch of ``size`` positions is cut into lanes that differ by one position at most.

    The longer lanes come first, so that the turns that find their lane run out are the very last of the epoch,
    and readers that pass over them stay in step.
    """
    each, longer = divmod(size, lanes)
    return [lane * each + min(lane, longer) for lane in range(lanes + 1)]


def join(position: LanePosition, stride: int, deliveries: Sequence[LaneDelivery]) -> LanePosition:
    """Where a lane stands that stood at ``standing`` when the readers started, given what each delivered.

    All ``stride`` readers of the lane must be among ``shares``; nothing they did not deliver is passed over.
    """
    due = min(delivery.phase if delivery.end == 0 else delivery.end - 1 + stride for delivery in deliveries)
    known = [(delivery.end, delivery.cursor) for delivery in deliveries if 0 < delivery.end <= due]
    begin, cursor = max(known, default=(0, position.cursor))
    joined = position.after(begin, cursor)
    ahead = {joined.ordinal(ordinal - begin) for ordinal in _delivered(deliveries, stride, begin)}
    return LanePosition(joined.cursor, tuple(sorted(ahead.union(joined.delivered_ahead))))


def _delivered(deliveries: Iterable[LaneDelivery], stride: int, begin: int) -> Iterable[int]:
    """The ordinals from ``begin`` on that the shares hold."""
    for delivery in deliveries:
        missed = max(0, -(-(begin - delivery.phase) // stride))
        yield from range(delivery.phase + missed * stride, delivery.end, stride)
