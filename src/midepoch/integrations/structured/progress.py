"""Which splits of an epoch are done, told from where its lanes stand.

The order of an epoch is a sequence of *groups*: a group is one split, or, where a shuffle mixes the rows of several
small ones, a run of splits. So how many rows of a group are delivered follows from positions alone, and a split is done
when all rows of its group are, whichever lanes they fall into. Nothing here looks at single rows.
"""

from typing import Any, NamedTuple

import numpy as np

from midepoch._common.types import I64
from midepoch.checkpoint.lanes import LaneAssignment, lane_cuts
from midepoch.checkpoint.state import State
from midepoch.integrations.structured.splits import ShuffleSplits, Splitting
from midepoch.order.deletes import Deletes
from midepoch.order.orders import Order, build_order
from midepoch.sources.files import FileRows

TOLD_LANES = 16
TOLD_SPLITS = 32
TOLD_OF_GROUP = 4


def of_splits(rows: FileRows) -> bool:
    """Whether an order is one of splits: that of the files, maybe less deleted rows, maybe with splits permuted."""
    steps = rows.steps[:-1] if rows.steps and isinstance(rows.steps[-1], ShuffleSplits) else rows.steps
    return all(isinstance(step, Deletes) for step in steps)


class Known(NamedTuple):
    """Where lanes stand, as far as a state knows."""

    lanes: list[int]
    """The lanes to tell of."""
    delivered: I64
    """How many rows of each lane are done."""


class Layout:
    """The splits of one epoch, in their order, and the lanes that it is cut into."""

    def __init__(self, rows: FileRows, splitting: Splitting, *, epoch: int, lanes: int) -> None:
        self.epoch, self.lanes = epoch, lanes
        self._index = rows.index.view
        last = rows.steps[-1] if rows.steps else None
        if isinstance(last, ShuffleSplits):
            number = len(rows.steps) - 1
            splits: Order = last.permuted(build_order(rows.base, rows.steps[:-1], epoch), epoch, number)
        else:
            splits = splitting.cut(build_order(rows.base, rows.steps, epoch))
        self._starts = splits.pieces("file")
        self._groups = last.groups(splits) if isinstance(last, ShuffleSplits) else self._starts
        self._first_splits = np.searchsorted(self._starts, self._groups)
        self._firsts = splits.rows(self._starts[:-1])
        self._lasts = splits.rows(self._starts[1:] - 1)
        cuts = np.array(lane_cuts(rows.size, lanes), np.int64)
        self._cuts, self._lane_sizes = cuts[:-1], np.diff(cuts)
        self._sizes = np.diff(self._groups)
        own = np.searchsorted(self._groups, cuts)
        self._own, self._own_end = own[:-1], own[1:]
        self._names: dict[int, dict[str, Any]] = {}

    def told(self, known: Known) -> dict[str, Any]:
        """The splits that are done and those under way, in a few lines however many there are."""
        delivered = np.minimum(known.delivered, self._lane_sizes)
        at = self._cuts + delivered
        before = np.concatenate([[0], np.cumsum(delivered)])
        here = np.searchsorted(self._groups, at, "right") - 1
        done = np.minimum(np.maximum(self._own, here), self._own_end)
        # The last group that begins in a lane may end in another, and is done when that one is past it too.
        open_end = np.flatnonzero((delivered == self._lane_sizes) & (done < self._own_end))
        if len(open_end):
            last = done[open_end]
            done[open_end] += self._inside(last, at, before) == self._sizes[last]
        firsts = self._first_splits
        counts = firsts[done] - firsts[self._own]
        told_lanes = known.lanes[:TOLD_LANES]
        each = TOLD_SPLITS // max(1, len(told_lanes))
        shards = []
        for lane in told_lanes:
            stop, count = int(firsts[done[lane]]), int(counts[lane])
            names = [self._name(split) for split in range(stop - min(each, count), stop)]
            shards.append({"lane": lane, "splits_done": count, "splits": names})
        return {
            "splits": len(self._starts) - 1,
            "splits_done": int(counts.sum()),
            "rows_done": int(before[-1]),
            "completed_shards": shards,
            "splits_under_way": self._under_way(told_lanes, here, at, before),
        }

    def _under_way(self, lanes: list[int], here: I64, at: I64, before: I64) -> list[dict[str, Any]]:
        """The groups of which some rows are delivered and some are not, those of the lanes that are due first."""
        found = [group for lane in lanes for group in (int(here[lane]), int(self._own[lane]) - 1)]
        groups = np.array([group for group in dict.fromkeys(found) if 0 <= group < len(self._sizes)], np.int64)
        told = []
        for group, rows in zip(groups.tolist(), self._inside(groups, at, before).tolist(), strict=True):
            size = int(self._sizes[group])
            if 0 < rows < size:
                first, stop = int(self._first_splits[group]), int(self._first_splits[group + 1])
                names = [self._name(split) for split in range(first, min(stop, first + TOLD_OF_GROUP))]
                told.append({"splits": names, "count": stop - first, "rows": size, "rows_delivered": rows})
        return told

    def _inside(self, groups: I64, at: I64, before: I64) -> I64:
        """How many rows of groups are delivered, over all lanes."""
        bounds = self._groups[np.stack([groups, groups + 1])]
        lane = np.searchsorted(self._cuts, bounds, "right") - 1
        below = before[lane] + np.minimum(bounds, at[lane]) - self._cuts[lane]
        found: I64 = below[1] - below[0]
        return found

    def _name(self, split: int) -> dict[str, Any]:
        """A split's file, and which rows of it; None for all of them."""
        found = self._names.get(split)
        if found is None:
            if len(self._names) > 8 * TOLD_SPLITS:
                self._names.clear()
            starts = self._index.file_starts
            first, last = int(self._firsts[split]), int(self._lasts[split])
            file = int(np.searchsorted(starts, first, "right")) - 1
            begin, end = int(starts[file]), int(starts[file + 1])
            whole = (first, last + 1) == (begin, end)
            found = self._names[split] = {
                "path": self._index.names[file],
                "row_offset": None if whole else first - begin,
                "row_length": None if whole else last + 1 - first,
            }
        return dict(found)


def known_of(state: State) -> Known:
    """What a state of a begun epoch knows: the positions of all lanes, or those of one reader's lanes.

    One reader of a lane that several share only knows the lane's position at the start.
    """
    assert state.lanes is not None
    runs, progress = state.positions.runs, state.reader_progress
    delivered = np.repeat(
        np.array([position.cursor[0] for _, position in runs], np.int64), [count for count, _ in runs]
    )
    if progress is None or progress.reader is None:
        due = [(state.turn + number) % state.lanes for number in range(min(state.lanes, TOLD_LANES))]
        return Known(due, delivered)
    assignment = LaneAssignment(lanes=state.lanes, turn=state.turn, readers=progress.readers)
    if assignment.stride == 1:
        for lane, _, cursor in progress.deliveries:
            delivered[lane] = cursor[0]
    return Known(assignment.rotation(progress.reader), delivered)
