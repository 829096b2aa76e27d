"""Which splits of an epoch are done, computed from the positions of its lanes.

The order of an epoch is a sequence of *groups*. A group is one split, or several small splits whose rows a shuffle
mixes. The number of delivered rows of a group follows from the positions alone. A split is done when all rows of its
group are, in whichever lanes they are. No code here looks at single rows.
"""

from typing import Any, NamedTuple

import numpy as np

from midepoch._common.hashing import I64
from midepoch.checkpoint.lanes import LaneAssignment, lane_cuts
from midepoch.checkpoint.state import State
from midepoch.integrations.structured.splits import ShuffleSplits, Splitting
from midepoch.order.orders import Order, build_order
from midepoch.order.selection import Deletes
from midepoch.sources.files import FileRows

REPORTED_LANES = 16
REPORTED_SPLITS = 32
REPORTED_OF_GROUP = 4


def is_order_of_splits(rows: FileRows) -> bool:
    """True if the order is that of the files, maybe without deleted rows, maybe with the splits shuffled."""
    steps = rows.steps[:-1] if rows.steps and isinstance(rows.steps[-1], ShuffleSplits) else rows.steps
    return all(isinstance(step, Deletes) for step in steps)


class LaneProgress(NamedTuple):
    """The delivered rows of lanes, as far as a state knows them."""

    lanes: list[int]
    """The lanes to report on, the next one first."""
    delivered: I64
    """The number of delivered rows of every lane."""


class SplitLayout:
    """The splits of one epoch in their order, and the lanes that cut it."""

    def __init__(self, rows: FileRows, splitting: Splitting, *, epoch: int, lanes: int) -> None:
        self.epoch, self.lanes = epoch, lanes
        self._index = rows.index.view
        last = rows.steps[-1] if rows.steps else None
        if isinstance(last, ShuffleSplits):
            number = len(rows.steps) - 1
            splits: Order = last.permuted(build_order(rows.base, rows.steps[:-1], epoch), epoch, number)
        else:
            splits = splitting.cut(build_order(rows.base, rows.steps, epoch))
        self._starts = splits.piece_starts("file")
        self._groups = last.groups(splits) if isinstance(last, ShuffleSplits) else self._starts
        self._first_splits = np.searchsorted(self._starts, self._groups)
        self._firsts = splits.rows(self._starts[:-1])
        self._lasts = splits.rows(self._starts[1:] - 1)
        cuts = np.array(lane_cuts(rows.size, lanes), np.int64)
        self._cuts, self._lane_sizes = cuts[:-1], np.diff(cuts)
        self._sizes = np.diff(self._groups)
        begun = np.searchsorted(self._groups, cuts)
        self._first_begun, self._end_begun = begun[:-1], begun[1:]  # the groups that begin in each lane
        self._names: dict[int, dict[str, Any]] = {}

    def report(self, progress: LaneProgress) -> dict[str, Any]:
        """The splits that are done and those under way. The report is short, however many splits there are."""
        delivered = np.minimum(progress.delivered, self._lane_sizes)
        positions = self._cuts + delivered
        before = np.concatenate([[0], np.cumsum(delivered)])
        current = np.searchsorted(self._groups, positions, "right") - 1
        done = np.minimum(np.maximum(self._first_begun, current), self._end_begun)
        # The last group that begins in a lane may end in a later lane, and is done when that lane is past it too.
        unfinished = np.flatnonzero((delivered == self._lane_sizes) & (done < self._end_begun))
        if len(unfinished):
            last = done[unfinished]
            done[unfinished] += self._delivered_of(last, positions, before) == self._sizes[last]
        firsts = self._first_splits
        counts = firsts[done] - firsts[self._first_begun]
        lanes = progress.lanes[:REPORTED_LANES]
        names_of_lane = REPORTED_SPLITS // max(1, len(lanes))
        shards = []
        for lane in lanes:
            stop, count = int(firsts[done[lane]]), int(counts[lane])
            names = [self._name(split) for split in range(stop - min(names_of_lane, count), stop)]
            shards.append({"lane": lane, "splits_done": count, "splits": names})
        return {
            "splits": len(self._starts) - 1,
            "splits_done": int(counts.sum()),
            "rows_done": int(before[-1]),
            "completed_shards": shards,
            "splits_under_way": self._under_way(lanes, current, positions, before),
        }

    def _under_way(self, lanes: list[int], current: I64, positions: I64, before: I64) -> list[dict[str, Any]]:
        """The groups of which some rows are delivered and some are not, those of the next lanes first."""
        candidates = [group for lane in lanes for group in (int(current[lane]), int(self._first_begun[lane]) - 1)]
        groups = np.array([group for group in dict.fromkeys(candidates) if 0 <= group < len(self._sizes)], np.int64)
        report = []
        for group, rows in zip(groups.tolist(), self._delivered_of(groups, positions, before).tolist(), strict=True):
            size = int(self._sizes[group])
            if 0 < rows < size:
                first, stop = int(self._first_splits[group]), int(self._first_splits[group + 1])
                names = [self._name(split) for split in range(first, min(stop, first + REPORTED_OF_GROUP))]
                report.append({"splits": names, "count": stop - first, "rows": size, "rows_delivered": rows})
        return report

    def _delivered_of(self, groups: I64, positions: I64, before: I64) -> I64:
        """The number of delivered rows of groups, over all lanes."""
        bounds = self._groups[np.stack([groups, groups + 1])]
        lane = np.searchsorted(self._cuts, bounds, "right") - 1
        below = before[lane] + np.minimum(bounds, positions[lane]) - self._cuts[lane]
        delivered: I64 = below[1] - below[0]
        return delivered

    def _name(self, split: int) -> dict[str, Any]:
        """The file of a split, and which rows of it; None for all of them."""
        name = self._names.get(split)
        if name is None:
            if len(self._names) > 8 * REPORTED_SPLITS:
                self._names.clear()
            starts = self._index.file_starts
            first, last = int(self._firsts[split]), int(self._lasts[split])
            file = int(np.searchsorted(starts, first, "right")) - 1
            begin, end = int(starts[file]), int(starts[file + 1])
            whole = (first, last + 1) == (begin, end)
            name = self._names[split] = {
                "path": self._index.names[file],
                "row_offset": None if whole else first - begin,
                "row_length": None if whole else last + 1 - first,
            }
        return dict(name)


def lane_progress(state: State) -> LaneProgress:
    """The progress of all lanes of an epoch that has begun; of one of several readers, that of its lanes.

    If readers share a lane, the state of one reader only knows where the lane was when they started.
    """
    assert state.lanes is not None
    runs, progress = state.positions.runs, state.reader_progress
    delivered = np.repeat(
        np.array([position.cursor[0] for _, position in runs], np.int64), [count for count, _ in runs]
    )
    if progress is None or progress.reader is None:
        next_lanes = [(state.turn + number) % state.lanes for number in range(min(state.lanes, REPORTED_LANES))]
        return LaneProgress(next_lanes, delivered)
    assignment = LaneAssignment(lanes=state.lanes, turn=state.turn, readers=progress.readers)
    if assignment.stride == 1:
        for lane, _, cursor in progress.deliveries:
            delivered[lane] = cursor[0]
    return LaneProgress(assignment.rotation(progress.reader), delivered)
