"""Lanes and turns: how an epoch is cut, and what readers have delivered of a lane that they share. No I/O.

The positions of an epoch are cut into lanes. In a session that is not counted, turn ``i`` takes the next item of lane
``i % lanes``, and reader ``c`` of ``C`` takes the turns ``i ≡ turn + c (mod C)`` from the turn at which the readers
started. With ``g = gcd(lanes, C)``, a reader takes turns at ``lanes / g`` lanes and shares each with ``C / g - 1``
others. Its turns go through these lanes in a fixed rotation; a *slot* is an index into that rotation.

The items that a lane had left when the readers started are numbered 0, 1, 2 …: their *ordinals*.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

import numpy as np

from midepoch._common.hashing import I64

Cursor = tuple[int, ...]
"""The rows of the lane that are consumed, then, for each stage whose groups may have several outputs, how many outputs
of the group are delivered (of packs that are cut from a stream: tokens). That of a mixture begins with its parts.

After a stage that may skip errors, a check of the group's inputs follows, or 0 between groups; see ``stages/flow.py``.
"""


class LanePosition(NamedTuple):
    """What is delivered of a lane: everything before ``cursor``, and the items ``delivered_ahead`` after it.

    ``delivered_ahead`` counts items from the cursor. It is empty unless readers that share the lane got out of step.
    """

    cursor: Cursor
    delivered_ahead: tuple[int, ...] = ()

    def offset(self, ordinal: int) -> int:
        """The number of items between the cursor and the item with this ordinal, delivered ones included."""
        offset = ordinal
        for delivered in self.delivered_ahead:
            if delivered > offset:
                break
            offset += 1
        return offset

    def offsets(self, ordinals: I64) -> I64:
        """The same for many items."""
        if not self.delivered_ahead:
            return ordinals
        return np.array([*map(self.offset, ordinals.tolist())], np.int64)

    def after(self, items: int, cursor: Cursor) -> "LanePosition":
        """The position once the next ``items`` items are delivered too; ``cursor`` is the one after the last."""
        if items == 0:
            return self
        last = self.offset(items - 1)
        return LanePosition(cursor, tuple(ahead - last - 1 for ahead in self.delivered_ahead if ahead > last))


@dataclass(frozen=True, slots=True)
class LaneDelivery:
    """What one reader delivered of a lane: the ordinals ``phase, phase + stride, …`` below ``end``.

    ``end`` is one more than the last delivered ordinal, and ``cursor`` the lane's cursor there; 0 if there is none.
    """

    phase: int
    end: int
    cursor: Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneAssignment:
    """How the turns from ``turn`` on, at ``lanes`` lanes, are assigned to ``readers`` readers."""

    lanes: int
    turn: int
    readers: int

    @property
    def stride(self) -> int:
        """The number of readers that share a lane."""
        return self.readers // gcd(self.lanes, self.readers)

    @property
    def period(self) -> int:
        """The number of lanes that a reader takes turns at."""
        return self.lanes // gcd(self.lanes, self.readers)

    def rotation(self, reader: int) -> list[int]:
        """The lanes of a reader's first ``period`` turns; they repeat."""
        return [(self.turn + reader + self.readers * slot) % self.lanes for slot in range(self.period)]

    def phase(self, reader: int, slot: int) -> int:
        """The ordinal of the first item that a reader takes of the lane at a slot."""
        return (reader + self.readers * slot) // self.lanes

    def turns_at(self, slot: int, turns_taken: int) -> int:
        """The number of a reader's first ``turns_taken`` turns that were at the lane of a slot."""
        return max(0, -(-(turns_taken - slot) // self.period))

    def ordinals(self, reader: int, slot: int, turns_taken: int) -> range:
        """The ordinals of the items that a reader takes of the lane at a slot, in its first turns."""
        first = self.phase(reader, slot)
        return range(first, first + self.stride * self.turns_at(slot, turns_taken), self.stride)


def lane_cuts(size: int, lanes: int) -> list[int]:
    """The bounds of the lanes of an epoch of ``size`` positions. Lanes differ by one position at most.

    The longer lanes come first, so lanes of rows run out in the last round.
    """
    each, longer = divmod(size, lanes)
    return [lane * each + min(lane, longer) for lane in range(lanes + 1)]


def join(position: LanePosition, stride: int, deliveries: Sequence[LaneDelivery]) -> LanePosition:
    """The lane's new position, from its start and every reader's deliveries.

    ``deliveries`` has one entry for each of the ``stride`` readers of the lane. No item that is not delivered is passed
    over.
    """
    due = min(delivery.phase if delivery.end == 0 else delivery.end - 1 + stride for delivery in deliveries)
    known = [(delivery.end, delivery.cursor) for delivery in deliveries if 0 < delivery.end <= due]
    begin, cursor = max(known, default=(0, position.cursor))
    joined = position.after(begin, cursor)
    ahead = {joined.offset(ordinal - begin) for ordinal in _delivered(deliveries, stride, begin)}
    return LanePosition(joined.cursor, tuple(sorted(ahead.union(joined.delivered_ahead))))


def _delivered(deliveries: Iterable[LaneDelivery], stride: int, begin: int) -> Iterable[int]:
    """The delivered ordinals from ``begin`` on."""
    for delivery in deliveries:
        missed = max(0, -(-(begin - delivery.phase) // stride))
        yield from range(delivery.phase + missed * stride, delivery.end, stride)
