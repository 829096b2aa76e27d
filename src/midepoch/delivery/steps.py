"""Which rank gets an item of a session, and at which step: by arithmetic, both ways."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from midepoch.checkpoint.lanes import LanePosition
from midepoch.delivery.counted import CountedSession, LaneItems
from midepoch.delivery.session import Session


class Delivered(NamedTuple):
    """When an item is delivered. All numbers count from the session's start."""

    rank: int
    step: int
    item: int


class SessionSteps(ABC):
    """The items of a session whose readers are ranks, in the order of their turns."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lanes = len(session.positions)

    @abstractmethod
    def at(self, rank: int, step: int) -> tuple[int, int] | None:
        """The lane and ordinal of the item that a rank gets at a step; None if it has no more."""

    @abstractmethod
    def of(self, lane: int, ordinal: int) -> Delivered:
        """When an item, which exists, is delivered."""

    @abstractmethod
    def items(self, lane: int) -> LaneItems:
        """The items that a lane had left at the session's start."""

    @abstractmethod
    def delivered(self, rank: int, turns: int) -> int:
        """The number of items that a rank gets in the first ``turns`` turns of all ranks."""

    @abstractmethod
    def position(self, lane: int, items: int) -> LanePosition:
        """A lane's position after its first items."""

    def lane_turns(self, lane: int, turns: int) -> int:
        """The number of the first ``turns`` turns that were at a lane."""
        offset = (lane - self.session.start.turn) % self.lanes
        return max(0, -(-(turns - offset) // self.lanes))

    def of_lane(self, lane: int, turns: int) -> int:
        """The number of items of a lane in the first ``turns`` turns."""
        most, items = self.lane_turns(lane, turns), self.items(lane)
        return most if most == 0 or items.has(most - 1) else items.total()

    def total(self, turns: int) -> int:
        """The number of items in the first ``turns`` turns."""
        return sum(self.of_lane(lane, turns) for lane in range(self.lanes))


class UniformSteps(SessionSteps):
    """Ranks take turns at lanes. A turn at a lane that has run out is empty, and the rank's next item comes later."""

    session: Session

    def at(self, rank: int, step: int) -> tuple[int, int] | None:
        assignment = self.session.assignment
        if step >= sum(self.session.reader_items(rank)):
            return None
        turn = self.session.turns_for(rank, step + 1) - 1
        slot = turn % assignment.period
        ordinal = assignment.phase(rank, slot) + assignment.stride * (turn // assignment.period)
        return assignment.rotation(rank)[slot], ordinal

    def of(self, lane: int, ordinal: int) -> Delivered:
        turn = (lane - self.session.start.turn) % self.lanes + ordinal * self.lanes
        rank = turn % self.session.assignment.readers
        return Delivered(rank, self.delivered(rank, turn), self.total(turn))

    def items(self, lane: int) -> LaneItems:
        position = self.session.positions[lane]
        return LaneItems(self.session.lanes.counted(lane, position.cursor), position)

    def delivered(self, rank: int, turns: int) -> int:
        assignment = self.session.assignment
        taken = max(0, -(-(turns - rank) // assignment.readers))
        limits = enumerate(self.session.reader_items(rank))
        return sum(min(assignment.turns_at(slot, taken), limit) for slot, limit in limits)

    def of_lane(self, lane: int, turns: int) -> int:
        return min(self.lane_turns(lane, turns), self.session.items_left(lane))

    def position(self, lane: int, items: int) -> LanePosition:
        position = self.session.positions[lane]
        first, *rest = position.cursor
        return position.after(items, (first + items * self.session.start.item_rows, *rest))


class CountedSteps(SessionSteps):
    """Ranks take the items of one sequence, in which no turn is empty."""

    session: CountedSession

    def at(self, rank: int, step: int) -> tuple[int, int] | None:
        return self.session.located(self.session.number_of(rank, step))

    def of(self, lane: int, ordinal: int) -> Delivered:
        # All items of lanes that come before it in this round, and all of earlier rounds.
        turn = (lane - self.session.start.turn) % self.lanes + ordinal * self.lanes
        number = self.total(turn)
        rank, step = self.session.turn_of(number)
        return Delivered(rank, step, number)

    def items(self, lane: int) -> LaneItems:
        return self.session.lane_items(lane)

    def delivered(self, rank: int, turns: int) -> int:
        return max(0, -(-(self.total(turns) - rank) // self.session.assignment.readers))

    def position(self, lane: int, items: int) -> LanePosition:
        return self.session.lane_items(lane).after(items)


def steps_of(session: Session) -> SessionSteps:
    """The steps of a session that is counted."""
    return CountedSteps(session) if isinstance(session, CountedSession) else UniformSteps(session)
