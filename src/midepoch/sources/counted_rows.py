"""The rows of a lane by their numbers, from a position on, with what a survey knows of them."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from midepoch._common.lazy import cached_property
from midepoch._common.types import I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.order.orders import Order
from midepoch.sources.open_files import OpenFiles
from midepoch.sources.source import RowFacts
from midepoch.stages.counted import CountedItems, TracedRows, Wanted
from midepoch.stages.flow import Flow

NEAR_ROWS = 8192
MAX_NEAR = 4

if TYPE_CHECKING:
    from midepoch.sources.file_lanes import FileRowsLanes


class CountedFileRows(CountedItems):
    """The rows of a lane from a position on. The survey is indexed by row number."""

    def __init__(
        self, lanes: "FileRowsLanes", lane: int, start: int, survey: RowFacts | None, gone: I64 | None = None
    ) -> None:
        """``gone`` are the rising positions of rows that are passed over."""
        self._lanes, self._lane, self._start, self._survey = lanes, lane, start, survey
        self._gone = np.empty(0, np.int64) if gone is None else gone[gone >= start]
        self._kept_before = self._gone - start - np.arange(len(self._gone))
        self._left = max(0, lanes.size(lane) - start - len(self._gone))
        self._near: dict[int, I64] = {}

    @cached_property
    def _order(self) -> Order:
        return self._lanes.order(self._lane)

    def has(self, number: int) -> bool:
        return number < self._left

    def total(self) -> int:
        return self._left

    def cursor(self, items: int) -> Cursor:
        if not items or not len(self._gone):
            return (self._start + items,)
        return (int(self._positions(np.array([items - 1]))[0]) + 1,)

    def _positions(self, numbers: I64) -> I64:
        """The positions in the lane of these rows."""
        if not len(self._gone):
            return numbers + self._start
        return numbers + self._start + np.searchsorted(self._kept_before, numbers, "right")

    def flow(self, opened: OpenFiles, wanted: Wanted) -> Flow:
        return self._lanes.flow_at(opened, self._lane, map(self._positions, wanted))

    def keys(self, numbers: I64) -> I64:
        """The row numbers. Those of near items are computed together, because a shuffle permutes whole windows."""
        if not len(numbers):
            return numbers
        positions = self._positions(numbers)
        first, last = (int(position) // NEAR_ROWS for position in (positions[0], positions[-1]))
        if last - first >= MAX_NEAR:
            return self._order.rows(positions)
        rows = np.concatenate([self._near_rows(chunk) for chunk in range(first, last + 1)])
        return rows[positions - first * NEAR_ROWS]

    def _near_rows(self, chunk: int) -> I64:
        if chunk not in self._near:
            while len(self._near) >= MAX_NEAR:
                del self._near[next(iter(self._near))]
            begin, end = chunk * NEAR_ROWS, min((chunk + 1) * NEAR_ROWS, self._order.size)
            self._near[chunk] = self._order.rows(np.arange(begin, end))
        return self._near[chunk]

    def kept(self, numbers: I64) -> npt.NDArray[np.bool_]:
        assert self._survey is not None
        return self._survey.kept(self.keys(numbers))

    def trace(self, numbers: I64) -> TracedRows:
        return self._lanes.trace(self.keys(numbers))

    def find(self, file: str, row: int) -> I64:
        positions = self._order.positions(self._lanes.row_numbers(file, row))
        positions = np.sort(positions[(positions >= self._start) & ~np.isin(positions, self._gone)])
        return positions - self._start - np.searchsorted(self._gone, positions)

    def lengths(self, numbers: I64) -> I64:
        assert self._survey is not None
        return self._survey.lengths(self.keys(numbers))
