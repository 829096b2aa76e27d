"""The rows of files, as a source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from midepoch.checkpoint.fingerprint import data_difference
from midepoch.checkpoint.lanes import Cursor, lane_cuts
from midepoch.checkpoint.state import AppendedFiles
from midepoch.errors import CheckpointMismatchError
from midepoch.formats.arrow import holds_dictionary
from midepoch.index.index import Index
from midepoch.order.orders import Interval, Order, OrderStep, Shuffle, build_order, lanes_by_file
from midepoch.order.selection import Blocks
from midepoch.sources.appended import FilesOf, files_of_parts, lane_of_parts
from midepoch.sources.blocks import Files
from midepoch.sources.lane import Lane, ReadSizes
from midepoch.sources.where import matching
from midepoch.stages.flow import Flow
from midepoch.storage.options import Fetch

if TYPE_CHECKING:  # it loads parts of Arrow that only filters need
    from midepoch.index.pruning import Where
from midepoch.sources.source import ALL, Adopted, Every, ItemSpec, Mode


class FileReading:
    """The files that a reader has open, and how much it reads at a time."""

    def __init__(self, index: Index, wanted: pa.Schema, lanes: int, fetch: Fetch | None = None) -> None:
        self.files = Files(index, wanted, fetch, lanes)
        self.sizes = ReadSizes.of(index.row_bytes, lanes, coded=any(holds_dictionary(field.type) for field in wanted))

    @property
    def decodes(self) -> bool:
        """Whether the files are not mapped."""
        return self.files.index.rows > 0 and not self.files.is_mapped(0)

    def close(self) -> None:
        """Close the files."""
        self.files.close()


@dataclass(frozen=True, kw_only=True)
class FileRows:
    """The rows of an index, some columns of them, in some order."""

    index: Index
    columns: tuple[str, ...] | None = None
    steps: tuple[OrderStep, ...] = ()
    where: "Where | None" = None
    fetch: Fetch | None = None
    has_rows = True
    begin: Cursor = (0,)
    item_spec: ItemSpec = ("python", False)

    @property
    def label(self) -> str:
        """A short name for people."""
        others = len(self.index.names) - 1
        return f"{self.index.names[0]}+{others}" if others else self.index.names[0]

    def __str__(self) -> str:
        return f"{self.index.rows:,} rows in {len(self.index.names):,} files"

    @property
    def uniform(self) -> bool:
        """Whether all rows are handed on."""
        return self.where is None

    @property
    def survives_fork(self) -> bool:
        """Unless the files lie in an object store."""
        return self.index.store is None or self.index.store.survives_fork

    @property
    def base(self) -> Order:
        """The rows in file order, without blocks in which nothing can match."""
        index = self.index
        return index.order() if self.where is None else Blocks(index.file_starts, index.block_starts, self.where.blocks)

    @cached_property
    def size(self) -> int:
        """How many rows an epoch reads."""
        size = self.base.size
        for step in self.steps:
            size = step.size(size)
        return size

    @property
    def seed(self) -> int:
        """That of the last shuffle."""
        return next((step.seed for step in reversed(self.steps) if isinstance(step, Shuffle)), 0)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the rows that are handed on."""
        return self.index.schema(self.columns)

    @property
    def _read_schema(self) -> pa.Schema:
        """The same, with the columns that are read for the filter only."""
        more = [name for name in self.where.predicate.columns if name not in self.names] if self.where else []
        return self.index.schema((*self.names, *more)) if more else self.schema

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return list(self.schema.names)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """That of the files."""
        return self.index.fingerprint

    def describe(self) -> list[dict[str, Any]]:
        """The columns, the filter and the order."""
        read = dict(self.index.layout) | ({} if self.columns is None else {"columns": list(self.columns)})
        told: list[dict[str, Any]] = [{"op": "read", **read}] if read else []
        told += [] if self.where is None else [self.where.describe()]
        return [*told, *(step.describe() for step in self.steps)]

    def order(self, epoch: int) -> Order:
        """The rows of an epoch."""
        return build_order(self.base, self.steps, epoch)

    def cut(self, *, epoch: int, lanes: int, mode: Mode, appended: AppendedFiles = ()) -> "RowLanes":
        """The rows of an epoch, cut evenly, or at whole files."""
        return RowLanes(self, epoch=epoch, lanes=lanes, mode=mode, appended=appended)

    def appended_order(self, epoch: int, appended: AppendedFiles) -> list[Order]:
        """The rows of each part of an epoch to which files were added."""
        index = self.index
        starts = {
            "file_starts": index.file_starts,
            "first_blocks": index.first_blocks,
            "block_starts": index.block_starts,
        }
        parts = [FilesOf(files, **starts) for files in files_of_parts(appended, len(index.names))]
        return [build_order(part, self.steps, epoch) for part in parts]

    def open(self, lanes: int) -> FileReading:
        """The files."""
        return FileReading(self.index, self._read_schema, lanes, self.fetch)

    def locate(self, key: int) -> tuple[str, int]:
        """A key is a row's number."""
        return self.index.locate(key)

    def adopt(self, then: Mapping[str, Any]) -> Adopted:
        """As it is, if it is of these files."""
        if "parts" in then["data"]:
            raise CheckpointMismatchError("The checkpoint is of a mixture. Load it into the mixture it was taken of.")
        told = data_difference(then["data"], self.index.facts, self.fingerprint)
        if told is not None:
            raise CheckpointMismatchError(told)
        return Adopted(None, then["pipeline"])


class RowLanes:
    """The lanes of one epoch of rows."""

    def __init__(self, source: FileRows, *, epoch: int, lanes: int, mode: Mode, appended: AppendedFiles = ()) -> None:
        self._source, self._epoch, self._mode, self._count = source, epoch, mode, lanes
        self._appended = appended
        if appended:
            files_of_parts(appended, len(source.index.names))
        self._cuts = lane_cuts(source.size, lanes)

    @cached_property
    def _by_file(self) -> Sequence[Order]:
        return lanes_by_file(self._source.base, self._source.steps, self._epoch, self._count)

    @cached_property
    def _order(self) -> Order:
        return self._source.order(self._epoch)

    @cached_property
    def _parts(self) -> Sequence[Order]:
        return self._source.appended_order(self._epoch, self._appended)

    def order(self, lane: int) -> Order:
        """The rows of a lane."""
        if self._appended:
            return lane_of_parts(self._parts, self._count, lane)
        if self._mode == "file":
            return self._by_file[lane]
        return Interval(self._order, self._cuts[lane], self._cuts[lane + 1])

    def size(self, lane: int) -> int:
        """How many rows a lane has."""
        return self._by_file[lane].size if self._mode == "file" else self._cuts[lane + 1] - self._cuts[lane]

    def reaches(self, lane: int, cursor: Cursor, margin: int) -> bool:
        """Whether a position lies in the lane."""
        return cursor[0] < self.size(lane) + margin

    def flow(self, reading: FileReading, lane: int, cursor: Cursor, every: Every = ALL) -> Flow:
        """The rows from a position on, in runs."""
        where, sizes = self._source.where, reading.sizes
        if where is None:
            source = Lane(reading.files, self.order(lane), sizes)
            return Flow(
                runs=source.runs(cursor[0], self.size(lane), rows=every.rows, phase=every.phase, stride=every.stride)
            )
        # An expression costs the same for few rows as for many, so it gets a whole step of them; but those of mapped
        # files come in short runs, as before each of them it is seen that the file has not changed.
        long = sizes if reading.files.all_mapped else replace(sizes, run=sizes.step)
        source = Lane(reading.files, self.order(lane), long)
        runs = source.runs(cursor[0], self.size(lane))
        return Flow(runs=matching(runs, where.predicate, self._source.names, sizes.run, self._source.locate))
