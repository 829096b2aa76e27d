"""Which rank gets an item of a session, and at which step: by arithmetic, both ways."""

from typing import NamedTuple

from midepoch.delivery.balanced import BalancedSession
from midepoch.delivery.counted import CountedSession
from midepoch.delivery.session import Session
from midepoch.delivery.uniform import FileSession


class Delivered(NamedTuple):
    """When an item is delivered. All numbers count from the session's start."""

    rank: int
    step: int
    item: int


class SessionSteps:
    """The items of a counted session whose readers are ranks, in the order of their turns."""

    def __init__(self, session: CountedSession) -> None:
        self.session = session
        self.lanes = len(session.positions)

    def of(self, lane: int, ordinal: int) -> Delivered:
        """When an item, which exists, is delivered."""
        # All items of lanes that come before it in this round, and all of earlier rounds.
        number = self.total((lane - self.session.start.turn) % self.lanes + ordinal * self.lanes)
        if isinstance(self.session, BalancedSession):
            rank, step = self.session.turn_of(number)
        else:
            step, rank = divmod(number, self.session.assignment.readers)
        return Delivered(rank, step, number)

    def delivered(self, rank: int, turns: int) -> int:
        """The number of items that a rank gets in the first ``turns`` turns of all ranks."""
        return len(range(rank, self.total(turns), self.session.assignment.readers))

    def of_lane(self, lane: int, turns: int) -> int:
        """The number of items of a lane in the first ``turns`` turns."""
        offset = (lane - self.session.start.turn) % self.lanes
        most = max(0, -(-(turns - offset) // self.lanes))
        return most if most == 0 or self.session.has(lane, most - 1) else self.session.total(lane)

    def total(self, turns: int) -> int:
        """The number of items in the first ``turns`` turns."""
        return sum(self.of_lane(lane, turns) for lane in range(self.lanes))


class FileSteps(SessionSteps):
    """The same where each rank has lanes of its own, and a turn at every step."""

    session: FileSession

    def of(self, lane: int, ordinal: int) -> Delivered:
        rank = lane % self.session.assignment.readers
        step = self.session.rounds_of(rank).number(lane, ordinal)
        items = sum(
            min(step + (other < rank), self.session.reader_items(other))
            for other in range(self.session.assignment.readers)
        )
        return Delivered(rank, step, items)

    def delivered(self, rank: int, turns: int) -> int:
        return min(turns // self.session.assignment.readers, self.session.reader_items(rank))

    def of_lane(self, lane: int, turns: int) -> int:
        rank = lane % self.session.assignment.readers
        return self.session.rounds_of(rank).delivered(self.delivered(rank, turns))[lane]


def steps_of(session: Session) -> SessionSteps:
    """The steps of a session that is counted."""
    if isinstance(session, FileSession):
        return FileSteps(session)
    assert isinstance(session, CountedSession)
    return SessionSteps(session)
