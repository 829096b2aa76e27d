"""Which splits of an epoch are done, told from where its lanes stand.

The order of an epoch is a sequence of *groups*: a group is one split, or, where a shuffle mixes the rows of several
small ones, a run of splits. So how many rows of a group are delivered follows from positions alone, and a split is done
when all rows of its group are, whichever lanes they fall into. Nothing here looks at single rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from midepoch.deal import Deal, lane_cuts
from midepoch.deletes import Deletes
from midepoch.order import Order, build_order
from midepoch.origin import FileRows
from midepoch.permute import I64
from midepoch.splitting import ShuffleSplits, Splitting

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
        self._index = rows.index
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
        self._cuts = np.array(lane_cuts(rows.size, lanes), np.int64)
        self._own = np.searchsorted(self._groups, self._cuts)
        self._names: dict[int, dict[str, Any]] = {}

    def told(self, known: Known) -> dict[str, Any]:
        """The splits that are done and those under way, in a few lines however many there are."""
        cuts, groups = self._cuts, self._groups
        delivered = np.minimum(known.delivered, np.diff(cuts))
        at = cuts[:-1] + delivered
        before = np.concatenate([[0], np.cumsum(delivered)])
        done = np.maximum(self._own[:-1], np.searchsorted(groups, at, "right") - 1)
        inside = self._below(groups, cuts[:-1], at, before)
        sizes = np.diff(groups)
        # The last group that begins in a lane may end in another, and is done when that one is past it too.
        ahead = np.minimum(done, len(sizes) - 1) if len(sizes) else done
        if len(sizes):
            whole = inside(ahead) == sizes[ahead]
            done = np.where(whole & (done < self._own[1:]), done + 1, done)
        done = np.minimum(done, self._own[1:])
        firsts = self._first_splits
        counts = (firsts[done] - firsts[self._own[:-1]]).tolist()
        told_lanes = known.lanes[:TOLD_LANES]
        each = TOLD_SPLITS // max(1, len(told_lanes))
        shards = []
        for lane in told_lanes:
            stop, count = int(firsts[done[lane]]), counts[lane]
            names = [self._name(split) for split in range(stop - min(each, count), stop)]
            shards.append({"lane": lane, "splits_done": count, "splits": names})
        return {
            "splits": len(self._starts) - 1,
            "splits_done": sum(counts),
            "rows_done": int(before[-1]),
            "completed_shards": shards,
            "splits_under_way": self._under_way(known, done, at, inside, sizes),
        }

    def _under_way(self, known: Known, done: I64, at: I64, inside: Any, sizes: I64) -> list[dict[str, Any]]:
        """The groups of which some rows are delivered and some are not, those of the lanes that are due first."""
        if not len(sizes):
            return []
        lanes = np.array(known.lanes[:TOLD_LANES], np.int64)
        here = np.searchsorted(self._groups, at[lanes], "right") - 1
        found = np.stack([here, self._own[lanes] - 1], axis=1).ravel()
        found = found[(found >= 0) & (found < len(sizes))]
        delivered = inside(found)
        told: dict[int, dict[str, Any]] = {}
        for group, rows in zip(found.tolist(), delivered.tolist(), strict=True):
            size = int(sizes[group])
            if group not in told and 0 < rows < size:
                first, stop = int(self._first_splits[group]), int(self._first_splits[group + 1])
                names = [self._name(split) for split in range(first, min(stop, first + TOLD_OF_GROUP))]
                told[group] = {"splits": names, "count": stop - first, "rows": size, "rows_delivered": rows}
        return list(told.values())

    @staticmethod
    def _below(groups: I64, cuts: I64, at: I64, before: I64) -> Any:
        """A function that says how many rows of groups are delivered, over all lanes."""

        def below(positions: I64) -> I64:
            lane = np.searchsorted(cuts, positions, "right") - 1
            found: I64 = before[lane] + np.minimum(positions, at[lane]) - cuts[lane]
            return found

        return lambda some: below(groups[some + 1]) - below(groups[some])

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


def known_of(state: Mapping[str, Any]) -> Known:
    """Where lanes stand by a state: all of them, or, where only one of several readers is known, its own.

    Of a lane that several readers share, one of them knows no more than where it stood when they began.
    """
    lanes, turn, part = state["lanes"], state["turn"], state["part"]
    delivered = np.repeat(
        np.array([_first(where) for _, where in state["cursors"]], np.int64), [count for count, _ in state["cursors"]]
    )
    due = [(turn + number) % lanes for number in range(min(lanes, TOLD_LANES))]
    if part is None or "shares" not in part:
        return Known(due, delivered)
    deal = Deal(lanes=lanes, turn=turn, readers=part["readers"])
    if deal.stride == 1:
        for lane, _, cursor in part["shares"]:
            delivered[lane] = _first(cursor)
    return Known(deal.rotation(part["reader"]), delivered)


def _first(cursor: int | Sequence[int] | Mapping[str, Any]) -> int:
    """The position of a cursor as a state writes it."""
    if isinstance(cursor, Mapping):
        return _first(cursor["at"])
    return cursor if isinstance(cursor, int) else int(cursor[0])
