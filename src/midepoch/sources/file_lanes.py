"""The lanes of one epoch of rows of files: the order of each, and how its rows are read."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from midepoch._common.lazy import cached_property
from midepoch._common.types import F64, I64
from midepoch.checkpoint.lanes import Cursor, lane_cuts
from midepoch.errors import CheckpointMismatchError
from midepoch.order.orders import (
    Interval,
    Order,
    Sequential,
    Shuffle,
    ShuffledPieces,
    ShuffledWindows,
    lanes_by_file,
)
from midepoch.sources.appended import generations, lane_of_generations
from midepoch.sources.counted_rows import CountedFileRows
from midepoch.sources.lane import LaneRows
from midepoch.sources.open_files import OpenFiles
from midepoch.sources.source import (
    EpochCut,
    FindSurvey,
)
from midepoch.sources.where import matching
from midepoch.stages.counted import CountedItems, TracedRows
from midepoch.stages.flow import Flow, RowRun, noting
from midepoch.stages.kept import Kept

if TYPE_CHECKING:
    from midepoch.sources.files import FileRows


class FileRowsLanes:
    """The lanes of one epoch of rows of files."""

    def __init__(
        self,
        source: "FileRows",
        cut: EpochCut,
        survey: FindSurvey,
        gone: I64 | None = None,
    ) -> None:
        """``gone`` are the rising numbers of rows that were left out after the lanes were cut."""
        self._source, self._cut, self._survey, self._gone = source, cut, survey, gone
        self._left_out: dict[int, set[int]] = {}
        if cut.appended:
            generations(cut.appended, len(source.index.view.names))  # a damaged state raises here, not at the first row
            if source.where is not None or not all(isinstance(step, Shuffle) for step in source.steps):
                raise CheckpointMismatchError(
                    "The state is damaged: it says that files were appended to an epoch of filtered or selected rows. "
                    "Load an earlier checkpoint."
                )
        self._cuts = lane_cuts(source.size, cut.lanes)

    @cached_property
    def _by_file(self) -> Sequence[Order]:
        return lanes_by_file(self._source.base, self._source.steps, self._cut.epoch, self._cut.lanes)

    @cached_property
    def _order(self) -> Order:
        return self._source.order(self._cut.epoch)

    @cached_property
    def _generations(self) -> Sequence[Order]:
        return self._source.generation_orders(self._cut.epoch, self._cut.appended)

    def order(self, lane: int) -> Order:
        """The order of a lane."""
        if self._cut.appended:
            return lane_of_generations(self._generations, self._cut.lanes, lane)
        if self._cut.mode == "file":
            return self._by_file[lane]
        return Interval(self._order, self._cuts[lane], self._cuts[lane + 1])

    def size(self, lane: int) -> int:
        return self._by_file[lane].size if self._cut.mode == "file" else self._cuts[lane + 1] - self._cuts[lane]

    def reaches(self, lane: int, cursor: Cursor, margin: int) -> bool:
        return cursor[0] < self.size(lane) + margin

    def flow(self, opened: OpenFiles, lane: int, cursor: Cursor) -> Flow:
        flow = self._matching(opened, self._rows(opened, lane).runs(cursor[0], self.size(lane)))
        if self._gone is None:
            return flow
        if self._cut.masks:
            return noting(flow, partial(self._note_masked, self._left_out[lane]))
        assert flow.row_runs is not None
        return replace(flow, row_runs=self._without_gone(flow.row_runs))

    def _without_gone(self, runs: Iterator[RowRun]) -> Iterator[RowRun]:
        assert self._gone is not None
        for run in runs:
            kept = ~np.isin(run.keys, self._gone)
            if kept.all():
                yield run
            elif kept.any():
                yield RowRun(run.rows.keep(kept.tolist()), run.cursors[kept], run.keys[kept])

    def note_masked(self, lane: int, left_out: set[int]) -> None:
        self._left_out[lane] = left_out

    def _note_masked(self, left_out: set[int], keys: I64) -> None:
        assert self._gone is not None
        left_out.update(keys[np.isin(keys, self._gone)].tolist())

    def counted(self, lane: int, cursor: Cursor) -> CountedItems:
        rows = CountedFileRows(self, lane, cursor[0], self._survey(), self._gone_positions(lane))
        if self._source.uniform:
            return rows
        name, locate = "row {1:,} of {0}", self._source.locate
        return Kept(rows, lambda flow: flow, "read(filters=...)", lambda key: name.format(*locate(key)))

    def _gone_positions(self, lane: int) -> I64 | None:
        """The rising positions in a lane of the rows that were left out. Those of all even lanes are found together."""
        if self._gone is None or self._cut.mode == "file":
            return None if self._gone is None else np.sort(self.order(lane).positions(self._gone))
        first, last = np.searchsorted(self._gone_in_order, self._cuts[lane : lane + 2])
        return self._gone_in_order[first:last] - self._cuts[lane]

    @cached_property
    def _gone_in_order(self) -> I64:
        assert self._gone is not None
        return np.sort(self._order.positions(self._gone))

    def flow_at(self, opened: OpenFiles, lane: int, positions: Iterator[I64]) -> Flow:
        """The rows of a lane at rising positions. If there is a filter, it must keep them all."""
        return self._matching(opened, self._rows(opened, lane).runs_at(positions, self.size(lane)))

    def trace(self, numbers: I64) -> TracedRows:
        """The files of rows, given by their numbers in the whole dataset, and their numbers there."""
        view = self._source.index.view
        files = np.searchsorted(view.file_starts, numbers, "right") - 1
        return TracedRows.of_rows([view.names[file] for file in files.tolist()], numbers - view.file_starts[files])

    def row_numbers(self, file: str, row: int) -> I64:
        """The number of a row in the whole dataset; none if there is no such row."""
        view = self._source.index.view
        files = [number for number, name in enumerate(view.names) if name == file]
        numbers = [int(view.file_starts[number]) + row for number in files]
        ends = [int(view.file_starts[number + 1]) for number in files]
        return np.array([number for number, end in zip(numbers, ends, strict=True) if number < end], np.int64)

    def _rows(self, opened: OpenFiles, lane: int) -> LaneRows:
        """The rows of a lane, before any filter."""
        sizes, fetcher = opened.sizes, opened.fetcher
        # An expression costs about the same for few rows as for many, so it gets the rows of a whole step. Runs of
        # mapped files stay short: before each of them it is checked that the file has not changed.
        if self._source.where is not None and not fetcher.all_mapped:
            sizes = replace(sizes, run=sizes.step)
        # Runs of rows are small, so those of a window are held together, also of one that is cut by rows alone.
        window_bytes = opened.window_bytes if fetcher.has_runs else self._source.window_bytes
        if fetcher.cache is not None:
            fetcher.cache.plan(self._cut.epoch, self._next_uses)
        return LaneRows(fetcher, self.order(lane), sizes, window_bytes)

    def _next_uses(self, rows: I64) -> F64 | None:
        """How late in the next epoch each of these rows comes, from 0 to 1, if lanes are read at the same speed.

        None if rows of a block come at different times, or if some are left out.
        """
        order = self._source.order(self._cut.epoch + 1)
        order = order.inner if isinstance(order, ShuffledWindows) else order
        if not isinstance(order, Sequential | ShuffledPieces) or not order.size:
            return None
        positions = order.positions(np.minimum(rows, order.size - 1)).astype(np.float64)
        return positions * (self._cut.lanes / order.size) % 1.0

    def _matching(self, opened: OpenFiles, runs: Iterator[RowRun]) -> Flow:
        """The rows that match the filter, if there is one. Rows that a survey has chosen must all match."""
        source, where = self._source, self._source.where
        runs = opened.timed(runs)
        if where is None:
            return Flow(row_runs=runs)
        chosen = source.has_chosen_rows
        return Flow(row_runs=matching(runs, where.predicate, source.names, opened.sizes.run, source.locate, chosen))
