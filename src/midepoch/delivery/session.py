"""A session: part of a run with the same readers. What each reader delivers is counted from the session's start.

This one is of pipelines that are not counted: readers report cursors, and a turn at a lane that has run out is empty.
"""

import sys
from collections.abc import Callable, Sequence

import numpy as np

from midepoch._common.types import I64
from midepoch.checkpoint.lanes import Cursor, LaneAssignment, LanePosition
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

    counted = False
    """True if what readers have delivered follows from the number of their items."""
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

    def check(self) -> None:
        """Raise if a lane is at a position, or the session at a turn, that no run can have reached."""
        for lane, position in enumerate(self.positions):
            self.check_cursor(lane, position.cursor)

    def check_cursor(self, lane: int, cursor: Cursor, ahead: int = 0) -> None:
        """Raise if a cursor, or the last item ``ahead`` of it, is after the lane's end."""
        reached = self.lanes.reaches(lane, cursor, self.start.item_rows)
        if not reached or ahead > self.lanes.size(lane):
            raise CheckpointMismatchError(
                f"The state is damaged: the cursor {list(cursor)} of lane {lane} of {len(self.positions)} is after "
                "the lane's end. Load an earlier checkpoint."
            )

    def reader_items(self, reader: int) -> int:
        """The number of items that a reader of a counted session takes."""
        raise NotImplementedError

    def is_complete(self, items: int) -> bool:
        """True if no reader of a counted session has more than this number of items."""
        raise NotImplementedError

    def upcoming(self, reader: int, items: int) -> tuple[int, Cursor] | None:
        """The lane and cursor of a reader's next item, where cursors follow from counts alone."""
        raise NotImplementedError

    def limits(self, reader: int) -> list[int | None]:
        """For each slot, the number of items that a reader takes of its lane; None if that is unknown."""
        return [None] * self.assignment.period

    def after(self, items: int) -> State:
        """The state of a counted session after every reader has delivered this number of items, or all it has."""
        raise NotImplementedError

    def after_each(self, items: Sequence[int]) -> State:
        """The same if each rank has several workers; ``items`` has the number of items of each worker."""
        raise NotImplementedError

    def items_at(self, reader: int, turns: I64) -> tuple[I64, I64]:
        """The lanes of a reader's turns, counted from 0, and the ordinals of their items, which may not exist."""
        assignment = self.assignment
        rounds, slots = np.divmod(turns, assignment.period)
        phases = [assignment.phase(reader, slot) for slot in range(assignment.period)]
        return np.array(assignment.rotation(reader))[slots], np.array(phases)[slots] + assignment.stride * rounds

    def end(self, reader: int, slot: int, delivered: int) -> int:
        """One more than the last ordinal that a reader delivered, if it delivered that many items at a slot; else 0."""
        return self.assignment.phase(reader, slot) + self.assignment.stride * (delivered - 1) + 1 if delivered else 0
