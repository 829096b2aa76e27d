"""The lanes of one epoch of rows of files: the order of each, its rows as they are read, and the same rows counted.

Files may be appended to an epoch that is under way. A *generation* is the files that came together: first those with
which the epoch began, then those of each append. Each generation has the order that an epoch of its files alone would
have. Lanes are as long as in an epoch of all files, and each lane reads its rows of the first generation before those
of the second. So what was already delivered keeps its positions. A state names the files of each generation but the
last by ranges of file numbers. The last has all other files.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch._common.checks import cached_property, count
from midepoch._common.hashing import I64
from midepoch.checkpoint.lanes import Cursor, lane_cuts
from midepoch.checkpoint.state import AppendedFiles
from midepoch.errors import CheckpointMismatchError, DataFormatError
from midepoch.index.index import IndexView
from midepoch.order.orders import Chained, Interval, Order, Ranges, Shuffle, lanes_by_file
from midepoch.order.selection import AllBut
from midepoch.order.windows import Blocks, bounds_of, virtual_counts, virtual_starts
from midepoch.sources.ahead import LaneRows, OpenFiles
from midepoch.sources.source import EpochCut, FindSurvey, RowFacts
from midepoch.stages.counted import CHUNK, Amount, Amounts, CountedItems, TokensOf, TracedRows, Wanted, rejected_row
from midepoch.stages.flow import Flow, RowRun, noting

if TYPE_CHECKING:  # importing it loads parts of Arrow that only filters need
    from midepoch.index.filters import Predicate
    from midepoch.sources.files import FileRows

NONE = np.empty(0, np.int64)
POSITIONS_AT_ONCE = 8192
NEAR_ROWS, MAX_NEAR = 8192, 4
"""Row numbers of so many neighbours are computed together, and so many of these are kept."""


class FileRowsLanes:
    """The lanes of one epoch of rows of files."""

    def __init__(self, source: "FileRows", cut: EpochCut, survey: FindSurvey, gone: I64 = NONE) -> None:
        """``gone`` are the rising numbers of rows that were left out after the lanes were cut."""
        self._source, self._cut, self._survey, self._gone = source, cut, survey, gone
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
        stop = self.size(lane)
        starts = range(cursor[0], stop, POSITIONS_AT_ONCE)
        positions = (np.arange(at, min(at + POSITIONS_AT_ONCE, stop)) for at in starts)
        if self._cut.masks and len(self._gone):
            left_out: set[int] = set()
            flow = noting(self.flow_at(opened, lane, positions), partial(self._note_masked, left_out))
            return replace(flow, left_out=left_out)
        gone = self._gone_positions(lane)
        return self.flow_at(
            opened, lane, (some[~np.isin(some, gone)] for some in positions) if len(gone) else positions
        )

    def _note_masked(self, left_out: set[int], keys: list[int]) -> None:
        left_out.update(np.intersect1d(keys, self._gone).tolist())

    def counted(self, lane: int, cursor: Cursor) -> CountedItems:
        return CountedFileRows(self, lane, cursor[0], self._survey(), self._gone_positions(lane))

    def _gone_positions(self, lane: int) -> I64:
        """The rising positions in a lane of the rows that were left out. Those of all even lanes are found together."""
        if self._cut.mode == "file":
            return np.sort(self.order(lane).positions(self._gone)) if len(self._gone) else self._gone
        first, last = np.searchsorted(self._gone_in_order, self._cuts[lane : lane + 2])
        return self._gone_in_order[first:last] - self._cuts[lane]

    @cached_property
    def _gone_in_order(self) -> I64:
        return np.sort(self._order.positions(self._gone)) if len(self._gone) else self._gone

    def flow_at(self, opened: OpenFiles, lane: int, positions: Iterator[I64]) -> Flow:
        """The rows of a lane at rising positions. If there is a filter, it must keep them all."""
        source, where, rows = self._source, self._source.where, LaneRows(opened, self.order(lane))
        if where is None:
            return Flow(row_runs=opened.timed(rows.runs(positions)))
        # An expression costs about the same for few rows as for many, so it gets the rows of a whole step.
        runs = opened.timed(rows.runs(positions, opened.sizes.step))
        all_match = source.has_chosen_rows
        return Flow(row_runs=matching(runs, where.predicate, source.names, opened.sizes.run, source.locate, all_match))

    def trace(self, numbers: I64) -> TracedRows:
        """The files of rows, given by their numbers in the whole dataset, and their numbers there."""
        view = self._source.index.view
        files = np.searchsorted(view.file_starts, numbers, "right") - 1
        return TracedRows.of_rows([view.names[file] for file in files.tolist()], numbers - view.file_starts[files])

    def row_numbers(self, file: str, row: int) -> I64:
        """The number of a row in the whole dataset; none if there is no such row."""
        view = self._source.index.view
        bounds = zip(
            view.names, *(starts.tolist() for starts in (view.file_starts[:-1], view.file_starts[1:])), strict=True
        )
        return np.array([begin + row for name, begin, end in bounds if name == file and begin + row < end], np.int64)


class CountedFileRows(CountedItems):
    """The rows of a lane from a position on. The survey is indexed by row number."""

    def __init__(self, lanes: FileRowsLanes, lane: int, start: int, survey: RowFacts | None, gone: I64 = NONE) -> None:
        """``gone`` are the rising positions of rows that are passed over."""
        self._lanes, self._lane, self._start, self._survey = lanes, lane, start, survey
        self._left = AllBut(lanes.size(lane) - start, gone[gone >= start] - start)
        self._near: dict[int, I64] = {}
        self._passed = (0, 0, 0)
        """So many rows, how many of them are kept, and the tokens of these. Later cursors need only the rows after."""

    @cached_property
    def _order(self) -> Order:
        return self._lanes.order(self._lane)

    def has(self, number: int) -> bool:
        return number < self._left.size

    def total(self) -> int:
        return max(0, self._left.size)

    def cursor(self, items: int) -> Cursor:
        if not items or not len(self._left.left_out):
            return (self._start + items,)
        return (int(self._positions(np.array([items - 1]))[0]) + 1,)

    def _positions(self, numbers: I64) -> I64:
        """The positions in the lane of these rows."""
        return self._start + self._left.at(numbers)

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

    def passed(self, cursor: Cursor, tokens_of: TokensOf = np.asarray, *, counting: bool = False) -> Amounts:
        position = min(cursor[0], self._lanes.size(self._lane)) - self._start
        number = int(self._left.before(np.array([position]))[0])
        if self._survey is None:
            return {"": Amount(number, None)}
        done, kept, tokens = self._passed if self._passed[0] <= number else (0, 0, 0)
        for first in range(done, number, CHUNK):
            rows = self.keys(np.arange(first, min(first + CHUNK, number)))
            rows = rows[self._survey.kept(rows)]
            kept += len(rows)
            if self._survey.has_lengths:
                tokens += int(tokens_of(self._survey.lengths(rows)).sum())
        self._passed = number, kept, tokens
        return {"": Amount(kept, tokens if self._survey.has_lengths else None)}

    def amounts(self, numbers: I64, tokens: I64 | None = None) -> Amounts:
        if tokens is None and self._survey is not None and self._survey.has_lengths:
            tokens = self.lengths(numbers)
        return {"": Amount(len(numbers), None if tokens is None else int(tokens.sum()))}

    def trace(self, numbers: I64) -> TracedRows:
        return self._lanes.trace(self.keys(numbers))

    def find(self, file: str, row: int) -> I64:
        positions = self._order.positions(self._lanes.row_numbers(file, row)) - self._start
        return np.sort(self._left.before(positions[(positions >= 0) & self._left.has(positions)]))

    def lengths(self, numbers: I64) -> I64:
        assert self._survey is not None
        return self._survey.lengths(self.keys(numbers))


def matching(
    runs: Iterator[RowRun],
    predicate: "Predicate",
    names: list[str],
    max_rows: int,
    locate: Callable[[int], tuple[str, int]],
    expects_all: bool = False,
) -> Iterator[RowRun]:
    """The rows that match, with only the columns ``names``, in runs of at most ``max_rows`` rows.

    Each row keeps its cursor. So a resume after it continues with the next row of the file, whether that matches or
    not. If ``expects_all``, a row that does not match raises SurveyMismatchError.
    """
    for run in runs:
        try:
            mask = predicate.mask(run.rows.data)
        except pa.ArrowException as error:
            name, row = locate(int(run.keys[_failing_row(predicate, run)]))
            raise DataFormatError(f"filters {predicate.expression} failed on row {row:,} of {name}: {error}") from error
        if expects_all and not mask.all():
            name, row = locate(int(run.keys[~mask][0]))
            raise rejected_row("read(filters=...)", f"row {row:,} of {name}")
        chosen = run if run.rows.names == names else RowRun(run.rows.select(names), run.cursors, run.keys)
        matches = chosen if mask.all() else chosen.take(np.flatnonzero(mask))
        for start in range(0, len(matches), max_rows):
            yield matches.slice(start, min(start + max_rows, len(matches)))


def _failing_row(predicate: "Predicate", run: RowRun) -> int:
    """The first row of a run on which an expression fails alone, or the first of all."""
    for row in range(len(run)):
        try:
            predicate.mask(run.rows.slice(row, row + 1).data)
        except pa.ArrowException:
            return row
    return 0


def rows_of_files(files: I64, view: IndexView, blocks: Blocks, *, virtual: bool = False) -> Ranges:
    """The rows of the files with these numbers. Its pieces are those of a dataset of these files alone.

    The other arguments describe all files of the dataset. If ``virtual``, blocks are divided into virtual ones.
    """
    file_starts, first_blocks = view.file_starts, view.first_blocks
    numbers = [np.arange(first_blocks[file], first_blocks[file + 1]) for file in files.tolist()]
    own = blocks.some(np.concatenate([np.empty(0, np.int64), *numbers]))
    starts = bounds_of(np.diff(file_starts)[files])
    block_starts = virtual_starts(own, virtual_counts(own)) if virtual else own.starts
    return Ranges(file_starts[:-1][files], starts, {"file": starts, "block": block_starts}, blocks)


def generations(appended: AppendedFiles, files: int) -> list[I64]:
    """The file numbers of each generation, of ``files`` files in all."""
    are_there = all(ranges[-1][1] <= files for ranges in appended)  # they rise
    named = [np.concatenate([np.arange(*one) for one in ranges]) for ranges in appended] if are_there else []
    numbers = np.sort(np.concatenate([NONE, *named]))
    if not are_there or (np.diff(numbers) == 0).any():
        raise CheckpointMismatchError(
            f"The state is damaged: it names {'a file twice' if are_there else 'more files than there are'}, of "
            f"{count('file', files)}. Load an earlier checkpoint."
        )
    return [*named, np.setdiff1d(np.arange(files), numbers)]


def ranges_of(numbers: I64) -> tuple[tuple[int, int], ...]:
    """Rising numbers as ranges ``(begin, end)``."""
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    return tuple((int(part[0]), int(part[-1]) + 1) for part in np.split(numbers, breaks) if len(part))


def lane_of_generations(orders: Sequence[Order], lanes: int, lane: int) -> Order:
    """One lane of an epoch whose generations have these orders.

    A generation brings every lane to the length that it has in an epoch of all files so far.
    """
    rows = 0
    lengths = np.zeros(lanes, np.int64)
    own: list[Order] = []
    for order in orders:
        rows += order.size
        longer = np.array([end - begin for begin, end in pairwise(lane_cuts(rows, lanes))], np.int64)
        cuts = bounds_of(longer - lengths)
        own.append(Interval(order, int(cuts[lane]), int(cuts[lane + 1])))
        lengths = longer
    return Chained(own)
