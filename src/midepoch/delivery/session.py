"""A session: part of a run with the same readers. What each reader delivers is counted from the session's start."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from midepoch._common.lazy import cached_property
from midepoch._common.text import count
from midepoch._common.types import I64
from midepoch.checkpoint.lanes import Cursor, LaneAssignment, LaneDelivery, LanePosition
from midepoch.checkpoint.merge import state_after
from midepoch.checkpoint.state import State
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.lanes import PipelineLanes
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.read_counts import ReadCounts, sum_counts
from midepoch.sources.source import OpenSource

NO_END = 1 << 62
"""A turn, or the number of an item, that no reader reaches."""


class Session:
    """The position of every lane when these readers started, and how the turns are assigned to them."""

    tracks_cursors = True
    """True if readers report cursors with their items; false if cursors follow from counts alone."""
    is_endless = False
    """True if the epoch never ends, as with ``mix(stop="never")``."""

    def __init__(self, pipeline: Pipeline, start: State, readers: int) -> None:
        """Begin at ``start``, a complete state of an epoch that is cut into lanes."""
        if start.lanes is None or start.reader_progress is not None:
            raise CheckpointMismatchError(
                "The state is damaged: it is not the complete state of an epoch with lanes. Load an earlier checkpoint."
            )
        self.pipeline, self.start = pipeline, start
        self.lanes = PipelineLanes.of(pipeline, start)
        self.assignment = LaneAssignment(lanes=start.lanes, turn=start.turn, readers=readers)
        self.positions: list[LanePosition] = start.positions.expand()
        self._opened: list[OpenSource] = []
        self._closed_counts = ReadCounts()
        self.function_seconds = 0.0
        """How long functions of the user have taken in this process."""

    def open_source(self, lanes: int) -> OpenSource:
        """What this process holds open to read this number of lanes."""
        self._opened.append(self.pipeline.source.open(lanes))
        return self._opened[-1]

    def close_source(self, opened: OpenSource, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Close what was opened to read. What that has taken stays counted.

        While the interpreter shuts down nothing is counted, because modules may have been cleared already.
        """
        self._opened.remove(opened)
        opened.close()
        if is_finalizing():
            return
        self._closed_counts = sum_counts((self._closed_counts, opened.counts()))

    def read_counts(self) -> ReadCounts:
        """What reading in this process has taken so far."""
        return sum_counts((self._closed_counts, *(opened.counts() for opened in self._opened)))

    @property
    def counted(self) -> bool:
        """True if what readers have delivered follows from the number of their items."""
        return self.pipeline.uniform

    def check(self) -> None:
        """Raise if a lane is at a position, or the session at a turn, that no run can have reached."""
        for lane, position in enumerate(self.positions):
            ahead = position.delivered_ahead[-1] if position.delivered_ahead and self.pipeline.uniform else 0
            self.check_cursor(lane, position.cursor, ahead)
        self._check_turn()

    def check_cursor(self, lane: int, cursor: Cursor, ahead: int = 0) -> None:
        """Raise if a cursor, or the last item ``ahead`` of it, is after the lane's end."""
        reached = self.lanes.reaches(lane, cursor, self.start.item_rows)
        if not reached or (ahead and ahead > self.lanes.size(lane)):
            raise CheckpointMismatchError(
                f"The state is damaged: the cursor {list(cursor)} of lane {lane} of {len(self.positions)} is after "
                "the lane's end. Load an earlier checkpoint."
            )

    def _check_turn(self) -> None:
        """Raise if a uniform pipeline cannot have taken this number of turns, or has moved without a turn."""
        if not self.pipeline.uniform or self.start.edits:
            return
        lanes, turn = self.assignment.lanes, self.assignment.turn
        # The first lane is the longest, so the first turn of an epoch delivered an item of it.
        first = self.positions[0]
        still = self.start.mode == "example" and not any(first.cursor) and 0 not in first.delivered_ahead
        rows = sum(self.lanes.size(lane) for lane in range(lanes))
        if turn > lanes * (rows + 1) or (turn and still):
            raise CheckpointMismatchError(
                f"The state is damaged: {count('turn', turn)} at {count('lane', lanes)} of {count('row', rows)} do not "
                f"bring the first lane to {list(first.cursor)}. Load an earlier checkpoint."
            )

    def items_left(self, lane: int) -> int:
        """The number of items that a lane of a uniform pipeline had left at the start."""
        position = self.positions[lane]
        rows = self.lanes.size(lane) - position.cursor[0]
        return max(0, self.pipeline.items(rows, self.start.item_rows) - len(position.delivered_ahead))

    def reader_items(self, reader: int) -> list[int]:
        """The number of those items that a reader takes, for each slot of its rotation."""
        return [
            self.assignment.reader_items(reader, slot, self.items_left(lane))
            for slot, lane in enumerate(self.assignment.rotation(reader))
        ]

    def is_complete(self, items: int) -> bool:
        """True if no reader of a counted pipeline has more than this number of items."""
        return items >= max(sum(self.reader_items(reader)) for reader in range(self.assignment.readers))

    def turns_for(self, reader: int, items: int) -> int:
        """The number of turns in which a reader gets this number of items."""
        return self.assignment.turns_for(reader, items, self.items_left)

    def upcoming(self, reader: int, items: int) -> tuple[int, Cursor] | None:
        """The lane and cursor of a reader's next item, where cursors follow from counts alone."""
        raise NotImplementedError

    def limits(self, reader: int) -> list[int | None]:
        """For each slot, the number of items that a reader takes of its lane; None if that is unknown."""
        return [*self.reader_items(reader)] if self.counted else [None] * self.assignment.period

    def is_over(self) -> bool:
        """True if a uniform pipeline had nothing left at the start."""
        return not any(self.items_left(lane) for lane in range(self.assignment.lanes))

    @cached_property
    def first_empty_turn(self) -> int:
        """The first turn of a uniform pipeline that is at a lane that has run out."""
        turn, lanes = self.assignment.turn, self.assignment.lanes
        return min(turn + (lane - turn) % lanes + self.items_left(lane) * lanes for lane in range(lanes))

    def after(self, items: int) -> State:
        """The state of a uniform pipeline after every reader has delivered this number of items."""
        turn_count = self.assignment.readers * items
        if self.assignment.turn + turn_count <= self.first_empty_turn and self.start.positions.in_step:
            moved = self.start.positions.advanced(self.assignment.turn, turn_count, self.start.item_rows)
            return replace(self.start, turn=self.assignment.turn + turn_count, positions=moved)
        return self.after_each([items])

    def after_each(self, items: Sequence[int]) -> State:
        """The same if each rank has several workers; ``items`` has the number of items of each worker."""
        assignment, ranks = self.assignment, self.assignment.readers // len(items)
        deliveries: list[list[LaneDelivery]] = [[] for _ in range(assignment.lanes)]
        turns_taken = [
            assignment.turns_for(reader, items[reader // ranks], self.items_left)
            for reader in range(assignment.readers)
        ]
        for reader in range(assignment.readers):
            rotation, limits = assignment.rotation(reader), self.reader_items(reader)
            for slot, (lane, limit) in enumerate(zip(rotation, limits, strict=True)):
                end = self.end(reader, slot, min(assignment.turns_at(slot, turns_taken[reader]), limit))
                deliveries[lane].append(LaneDelivery(assignment.phase(reader, slot), end, self._cursor(lane, end)))
        return state_after(self.start, assignment, deliveries, dict(enumerate(turns_taken)))

    def items_at(self, reader: int, turns: I64) -> tuple[I64, I64]:
        """The lanes of a reader's turns, counted from 0, and the ordinals of their items, which may not exist."""
        assignment = self.assignment
        rounds, slots = np.divmod(turns, assignment.period)
        phases = [assignment.phase(reader, slot) for slot in range(assignment.period)]
        return np.array(assignment.rotation(reader))[slots], np.array(phases)[slots] + assignment.stride * rounds

    def end(self, reader: int, slot: int, delivered: int) -> int:
        """One more than the last ordinal that a reader delivered, if it delivered that many items at a slot; else 0."""
        return self.assignment.phase(reader, slot) + self.assignment.stride * (delivered - 1) + 1 if delivered else 0

    def _cursor(self, lane: int, end: int) -> Cursor:
        """The cursor of a uniform pipeline after the ordinal ``end - 1``."""
        position = self.positions[lane]
        items = position.offset(end - 1) + 1 if end else 0
        return (position.cursor[0] + items * self.start.item_rows, *position.cursor[1:])
