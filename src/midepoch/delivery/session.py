"""A leg: a stretch of a run with the same readers. What each has delivered is counted from the leg's start."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from midepoch.checkpoint.lanes import Cursor, LaneAssignment, LaneDelivery, LanePosition
from midepoch.checkpoint.merge import joined_at
from midepoch.checkpoint.state import State
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.pipeline import Lanes, Pipeline


class Session:
    """Where every lane stood when these readers started, and how the turns are dealt among them."""

    def __init__(self, pipeline: Pipeline, start: State, readers: int) -> None:
        """Begin at ``start``, a state whose lanes are dealt and which is no part."""
        assert start.lanes is not None
        assert start.reader_progress is None
        self.pipeline, self.start = pipeline, start
        self.lanes = Lanes(pipeline, epoch=start.epoch, lanes=start.lanes, mode=start.mode, appended=start.appended)
        self.assignment = LaneAssignment(lanes=start.lanes, turn=start.turn, readers=readers)
        self.positions: list[LanePosition] = start.positions.expand()

    def check(self) -> None:
        """Raise if a lane stands behind its end: no run can have come there."""
        for lane, position in enumerate(self.positions):
            ahead = position.delivered_ahead[-1] if position.delivered_ahead and self.pipeline.uniform else 0
            reached = self.lanes.source.reaches(lane, position.cursor, self.start.item_rows)
            if not reached or (ahead and ahead > self.lanes.size(lane)):
                raise CheckpointMismatchError(
                    f"The state is damaged: lane {lane} of {self.assignment.lanes} stands at {list(position.cursor)}, "
                    "behind its end. Load an earlier checkpoint."
                )

    def left(self, lane: int) -> int:
        """How many items a lane of a uniform pipeline had left at the start."""
        position = self.positions[lane]
        rows = self.lanes.size(lane) - position.cursor[0]
        return max(0, self.pipeline.items(rows, self.start.item_rows) - len(position.delivered_ahead))

    def own(self, reader: int, slot: int, lane: int) -> int:
        """How many of those a reader takes of a lane, which is at ``place`` of its rotation."""
        return max(0, -(-(self.left(lane) - self.assignment.phase(reader, slot)) // self.assignment.stride))

    def is_over(self) -> bool:
        """Whether a uniform pipeline had nothing left at the start."""
        return not any(self.left(lane) for lane in range(self.assignment.lanes))

    @cached_property
    def first_empty(self) -> int:
        """The first turn of a uniform pipeline that finds its lane run out."""
        turn, lanes = self.assignment.turn, self.assignment.lanes
        return min(turn + (lane - turn) % lanes + self.left(lane) * lanes for lane in range(lanes))

    def after(self, items: int) -> State:
        """The state of a uniform pipeline once every reader has delivered so many items."""
        turns = self.assignment.readers * items
        if self.assignment.turn + turns <= self.first_empty and self.start.positions.in_step:
            moved = self.start.positions.advanced(self.assignment.turn, turns, self.start.item_rows)
            return replace(self.start, turn=self.assignment.turn + turns, positions=moved)
        return self.after_each([items])

    def after_each(self, items: Sequence[int]) -> State:
        """The same where each rank has several workers, which have delivered these numbers of items."""
        assignment, ranks = self.assignment, self.assignment.readers // len(items)
        deliveries: list[list[LaneDelivery]] = [[] for _ in range(assignment.lanes)]
        turns = [assignment.turns_of(reader, items[reader // ranks], self.left) for reader in range(assignment.readers)]
        for reader in range(assignment.readers):
            for slot, lane in enumerate(assignment.rotation(reader)):
                end = self.end(reader, slot, min(assignment.taken(turns[reader], slot), self.own(reader, slot, lane)))
                deliveries[lane].append(LaneDelivery(assignment.phase(reader, slot), end, self._cursor(lane, end)))
        return joined_at(self.start, assignment, deliveries, turns)

    def end(self, reader: int, slot: int, delivered: int) -> int:
        """One more than the last ordinal, if a reader delivered so many items of the lane at a place; else 0."""
        return self.assignment.phase(reader, slot) + self.assignment.stride * (delivered - 1) + 1 if delivered else 0

    def _cursor(self, lane: int, end: int) -> Cursor:
        """A uniform pipeline's cursor behind the ordinal ``end - 1``."""
        position = self.positions[lane]
        items = position.ordinal(end - 1) + 1 if end else 0
        return (position.cursor[0] + items * self.start.item_rows, *position.cursor[1:])
