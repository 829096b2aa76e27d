"""Sessions of pipelines that are not counted: readers report cursors, and a turn at a lane that has run out is empty.

Turn ``i`` takes the next item of lane ``i % lanes``, and reader ``c`` of ``C`` takes the turns ``i ≡ turn + c (mod C)``
(:mod:`midepoch.checkpoint.lanes` has the arithmetic). How many items a lane has is learned by reading it to its end.
"""

from dataclasses import replace

from midepoch.checkpoint.lanes import Cursor, LanePosition
from midepoch.checkpoint.state import MOST_APART, LanePositions, ReaderProgress, State
from midepoch.delivery.passes import Progress
from midepoch.delivery.session import AnySession


class UncountedSession(AnySession):
    """The position of every lane when these readers started, and how the turns are assigned to them."""

    counted = False


class ReportedProgress(Progress):
    """What one reader of an uncounted session has delivered: the cursors that came with its items."""

    session: UncountedSession

    def __init__(
        self, session: UncountedSession, reader: int, delivered: ReaderProgress | None = None, workers: int = 1
    ) -> None:
        super().__init__(session, reader, delivered, workers)
        self.rotation = session.assignment.rotation(reader)
        known = {} if delivered is None else {lane: (end, cursor) for lane, end, cursor in delivered.deliveries}
        self._delivered = [known.get(lane, (0, session.positions[lane].cursor)) for lane in self.rotation]
        """For each slot, one more than the last ordinal handed over of its lane, or 0, and the lane's cursor there."""
        self._settled = 0  # how many items of the current turns are in it

    @property
    def has_rows(self) -> bool:  # type: ignore[override]
        return any(map(self.session.lanes.size, self.rotation))

    def check(self) -> None:
        super().check()
        for lane, cursor in zip(self.rotation, self.cursors, strict=True):
            self.session.check_cursor(lane, cursor)

    @property
    def cursors(self) -> list[Cursor]:
        """The cursors of this reader's lanes."""
        self._settle()
        return [cursor for _, cursor in self._delivered]

    def reader_progress(self) -> ReaderProgress:
        self._settle()
        deliveries = zip(self.rotation, self._delivered, strict=True)
        return ReaderProgress(
            readers=self.session.readers,
            reader=self.reader,
            turns_taken=self.turns_taken,
            deliveries=tuple((lane, end, cursor) for lane, (end, cursor) in deliveries if end),
        )

    def _settle(self) -> None:
        """Move the cursors to the items that were handed over."""
        current, items = self._handed_over()
        period, assignment = len(self.rotation), self.session.assignment
        # If every turn has an item, the last round has the last item of each lane.
        first = max(self._settled, items - period) if current.places is None else self._settled
        for item in range(first, items):
            turns, slot = divmod(self._turns_before_current + current.turns_until(item + 1) - 1, period)
            end = assignment.phase(self.reader, slot) + assignment.stride * turns + 1
            self._delivered[slot] = end, tuple(map(int, current.cursors[item]))
        self._settled = items

    def _finish_current(self) -> None:
        super()._finish_current()
        self._settled = 0

    def upcoming(self) -> tuple[int, Cursor] | None:
        cursors = self.cursors
        assignment = self.session.assignment
        # That a lane ends early is learned by reading only, and only a partial state stores it. The answer
        # must be the same before a state is saved and after it is loaded.
        ends_are_kept = assignment.readers > 1
        for turns_taken in range(self.turns_taken, self.turns_taken + len(self.rotation)):
            slot = turns_taken % len(self.rotation)
            lane, has_ended = self.rotation[slot], self._items_of(slot) < assignment.turns_at(slot, turns_taken)
            if cursors[slot][0] < self.session.lanes.size(lane) and not (ends_are_kept and has_ended):
                return lane, cursors[slot]
        return None

    def _items_of(self, slot: int) -> int:
        """The number of items handed over of the lane at a slot. It is that of its turns, until the lane runs out."""
        self._settle()
        assignment = self.session.assignment
        return len(range(assignment.phase(self.reader, slot), self._delivered[slot][0], assignment.stride))

    def position(self, slot: int) -> tuple[LanePosition, int]:
        """Where the lane at a slot is, and how many of its items come before the next that this reader takes."""
        self._settle()
        assignment, position = self.session.assignment, self.session.positions[self.rotation[slot]]
        end, cursor = self._delivered[slot]
        if end:
            return position.after(end, cursor), assignment.stride - 1
        return position, assignment.phase(self.reader, slot)

    @property
    def items(self) -> int:
        return sum(map(self._items_of, range(len(self.rotation)))) + self.repeated

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
