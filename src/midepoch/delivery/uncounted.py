"""Sessions of pipelines that are not counted: readers report cursors, and a turn at a lane that has run out is empty.

Turn ``i`` takes the next item of lane ``i % lanes``, and reader ``c`` of ``C`` takes the turns ``i ≡ turn + c (mod C)``
(:mod:`midepoch.checkpoint.lanes` has the arithmetic). How many items a lane has is learned by reading it to its end.
"""

from dataclasses import replace

from midepoch.checkpoint.lanes import Cursor, LanePosition
from midepoch.checkpoint.state import MOST_APART, LanePositions, ReaderProgress, State
from midepoch.delivery.passes import Progress
from midepoch.delivery.session import AnySession
from midepoch.pipeline.pipeline import Pipeline


class UncountedSession(AnySession):
    """The position of every lane when these readers started, and how the turns are assigned to them."""

    counted = False

    def __init__(self, pipeline: Pipeline, start: State, readers: int) -> None:
        super().__init__(pipeline, start, readers)
        self.assignment = start.assigned_to(readers)


class ReportedProgress(Progress):
    """What one reader of an uncounted session has delivered: the cursors that came with its items."""

    session: UncountedSession

    def __init__(
        self,
        session: UncountedSession,
        reader: int,
        *,
        workers: int = 1,
        delivered: ReaderProgress | None = None,
        own_sum: int = 0,
    ) -> None:
        turns = 0 if delivered is None else delivered.turns_taken
        super().__init__(session, reader, workers=workers, turns=turns, own_sum=own_sum)
        self.rotation = session.assignment.rotation(reader)
        self.cursors: list[Cursor] = [session.positions[lane].cursor for lane in self.rotation]
        self._limits: list[int | None] = [None] * len(self.rotation)
        """For each slot, the number of items that the reader takes of its lane; None while that is unknown."""
        if delivered is not None:
            self._restore(delivered)

    def _restore(self, delivered: ReaderProgress) -> None:
        """Take over the cursors. A lane with fewer items than turns has run out."""
        assignment = self.session.assignment
        deliveries = {lane: (end, cursor) for lane, end, cursor in delivered.deliveries}
        for slot, lane in enumerate(self.rotation):
            end, self.cursors[slot] = deliveries.get(lane, (0, self.cursors[slot]))
            items = len(range(assignment.phase(self.reader, slot), end, assignment.stride))
            if items < assignment.turns_at(slot, delivered.turns_taken):
                self._limits[slot] = items

    @property
    def has_rows(self) -> bool:  # type: ignore[override]
        return any(map(self.session.lanes.size, self.rotation))

    def check(self) -> None:
        super().check()
        for lane, cursor in zip(self.rotation, self.cursors, strict=True):
            self.session.check_cursor(lane, cursor)

    def reader_progress(self) -> ReaderProgress:
        self._settle()
        ends = ((lane, self.end(slot), self.cursors[slot]) for slot, lane in enumerate(self.rotation))
        return ReaderProgress(
            readers=self.session.readers,
            reader=self.reader,
            turns_taken=self.turns_taken,
            deliveries=tuple((lane, end, cursor) for lane, end, cursor in ends if end),
        )

    def _settle(self) -> int:
        """Move the cursors to the turns that are taken. Returns how many of the current ones are."""
        taken = self._turns_of_current
        if self._current is None:
            return taken
        cursors = self._current.cursors
        for turn in range(max(0, taken - len(cursors)), taken):  # in their order: several may be at one lane
            place, number = divmod(turn, len(cursors))
            slot = (self._turns_before_current + turn) % len(self.rotation)
            if len(cursors[number]):
                self.cursors[slot] = tuple(map(int, cursors[number][place]))
            elif self._limits[slot] is None:
                self._limits[slot] = self.session.assignment.turns_at(slot, self._turns_before_current + number)
        return taken

    def upcoming(self) -> tuple[int, Cursor] | None:
        self._settle()
        assignment = self.session.assignment
        # That a lane ends early is learned by reading only, and only a partial state stores it. The answer
        # must be the same before a state is saved and after it is loaded.
        limits_are_kept = assignment.readers > 1
        for turns_taken in range(self.turns_taken, self.turns_taken + len(self.rotation)):
            slot = turns_taken % len(self.rotation)
            lane, items = self.rotation[slot], assignment.turns_at(slot, turns_taken)
            cursor = self.cursors[slot]
            limit = self._limits[slot] if limits_are_kept else None
            if cursor[0] < self.session.lanes.size(lane) and (limit is None or items < limit):
                return lane, cursor
        return None

    def _delivered(self, slot: int) -> int:
        """The number of items handed over of the lane at a slot."""
        self._settle()
        turns, limit = self.session.assignment.turns_at(slot, self.turns_taken), self._limits[slot]
        return turns if limit is None else min(turns, limit)

    def end(self, slot: int) -> int:
        """One more than the last ordinal handed over of the lane at a slot, or 0."""
        assignment, delivered = self.session.assignment, self._delivered(slot)
        return assignment.phase(self.reader, slot) + assignment.stride * (delivered - 1) + 1 if delivered else 0

    def position(self, slot: int) -> tuple[LanePosition, int]:
        """Where the lane at a slot is, and how many of its items come before the next that this reader takes."""
        assignment, position, end = self.session.assignment, self.session.positions[self.rotation[slot]], self.end(slot)
        if end:
            return position.after(end, self.cursors[slot]), assignment.stride - 1
        return position, assignment.phase(self.reader, slot)

    @property
    def items(self) -> int:
        return sum(map(self._delivered, range(len(self.rotation)))) + self.repeated

    def _state(self) -> State:
        session, delivered = self.session, self.reader_progress()
        if session.readers > 1:
            return replace(session.start, reader_progress=delivered)
        positions = list(session.positions)
        for lane, end, cursor in delivered.deliveries:
            positions[lane] = positions[lane].after(end, cursor)
        packed = LanePositions.pack((1, position) for position in positions)
        return replace(session.start, turn=session.start.turn + self.turns_taken, positions=packed)

    def following(self) -> State:
        """The state in the next epoch, once this reader has delivered everything of this one.

        If there are other readers, they may be in this epoch for longer. So the state keeps what this reader delivered
        of it, until it is ``MOST_APART`` epochs ahead.
        """
        start = self.session.start
        if self.session.readers == 1:
            return start.following()
        finished = replace(self.state(), earlier=(), later=())
        return replace(start.following(), earlier=(*start.earlier, finished)[-MOST_APART:])
