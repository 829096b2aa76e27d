"""Sessions of uniform pipelines, whose items are counted by a formula: cursors follow from the number of items.

If lanes are whole files, and as many for each reader, each lane belongs to one reader, so that no file is read by two.
Then every reader has a sequence of its own. Its next item is that of the lane of which least is delivered, the first of
these: so it follows from the cursors alone.
"""

from collections.abc import Sequence
from dataclasses import replace

from midepoch._common.lazy import cached_property
from midepoch._common.text import count
from midepoch.checkpoint.lanes import LanePosition
from midepoch.checkpoint.state import LanePositions, State
from midepoch.delivery.counted import CountedSession
from midepoch.delivery.rounds import Rounds
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.pipeline import Pipeline


class UniformSession(CountedSession):
    """A counted session in which nothing has to be counted."""

    is_endless = False

    def check(self) -> None:
        for lane, position in enumerate(self.positions):
            self.check_cursor(lane, position.cursor, position.delivered_ahead[-1] if position.delivered_ahead else 0)
        if self.start.edits:
            return
        lanes, turn = len(self.positions), self.start.turn
        # The first lane is the longest, so the first turn of an epoch delivered an item of it.
        first = self.positions[0]
        still = self.start.mode == "example" and not any(first.cursor) and 0 not in first.delivered_ahead
        rows = sum(self.lanes.size(lane) for lane in range(lanes))
        if turn > lanes * (rows + 1) or (turn and still):
            raise CheckpointMismatchError(
                f"The state is damaged: {count('turn', turn)} at {count('lane', lanes)} of {count('row', rows)} do not "
                f"bring the first lane to {list(first.cursor)}. Load an earlier checkpoint."
            )

    @cached_property
    def _totals(self) -> list[int]:
        item_rows = self.start.item_rows
        return [
            max(
                0,
                self.pipeline.items(self.lanes.size(lane) - position.cursor[0], item_rows)
                - len(position.delivered_ahead),
            )
            for lane, position in enumerate(self.positions)
        ]

    def has(self, lane: int, ordinal: int) -> bool:
        return ordinal < self._totals[lane]

    def total(self, lane: int) -> int:
        return self._totals[lane]

    def lane_after(self, lane: int, ordinals: int) -> LanePosition:
        position = self.positions[lane]
        if ordinals == 0:
            return position
        first, *rest = position.cursor
        rows = first + (position.offset(ordinals - 1) + 1) * self.start.item_rows
        return position.after(ordinals, (min(rows, self.lanes.size(lane)), *rest))

    def after(self, items: int) -> State:
        number, start = self.assignment.readers * items, self.start
        segment = self.rounds.segment_at(0)
        # Before the last round of all lanes their items are whole, and neighbouring lanes move alike.
        whole_rounds = 0 if segment is None or len(segment.lanes) < len(self.positions) else segment.rounds - 1
        if start.positions.in_step and number <= whole_rounds * len(self.positions):
            moved = start.positions.advanced(start.turn, number, start.item_rows)
            return replace(start, turn=start.turn + number, positions=moved)
        return super().after(items)


class FileSession(UniformSession):
    """A uniform session whose lanes are whole files: lane ``l`` belongs to reader ``l % readers``."""

    def __init__(self, pipeline: Pipeline, start: State, readers: int) -> None:
        """Begin at a state of lanes of which no items were delivered ahead. There are as many for each reader."""
        super().__init__(pipeline, start, readers)
        self._of_readers: dict[int, Rounds] = {}

    def rounds_of(self, reader: int) -> Rounds:
        """The sequence of a reader's items. An item's round is its place in its lane."""
        if reader not in self._of_readers:
            lanes = range(reader, len(self.positions), self.assignment.readers)
            begins = {lane: -(-self.positions[lane].cursor[0] // self.start.item_rows) for lane in lanes}
            self._of_readers[reader] = Rounds(lanes, self, begins=begins, formula=True)
        return self._of_readers[reader]

    def sequence(self, reader: int) -> tuple[Rounds, int, int]:
        return self.rounds_of(reader), 0, 1

    def is_complete(self, items: int) -> bool:
        return all(self.item(reader, items) is None for reader in range(self.assignment.readers))

    def after(self, items: int) -> State:
        return self.after_each([items])

    def after_each(self, items: Sequence[int]) -> State:
        ranks, positions = self.assignment.readers // len(items), list(self.positions)
        if len(items) > 1 and ranks > 1:
            self._check_in_step(items, ranks)
        most = 0
        for reader in range(self.assignment.readers):
            rounds = self.rounds_of(reader)
            delivered = min(items[reader // ranks], rounds.total())
            most = max(most, delivered)
            for lane, ordinals in rounds.delivered(delivered).items():
                positions[lane] = self.lane_after(lane, ordinals)
        # Each rank has a turn at every step of the rank that has most.
        steps = sum(items) if len(items) > 1 else min(items[0], most)
        packed = LanePositions.pack((1, position) for position in positions)
        return replace(self.start, turn=self.start.turn + ranks * steps, positions=packed)

    def _check_in_step(self, items: Sequence[int], ranks: int) -> None:
        """Raise if workers of some rank have run out: then those of other ranks delivered other numbers of items."""
        totals = [self.reader_items(reader) for reader in range(self.assignment.readers)]
        if max(items) - min(items) > 1 or any(items[reader // ranks] > total for reader, total in enumerate(totals)):
            raise CheckpointMismatchError(
                "The checkpoint holds what the workers of one rank delivered of whole files. Some workers had run out, "
                "so it is unknown what those of the other ranks delivered. Resume each rank from its own checkpoint, "
                "with as many workers as before; or use shard(mode='example') or midepoch.Loader, with which the state "
                "of one rank restores all."
            )
