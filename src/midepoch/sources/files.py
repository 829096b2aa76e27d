"""The rows of files, as the source of a pipeline."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch._common.lazy import cached_property
from midepoch._common.once import log_once
from midepoch._common.text import count, size_in_words
from midepoch._common.types import F64, I64
from midepoch.checkpoint.fingerprint import data_difference
from midepoch.checkpoint.lanes import Cursor, lane_cuts
from midepoch.checkpoint.state import AppendedFiles, Windows
from midepoch.errors import CheckpointMismatchError
from midepoch.formats.arrow import holds_dictionary
from midepoch.index.index import Index
from midepoch.index.survey import Survey
from midepoch.order.orders import (
    Interval,
    Order,
    OrderStep,
    Sequential,
    Shuffle,
    ShuffledPieces,
    ShuffledWindows,
    build_order,
    lanes_by_file,
)
from midepoch.order.quality import ShuffleQuality, full_permutation, measure_quality
from midepoch.order.selection import KeptBlocks
from midepoch.order.surveyed import Surveyed
from midepoch.order.windows import WINDOW_BLOCKS, Blocks, distinct, virtual_counts, virtual_starts
from midepoch.order.without import Without
from midepoch.sources.appended import FileSubset, generations, lane_of_generations
from midepoch.sources.fetcher import BlockFetcher
from midepoch.sources.lane import LaneRows, ReadSizes
from midepoch.sources.read_counts import ReadCounts
from midepoch.sources.source import (
    ALL_ROWS,
    AdoptedCheckpoint,
    EpochCut,
    FindSurvey,
    ItemSpec,
    Mode,
    RowStride,
    no_survey,
)
from midepoch.sources.virtual import BlockTable, VirtualBlocks
from midepoch.sources.where import matching
from midepoch.stages.counted import CountedItems, Wanted
from midepoch.stages.flow import Context, Flow, RowRun
from midepoch.stages.kept import Kept
from midepoch.stages.noting import noting
from midepoch.stages.traced import TracedRows
from midepoch.storage.options import Fetch

NEAR_ROWS = 8192
MAX_NEAR = 4

if TYPE_CHECKING:  # importing it loads parts of Arrow that only filters need
    from midepoch.index.pruning import Where


FEW_BLOCKS = 4
"""A window with fewer blocks mixes too little."""


class OpenFiles:
    """The open files of one reader, and how much it reads at a time."""

    def __init__(
        self,
        index: Index,
        wanted: pa.Schema,
        lanes: int,
        fetch: Fetch | None = None,
        blocks: BlockTable | None = None,
        window_bytes: int = 0,
        *,
        is_scattered: bool = False,
    ) -> None:
        """``is_scattered`` is true if rows that follow each other lie in different blocks."""
        has_dictionaries = any(holds_dictionary(field.type) for field in wanted)
        self.fetcher = BlockFetcher(index, wanted, fetch, lanes, blocks)
        self.window_bytes = window_bytes
        self._counts, self._store = ReadCounts(), index.store
        self._earlier_retries = 0 if index.store is None else index.store.retries
        self.sizes = ReadSizes.of(
            index.view.row_bytes,
            lanes,
            has_dictionaries=has_dictionaries,
            is_scattered=window_bytes > 0 or (is_scattered and self.fetcher.all_mapped),
        )

    @property
    def decodes(self) -> bool:
        return self.fetcher.view.rows > 0 and not self.fetcher.is_mapped(0)

    def timed(self, runs: Iterator[RowRun]) -> Iterator[RowRun]:
        """The same runs, counted."""
        return self._counts.timed(runs)

    def counts(self) -> ReadCounts:
        fetcher = self.fetcher
        return replace(
            self._counts,
            fetched=fetcher.fetched,
            decoded=fetcher.decoded,
            retries=0 if self._store is None else self._store.retries - self._earlier_retries,
            cache_hits=fetcher.cache_hits,
            cache_misses=fetcher.cache_misses,
        )

    def close(self) -> None:
        self.fetcher.close()


@dataclass(frozen=True, kw_only=True)
class FileRows:
    """The rows of indexed files: some or all columns, in an order, maybe only those that a filter keeps."""

    index: Index
    columns: tuple[str, ...] | None = None
    steps: tuple[OrderStep, ...] = ()
    where: "Where | None" = None
    fetch: Fetch | None = None
    has_rows = True
    functions = ()
    begin: Cursor = (0,)
    item_spec: ItemSpec = ("python", False)

    @property
    def label(self) -> str:
        others = len(self.index.view.names) - 1
        return f"{self.index.view.names[0]}+{others}" if others else self.index.view.names[0]

    def __str__(self) -> str:
        return f"{count('row', self.index.view.rows)} in {count('file', len(self.index.view.names))}"

    @property
    def uniform(self) -> bool:
        return self.where is None or self.has_chosen_rows

    @property
    def has_chosen_rows(self) -> bool:
        """True if the order has only rows that the filters keep, as a survey says."""
        return any(isinstance(step, Surveyed) for step in self.steps)

    def why_not_counted(self, survey: Survey | None) -> str | None:
        if self.uniform or (survey is not None and survey.has_kept):
            return None
        return (
            "read(filters=...) keeps a number of rows that is only known by reading them: call .survey() once, which "
            "reads the columns of the filter"
        )

    def knows_lengths(self, survey: FindSurvey) -> bool:
        found = survey()
        return found is not None and found.has_lengths

    @property
    def survives_fork(self) -> bool:
        return self.index.store is None or self.index.store.survives_fork

    @property
    def is_in_memory(self) -> bool:
        """True if the files are in a store in the memory of this process, so that others cannot read them."""
        return self.index.store is not None and self.index.store.survives_fork

    @property
    def base(self) -> Order:
        """The rows in file order, without blocks in which no row can match the filter."""
        view, starts = self.index.view, self.index.view.block_starts
        kept = None if self.where is None else self.where.blocks
        if self._has_virtual_blocks:
            counts = virtual_counts(view.blocks)
            starts = virtual_starts(view.blocks, counts)
            kept = None if kept is None else np.repeat(kept, counts)
        if kept is None:
            return Sequential(view.file_starts, starts, self._blocks)
        return KeptBlocks(view.file_starts, starts, kept, self._blocks)

    @property
    def _has_virtual_blocks(self) -> bool:
        return self.window_bytes > 0

    @property
    def window_bytes(self) -> int:
        """The most bytes of blocks that a lane holds for one window; 0 without windows that are cut by blocks."""
        return max(
            (step.window_bytes for step in self.steps if isinstance(step, Shuffle) and step.cuts_by_blocks), default=0
        )

    @property
    def _blocks(self) -> Blocks:
        """What orders know of the blocks. Windows that are cut by rows alone know nothing else of them."""
        view = self.index.view
        return view.blocks if self._has_virtual_blocks else Blocks.of_rows(view.block_starts)

    def with_windows(self, windows: Windows) -> "FileRows":
        """The same rows, in the order of an epoch whose windows are cut by blocks or by rows alone."""
        if windows == "blocks":
            return self
        return replace(self, steps=tuple(step.of_rows() if isinstance(step, Shuffle) else step for step in self.steps))

    def log_window(self, step: Shuffle) -> None:
        """Log, once for each dataset, that a window has fewer blocks than asked for, or very few."""
        blocks = self.index.view.blocks
        whole = ~blocks.divisible & (np.diff(blocks.starts) > 0)
        if self.where is not None:
            whole &= self.where.blocks
        number = int(whole.sum())
        if not number or step.window_blocks is None:
            return
        rows, nbytes = (int(sizes[whole].sum()) // number for sizes in (np.diff(blocks.starts), blocks.nbytes))
        wanted = min(number, max(step.window_blocks, -(-step.window // max(1, rows))))
        fitting = min(number, max(1, step.window_bytes // max(1, nbytes)))
        has = f"{self.label}: a window of the shuffle has about {count('block', min(wanted, fitting))} of {number:,}"
        level = logging.WARNING if min(wanted, fitting) < FEW_BLOCKS else logging.INFO
        if fitting < wanted:
            log_once(
                f"{has}, because a block has {size_in_words(nbytes)} on average and window_bytes is "
                f"{size_in_words(step.window_bytes)}; {wanted} were asked for. For batches from more places of the "
                f"dataset, pass window_bytes of {size_in_words(wanted * nbytes)} or more, write smaller row groups, or "
                "convert the files to uncompressed Arrow, of which small parts can be read alone.",
                level,
            )
        elif wanted < min(FEW_BLOCKS, number):
            log_once(
                f"{has}, so a batch comes from few places of the dataset. Pass a larger window_blocks; the "
                f"default is {WINDOW_BLOCKS}."
            )

    @cached_property
    def size(self) -> int:
        """The number of rows that an epoch reads."""
        size = self.index.view.rows
        if self.where is not None:
            size = int(self.index.view.block_rows[self.where.blocks].sum())
        for step in self.steps:
            size = step.size(size)
        return size

    @property
    def seed(self) -> int:
        """The seed of the last shuffle."""
        return next((step.seed for step in reversed(self.steps) if isinstance(step, Shuffle)), 0)

    @property
    def shuffled(self) -> bool:
        return any(isinstance(step, Shuffle) for step in self.steps)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the items."""
        return self.index.schema(self.columns)

    @property
    def _read_schema(self) -> pa.Schema:
        """The schema of what is read: the items' columns, and those that only the filter needs."""
        extra = [name for name in self.where.predicate.columns if name not in self.names] if self.where else []
        return self.index.schema((*self.names, *extra)) if extra else self.schema

    @property
    def names(self) -> list[str]:
        """The columns of the items."""
        return list(self.schema.names)

    @property
    def fingerprint(self) -> dict[str, Any]:
        return self.index.view.fingerprint

    def describe(self) -> list[dict[str, Any]]:
        options = dict(self.index.layout) | ({} if self.columns is None else {"columns": list(self.columns)})
        read = [{"op": "read", **options}] if options else []
        where = [] if self.where is None else [self.where.describe()]
        return [*read, *where, *(step.describe() for step in self.steps)]

    def order(self, epoch: int) -> Order:
        """The order of an epoch."""
        return build_order(self.base, self.steps, epoch)

    def cut(self, cut: EpochCut, survey: FindSurvey = no_survey) -> "FileRowsLanes":
        rows = self.with_windows(cut.windows)
        if not cut.edits:
            return FileRowsLanes(rows, cut, survey)
        known = isinstance(cut.edits, int) and isinstance(cut.masked, int) and cut.masked <= cut.edits <= self.edits
        if not known or cut.appended:
            raise CheckpointMismatchError(
                f"The state is damaged: it says that its epoch was edited {cut.edits} times, and the dataset "
                f"has {count('edit', self.edits)}. Load an earlier checkpoint."
            )
        assert isinstance(cut.edits, int)
        assert isinstance(cut.masked, int)
        before = replace(rows, steps=rows.steps[: -cut.edits])
        edits = tuple(step for step in rows.steps[-cut.edits :] if isinstance(step, Without))
        late = len(edits) - cut.masked
        return FileRowsLanes(before, cut, survey, edits[:late], edits[late:])

    @property
    def edits(self) -> int:
        """How many edits are the last steps of the order."""
        return next(
            (n for n, step in enumerate(reversed(self.steps)) if not isinstance(step, Without)), len(self.steps)
        )

    def shuffle_quality(self, *, epoch: int, lanes: int, mode: Mode, batch_size: int) -> ShuffleQuality:
        """How well the order of an epoch mixes."""
        blocks, cut = self.index.view.blocks, self.cut(EpochCut(epoch=epoch, lanes=lanes, mode=mode))
        orders = [cut.order(lane) for lane in range(lanes)]
        has_rows = np.diff(blocks.starts) > 0
        used = has_rows if self.where is None else has_rows & self.where.blocks
        last = max((number for number, step in enumerate(self.steps) if isinstance(step, Shuffle)), default=-1)
        return measure_quality(
            orders,
            full_permutation(self.base, self.steps, epoch),
            orders if mode == "file" else [build_order(self.base, self.steps[: last + 1], epoch)],
            shuffle=next((step for step in reversed(self.steps) if isinstance(step, Shuffle)), None),
            blocks=blocks,
            block_count=int(used.sum()),
            batch_size=batch_size,
        )

    def generation_orders(self, epoch: int, appended: AppendedFiles) -> list[Order]:
        """The order of each generation of files, in an epoch to which files were appended."""
        view = self.index.view
        subsets = [
            FileSubset(
                files,
                file_starts=view.file_starts,
                first_blocks=view.first_blocks,
                blocks=self._blocks,
                virtual=self._has_virtual_blocks,
            )
            for files in generations(appended, len(view.names))
        ]
        return [build_order(subset, self.steps, epoch) for subset in subsets]

    def open(self, lanes: int) -> OpenFiles:
        return OpenFiles(
            self.index,
            self._read_schema,
            lanes,
            self.fetch,
            self._fetched_blocks,
            self.window_bytes,
            is_scattered=any(isinstance(step, Shuffle) and step.level == "row" for step in self.steps),
        )

    @property
    def _fetched_blocks(self) -> VirtualBlocks | None:
        """Virtual blocks, if they are read from a store: then only their own bytes are fetched."""
        view = self.index.view
        if self.index.store is None or not self._has_virtual_blocks or not any(view.divisible):
            return None
        return VirtualBlocks(view, virtual_starts(view.blocks, virtual_counts(view.blocks)))

    def context(self, epoch: int, rows_until: int) -> Context:
        return Context(seed=self.seed, epoch=epoch, rows_until=rows_until, locate=self.locate)

    def locate(self, key: int) -> tuple[str, int]:
        """The file, and the row in it, of a row's key."""
        return self.index.view.locate(key)

    def adopt(self, then: Mapping[str, Any]) -> AdoptedCheckpoint:
        """Accept a checkpoint of these files, unchanged."""
        if "parts" in then["data"]:
            raise CheckpointMismatchError("The checkpoint is of a mixture. Load it into the mixture it was taken from.")
        difference = data_difference(then["data"], self.index.view.facts, self.fingerprint)
        if difference is not None:
            raise CheckpointMismatchError(difference)
        return self._with_new_edits(list(then["pipeline"]))

    def _with_new_edits(self, then: list[Any]) -> AdoptedCheckpoint:
        """A description of the pipeline with the edits that came since. It may differ in other things."""
        described = self.describe()
        first = len(described) - self.edits
        known = 0
        while known < self.edits and then[first + known : first + known + 1] == [described[first + known]]:
            known += 1
        new = described[first + known :]
        if not new or then[:first] != described[:first]:
            return AdoptedCheckpoint(None, then)
        rows = sum(edit["rows"] for edit in new)
        changes = (f"it goes on without {count('row', rows)}",)
        return AdoptedCheckpoint(None, [*then[: first + known], *new, *then[first + known :]], changes, len(new))


class FileRowsLanes:
    """The lanes of one epoch of rows of files."""

    def __init__(
        self,
        source: FileRows,
        cut: EpochCut,
        survey: FindSurvey,
        late: tuple[Without, ...] = (),
        masked: tuple[Without, ...] = (),
    ) -> None:
        """``late`` edits leave rows out of lanes that were cut before; ``masked`` ones only out of packs."""
        self._source, self._cut, self._survey, self._late = source, cut, survey, late
        rows = np.concatenate([np.empty(0, np.int64), *(edit.rows for edit in masked)])
        self._masked = distinct(np.sort(rows))
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
        return self._edited[lane] if self._late else self._order_of_lane(lane)

    @cached_property
    def _edited(self) -> list[Order]:
        orders = [self._order_of_lane(lane) for lane in range(self._cut.lanes)]
        for edit in self._late:
            orders = [edit.apply(order) for order in orders]
        return orders

    def _order_of_lane(self, lane: int) -> Order:
        if self._cut.appended:
            return lane_of_generations(self._generations, self._cut.lanes, lane)
        if self._cut.mode == "file":
            return self._by_file[lane]
        return Interval(self._order, self._cuts[lane], self._cuts[lane + 1])

    def size(self, lane: int) -> int:
        if self._late:
            return self._edited[lane].size
        return self._by_file[lane].size if self._cut.mode == "file" else self._cuts[lane + 1] - self._cuts[lane]

    def reaches(self, lane: int, cursor: Cursor, margin: int) -> bool:
        return cursor[0] < self.size(lane) + margin

    def flow(self, opened: OpenFiles, lane: int, cursor: Cursor, stride: RowStride = ALL_ROWS) -> Flow:
        rows, size = self._rows(opened, lane), self.size(lane)
        runs = rows.runs(cursor[0], size, rows=stride.rows, phase=stride.phase, stride=stride.stride)
        flow = self._matching(opened, runs)
        return noting(flow, partial(self._note_masked, self._left_out[lane])) if lane in self._left_out else flow

    def note_masked(self, lane: int, left_out: set[int]) -> None:
        self._left_out[lane] = left_out

    def _note_masked(self, left_out: set[int], keys: I64) -> None:
        left_out.update(keys[np.isin(keys, self._masked)].tolist())

    def counted(self, lane: int, cursor: Cursor) -> CountedItems:
        rows = CountedFileRows(self, lane, cursor[0], self._survey())
        if self._source.uniform:
            return rows
        name, locate = "row {1:,} of {0}", self._source.locate
        return Kept(rows, lambda flow: flow, "read(filters=...)", lambda key: name.format(*locate(key)))

    def flow_at(self, opened: OpenFiles, lane: int, positions: Iterator[I64]) -> Flow:
        """The rows of a lane at rising positions. If there is a filter, it must keep them all."""
        return self._matching(opened, self._rows(opened, lane).runs_at(positions, self.size(lane)))

    def trace(self, numbers: I64) -> TracedRows:
        """The files of rows, given by their numbers in the whole dataset, and their numbers there."""
        view = self._source.index.view
        files = np.searchsorted(view.file_starts, numbers, "right") - 1
        return TracedRows.of_rows([view.names[file] for file in files.tolist()], numbers - view.file_starts[files])

    def origins(self, lane: int) -> "FileRowsLanes":
        return self

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
        fetcher.plan(self._cut.epoch, self._next_uses)
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


class CountedFileRows(CountedItems):
    """The rows of a lane from a position on. The survey is indexed by row number."""

    def __init__(self, lanes: FileRowsLanes, lane: int, start: int, survey: Survey | None) -> None:
        self._lanes, self._lane, self._start, self._survey = lanes, lane, start, survey
        self._left = max(0, lanes.size(lane) - start)
        self._near: dict[int, I64] = {}

    @cached_property
    def _order(self) -> Order:
        return self._lanes.order(self._lane)

    def has(self, number: int) -> bool:
        return number < self._left

    def total(self) -> int:
        return self._left

    def cursor(self, items: int) -> Cursor:
        return (self._start + items,)

    def flow(self, opened: OpenFiles, wanted: Wanted) -> Flow:
        return self._lanes.flow_at(opened, self._lane, (numbers + self._start for numbers in wanted))

    def keys(self, numbers: I64) -> I64:
        """The row numbers. Those of near items are computed together, because a shuffle permutes whole windows."""
        if not len(numbers):
            return numbers
        positions = numbers + self._start
        first, last = (int(position) // NEAR_ROWS for position in (positions[0], positions[-1]))
        if last - first >= MAX_NEAR:
            return self._order.rows(positions)
        rows = np.concatenate([self._near_rows(chunk) for chunk in range(first, last + 1)])
        return rows[positions - first * NEAR_ROWS]

    def _near_rows(self, chunk: int) -> I64:
        if chunk not in self._near:
            while len(self._near) >= MAX_NEAR:
                del self._near[next(iter(self._near))]
            begin, end = chunk * NEAR_ROWS, min((chunk + 1) * NEAR_ROWS, self._start + self._left)
            self._near[chunk] = self._order.rows(np.arange(begin, end))
        return self._near[chunk]

    def kept(self, numbers: I64) -> npt.NDArray[np.bool_]:
        assert self._survey is not None
        return self._survey.kept(self.keys(numbers))

    def trace(self, numbers: I64) -> TracedRows:
        return self._lanes.trace(self.keys(numbers))

    def find(self, file: str, row: int) -> I64:
        positions = self._order.positions(self._lanes.row_numbers(file, row)) - self._start
        return np.sort(positions[positions >= 0])

    def lengths(self, numbers: I64) -> I64:
        assert self._survey is not None
        return self._survey.lengths(self.keys(numbers))
