"""A pass over all rows of files, in file order and in parallel, for work that is kept: surveys and caches.

The rows are divided into *units* of whole blocks. Which rows a unit has depends on the data alone, so a pass that was
killed continues with the units that are not finished, also on another machine.
"""

import errno
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from midepoch._common.hashing import digest
from midepoch._common.types import I64
from midepoch.index.index import IndexView
from midepoch.order.orders import Slice
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.files import FileRows
from midepoch.sources.open_files import OpenFiles
from midepoch.sources.source import EpochCut
from midepoch.stages.flow import Context, Flow
from midepoch.values.arrow import storage

UNITS = 512
"""Units are made smaller, down to the smallest size, until there are about this many."""
SMALLEST_UNIT, LARGEST_UNIT = 1 << 20, 64 << 20
UNIT_ROWS = 1 << 20
Version = str | int | None
UNREAD_ROWS = 1 << 26
"""How many rows of blocks that are not read a unit has at most, about."""


class Unit(NamedTuple):
    """The rows from ``begin`` to ``end``: those of some whole blocks."""

    number: int
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class RowPass:
    """The rows of files through the first stages of a pipeline, all of which keep rows. Keys are row numbers."""

    pipeline: Pipeline

    @property
    def source(self) -> FileRows:
        source = self.pipeline.source
        assert isinstance(source, FileRows)
        return source

    @property
    def context(self) -> Context:
        """What the stages may know. All of them get single rows, which errors can name."""
        return replace(self.pipeline.context(0), rows_until=len(self.pipeline.stages) + UNIT_ROWS)

    def flow(self, opened: OpenFiles, unit: Unit) -> Flow:
        """What the stages make of a unit's rows."""
        begin, end = self._positions(unit)
        rows = replace(self.source, steps=(Slice(start=begin, stop=end),))
        flow = rows.cut(EpochCut(epoch=0, lanes=1)).flow(opened, 0, rows.begin)
        context = self.context
        for stage in self.pipeline.stages:
            flow = stage.flow(flow, rows.begin, context)
        return flow

    def _positions(self, unit: Unit) -> tuple[int, int]:
        """Where the rows of a unit begin and end in the order of files, which has no blocks that a filter rules out."""
        where, view = self.source.where, self.source.index.view
        if where is None:
            return unit.begin, unit.end
        starts = np.concatenate([[0], np.cumsum(view.block_rows * where.blocks)])
        begin, end = np.searchsorted(view.block_starts, [unit.begin, unit.end])
        return int(starts[begin]), int(starts[end])

    def units(self, size: int | None = None) -> list[Unit]:
        """The units of all rows. There is at least one. ``size`` is their bytes, by default enough for many units."""
        view, where = self.source.index.view, self.source.where
        size = unit_bytes(int(view.block_lengths.sum())) if size is None else size
        weights = np.maximum(view.block_lengths / size, view.block_rows / UNIT_ROWS)
        if where is not None:
            weights = np.where(where.blocks, weights, view.block_rows / UNREAD_ROWS)
        return cut_units(view.block_starts, weights)


def unit_bytes(size: int) -> int:
    """How many bytes a unit has, about, of ``size`` bytes in all."""
    return min(LARGEST_UNIT, max(SMALLEST_UNIT, size // UNITS))


def cut_units(block_starts: I64, weights: Any) -> list[Unit]:
    """Units of blocks that weigh about 1 together. A heavier block is a unit of its own, or the last of one."""
    numbers = np.floor(np.cumsum(weights) - weights)
    first_blocks = np.flatnonzero(np.diff(numbers, prepend=-1.0))
    begins = np.unique(block_starts[first_blocks])
    bounds = np.append(begins[begins < block_starts[-1]], block_starts[-1])
    if len(bounds) == 1:  # there are no rows
        return [Unit(0, 0, 0)]
    return [
        Unit(number, *bound) for number, bound in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
    ]


def list_lengths(source: FileRows, unit: Unit) -> I64 | None:
    """The lengths of the lists in the only column of a source of local files; None if there are nulls.

    Of mapped files only the offsets are read. This does less for each block than reading rows in an order.
    """
    index, view = source.index, source.index.view
    lengths = np.empty(unit.end - unit.begin, np.int64)
    first, stop = np.searchsorted(view.block_starts, [unit.begin, unit.end]).tolist()
    for file in range(view.file_of(first), view.file_of(stop - 1) + 1) if first < stop else ():
        blocks = range(max(first, int(view.first_blocks[file])), min(stop, int(view.first_blocks[file + 1])))
        if not blocks:
            continue
        reader = index.open(file, source.schema)
        done = int(view.block_starts[blocks[0]]) - unit.begin
        for number in blocks:
            data = reader.read(view.block(number)[1])
            for column in (data.column(0),) if isinstance(data, pa.RecordBatch) else data.column(0).chunks:
                lists = storage(column)
                if lists.null_count or lists.values.null_count:
                    return None
                _write_lengths(lists, lengths[done : done + len(lists)])
                done += len(lists)
        index.check(file)
    return lengths


def _write_lengths(lists: pa.Array, lengths: I64) -> None:
    if pa.types.is_fixed_size_list(lists.type):
        lengths[:] = lists.type.list_size
    else:
        offsets = lists.offsets.to_numpy()
        np.subtract(offsets[1:], offsets[:-1], out=lengths)


def data_identity(view: IndexView) -> str:
    """A digest of names, sizes, rows, and of the times or versions by which a rewritten file is noticed."""
    stamps = [(stamp.mtime_ns, version) for stamp, version in zip(view.stamps, view.versions, strict=True)]
    return digest(repr((view.fingerprint["digest"], view.fingerprint.get("format"), stamps)).encode(), size=16).hex()


def checked_version(version: Any) -> Version:
    """The version that a user gives to the functions of a pipeline; ``TypeError`` if it is neither text nor number."""
    if isinstance(version, bool) or not isinstance(version, str | int | None):
        raise TypeError(f"version is {version!r}; it can be a string, an integer, or left out.")
    return version


def write_error(error: OSError, folder: Path, what: str) -> OSError:
    """An error of the file system, with what it means for the work."""
    causes = {errno.ENOSPC: "The disk is full", errno.EDQUOT: "The quota of the disk is used up"}
    cause = causes.get(error.errno or 0, str(error))
    return OSError(
        error.errno,
        f"{what} cannot be written to {folder}: {cause}. What was finished is kept, so the next call continues there. "
        "Free some space, or pass another folder.",
    )
