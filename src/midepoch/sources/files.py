"""The rows of files, as the source of a pipeline."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from midepoch._common.checks import cached_property, count, log_once, size_in_words
from midepoch.checkpoint.fingerprint import data_difference
from midepoch.checkpoint.lanes import Cursor
from midepoch.checkpoint.state import AppendedFiles
from midepoch.errors import CheckpointMismatchError
from midepoch.index.index import Index, IndexView
from midepoch.order.orders import Order, OrderStep, Ranges, Sequential, Shuffle, build_order
from midepoch.order.quality import ShuffleQuality, full_permutation, measure_quality
from midepoch.order.selection import Surveyed, Without
from midepoch.order.windows import Blocks, virtual_counts, virtual_starts
from midepoch.sources.ahead import OpenFiles
from midepoch.sources.lane import FileRowsLanes, generations, rows_of_files
from midepoch.sources.source import AdoptedCheckpoint, EpochCut, FindSurvey, ItemSpec, Mode, RowFacts, no_survey
from midepoch.stages.flow import Context
from midepoch.storage.block_cache import Fetch

if TYPE_CHECKING:  # importing it loads parts of Arrow that only filters need
    from midepoch.index.filters import Where


WHOLE_BATCHES = "whole_batches"
MIXED_BLOCKS = 1024
"""If the windows of all lanes have fewer blocks, a model learns less from sorted data: see docs/performance.md."""


@dataclass(frozen=True, kw_only=True)
class FileRows:
    """The rows of indexed files: some or all columns, in an order, maybe only those that a filter keeps."""

    index: Index
    columns: tuple[str, ...] | None = None
    steps: tuple[OrderStep, ...] = ()
    where: "Where | None" = None
    fetch: Fetch | None = None
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

    def why_not_counted(self, survey: RowFacts | None) -> str | None:
        if self.uniform or survey is not None:
            return None
        return (
            "read(filters=...) keeps a number of rows that is only known by reading them: call .survey() once, which "
            "reads the columns of the filter"
        )

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
        return Ranges.of_blocks(view.file_starts, starts, kept, self._blocks)

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

    def log_mixing(self, lanes: int) -> None:
        """Log, once, that the windows of all lanes together have few blocks, and what to do.

        Only blocks that are decoded as a whole count.
        """
        step = next((step for step in reversed(self.steps) if isinstance(step, Shuffle)), None)
        stored = self.index.view.blocks
        whole = ~stored.divisible & (np.diff(stored.starts) > 0)
        if self.where is not None:
            whole &= self.where.blocks
        number = int(whole.sum())
        if step is None or step.level != "block" or not number:
            return
        block_rows, block_bytes = (int(of[whole].sum()) // number for of in (np.diff(stored.starts), stored.nbytes))
        wanted = min(number, max(step.window_blocks, -(-step.window // max(1, block_rows))))
        blocks = min(wanted, max(1, step.window_bytes // max(1, block_bytes)))
        enough = min(MIXED_BLOCKS, number)
        if lanes * blocks >= enough:
            return
        needed = -(-enough // lanes)
        nbytes = needed * block_bytes
        rounded_up = size_in_words(nbytes + nbytes // 16 + 1).replace(" ", "")
        more = f", window_bytes={rounded_up!r}" if nbytes > step.window_bytes else ""
        log_once(
            f"{self.label}: rows of {count('block', lanes * blocks)} are mixed at a time, of {number:,} in the "
            f"dataset: a window of the shuffle has {blocks}, and there {'is' if lanes == 1 else 'are'} "
            f"{count('lane', lanes)}. If neighbouring rows are alike, as in files that are sorted by topic, a model "
            f"learns less. Pass shuffle(window_blocks={needed}{more}), which takes about {size_in_words(nbytes)} of "
            f"memory for each lane, or call .lanes({-(-enough // blocks)}), or write smaller row groups."
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

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What a state remembers of the files, and of how many Arrow files a shuffle takes whole record batches.

        From local Arrow without compression it takes parts of them, so the same files in a store have another order.
        """
        view = self.index.view
        pairs = zip(view.formats, view.divisible, strict=True)
        whole = sum(name == "arrow" and not divisible for name, divisible in pairs) if self._has_virtual_blocks else 0
        return view.fingerprint | ({WHOLE_BATCHES: whole} if whole else {})

    def describe(self) -> list[dict[str, Any]]:
        options = dict(self.index.layout) | ({} if self.columns is None else {"columns": list(self.columns)})
        read = [{"op": "read", **options}] if options else []
        where = [] if self.where is None else [self.where.describe()]
        return [*read, *where, *(step.describe() for step in self.steps)]

    def order(self, epoch: int) -> Order:
        """The order of an epoch."""
        return build_order(self.base, self.steps, epoch)

    def cut(self, cut: EpochCut, survey: FindSurvey = no_survey) -> FileRowsLanes:
        if not cut.edits:
            return FileRowsLanes(self, cut, survey)
        if not isinstance(cut.edits, int) or cut.edits > self.edits or cut.appended:
            raise CheckpointMismatchError(
                f"The state is damaged: it says that its epoch was edited {cut.edits} times, and the dataset "
                f"has {count('edit', self.edits)}. Load an earlier checkpoint."
            )
        before = replace(self, steps=self.steps[: -cut.edits])
        edits = [step.rows for step in self.steps[-cut.edits :] if isinstance(step, Without)]
        return FileRowsLanes(before, cut, survey, np.unique(np.concatenate(edits)))

    @property
    def edits(self) -> int:
        """How many edits are the last steps of the order."""
        return next(
            (n for n, step in enumerate(reversed(self.steps)) if not isinstance(step, Without)), len(self.steps)
        )

    def shuffle_quality(self, *, epoch: int, lanes: int, mode: Mode, batch_size: int) -> ShuffleQuality:
        """How well the order of an epoch mixes."""
        stored, cut = self.index.view.blocks, self.cut(EpochCut(epoch=epoch, lanes=lanes, mode=mode))
        orders, blocks = [cut.order(lane) for lane in range(lanes)], stored.divided()
        used = np.diff(blocks.starts) > 0
        if self.where is not None:
            used &= self.where.blocks[stored.owner(blocks.starts[:-1])]
        return measure_quality(
            orders,
            full_permutation(self.base, self.steps, epoch),
            block_starts=blocks.starts,
            block_count=int(used.sum()),
            batch_size=batch_size,
        )

    def generation_orders(self, epoch: int, appended: AppendedFiles) -> list[Order]:
        """The order of each generation of files, in an epoch to which files were appended."""
        blocks, virtual = self._blocks, self._has_virtual_blocks
        files = generations(appended, len(self.index.view.names))
        subsets = [rows_of_files(numbers, self.index.view, blocks, virtual=virtual) for numbers in files]
        return [build_order(subset, self.steps, epoch) for subset in subsets]

    def open(self, lanes: int) -> OpenFiles:
        return OpenFiles(
            self.index,
            self._read_schema,
            lanes,
            self.fetch,
            self.window_bytes,
            is_scattered=any(isinstance(step, Shuffle) and step.level == "row" for step in self.steps),
        )

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
        was, now = (data.get(WHOLE_BATCHES, 0) for data in (then["data"], self.fingerprint))
        if difference is None and was != now:
            difference = (
                f"The shuffle had another order: it took whole record batches from {count('Arrow file', was)}, and "
                f"takes them from {now:,} now. It takes parts of record batches only where they are on this machine "
                "and not compressed. Resume from files in the same kind of place, or start over without the state. "
                'shuffle(level="row") and level="file" have one order everywhere.'
            )
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


def without_rows(source: FileRows, named: Any) -> FileRows:
    """The source without rows, named by file and row. Rows that the order leaves out already change nothing."""
    numbers = np.unique(np.fromiter(_row_numbers(source.index.view, named_rows(named, "file", "row")), np.int64))
    shuffled = False
    for step in source.steps:
        if shuffled and not isinstance(step, Shuffle | Without):
            raise ValueError(
                f"without after shuffle and {step.describe()['op']} is not possible: these choose other rows in every "
                "epoch, so how many are left out would change. Select rows before shuffle."
            )
        shuffled = shuffled or isinstance(step, Shuffle)
    order = source.order(0)
    present = np.sort(order.rows(order.positions(numbers)))
    if len(np.unique(present)) < len(present):
        raise ValueError("without is not possible where a selection has a row several times.")
    return replace(source, steps=(*source.steps, Without(rows=present))) if len(present) else source


def named_rows(named: Any, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Rows that a user names: those of an Arrow table, as ``Loader.trace`` returns it, or of an iterable of tuples.

    ``columns`` are those of the table. The last two, the file and the row, are enough in a tuple.
    """
    if isinstance(named, pa.Table):
        return zip(*(named[name].to_pylist() for name in columns), strict=True)
    rows = list(named) if isinstance(named, Iterable) and not isinstance(named, str | dict) else None
    if rows is None or any(isinstance(row, str) or not 2 <= len(row) <= len(columns) for row in rows):
        raise TypeError(
            "rows must be pairs of a file and a row, or in a mixture also a part, a file and a row, such as "
            "[('part-0007.parquet', 1234)], or the table that Loader.trace or Loader.find returned."
        )
    return map(tuple, rows)


def _row_numbers(view: IndexView, pairs: Iterable[tuple[Any, ...]]) -> Iterator[int]:
    numbers = {name: number for number, name in enumerate(view.names)}
    for file, row in pairs:
        if file not in numbers:
            raise ValueError(f"without names the file {file!r}, which the dataset does not have.")
        first, end = (int(view.file_starts[numbers[file] + more]) for more in (0, 1))
        if not 0 <= row < end - first:
            raise ValueError(f"without names row {row} of {file}, which has {count('row', end - first)}.")
        yield first + int(row)
