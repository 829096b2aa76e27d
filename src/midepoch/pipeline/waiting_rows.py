"""Rows of the parts of a mixture that are read and not drawn yet, and how draws are dealt out of them.

A thousand draws are taken at a time. Of each part they are a few slices of its runs, which are converted one after the
other. Then one permutation puts all values in the order of the draws. Schedules repeat, so most permutations do too.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from midepoch._common.types import I32, I64
from midepoch.stages.flow import RowRun
from midepoch.values.file_checks import all_checks
from midepoch.values.open_batch import OpenBatch, SlicedRows
from midepoch.values.origin import RowOrigin, join_origins
from midepoch.values.pool import PickedRows, Picker, RowPool, picker_of
from midepoch.values.rows import Rows

LOW_BITS = (1 << 63) - 1
DEALS_KEPT = 32
"""How many permutations are kept: each is some 50 KB."""


class RunSlice(NamedTuple):
    """The rows of a run from ``start`` to ``stop``."""

    run: RowRun
    opened: OpenBatch | None
    """The rows of the run, unless they are picked from a pool."""
    start: int
    stop: int

    @property
    def part(self) -> SlicedRows | PickedRows:
        """The rows as a part of a pool."""
        if self.opened is not None:
            return SlicedRows(self.opened, self.start, self.stop)
        picked = self.run.rows.data
        assert isinstance(picked, PickedRows)
        return picked.at(slice(self.start, self.stop))

    @property
    def cursors(self) -> I64:
        return self.run.cursors[self.start : self.stop]

    @property
    def keys(self) -> I64:
        return self.run.keys[self.start : self.stop]

    def origin(self) -> RowOrigin | None:
        """Where the rows come from, if that is known."""
        rows = self.run.rows.slice(self.start, self.stop)
        return rows.data.origin if isinstance(rows.data, PickedRows) else rows.origin


class WaitingRows:
    """The rows of a part that are read and not drawn yet."""

    def __init__(self) -> None:
        self.rows = 0
        self._runs: deque[tuple[RowRun, OpenBatch | None]] = deque()
        self._drawn = 0
        """How many rows of the first run are drawn."""

    @property
    def runs(self) -> int:
        """In how many runs the rows are."""
        return len(self._runs)

    def add(self, runs: Iterable[RowRun]) -> None:
        """Let more rows wait. They are rows of files, which no function has changed."""
        for run in runs:
            data = run.rows.data
            assert not isinstance(data, dict), "only unchanged rows of files are drawn in runs"
            self._runs.append((run, None if isinstance(data, PickedRows) else OpenBatch(data)))
            self.rows += len(run)

    def take(self, count: int) -> list[RunSlice]:
        """Remove the next ``count`` rows, and return them."""
        taken = []
        self.rows -= count
        while count:
            (run, opened), first = self._runs[0], self._drawn
            end = min(first + count, len(run))
            taken.append(RunSlice(run, opened, first, end))
            count -= end - first
            self._drawn = end
            if end == len(run):
                self._runs.popleft()
                self._drawn = 0
        return taken


def interleaved(
    parts: I32, waiting: Sequence[WaitingRows], salts: Sequence[int] | None = None
) -> tuple[Rows, I64, list[list[RunSlice]]]:
    """The next rows of ``parts`` in the order of the draws, their keys, and the slices of each part they were taken of.

    The rows are removed from ``waiting``. ``salts`` has a number for each part that is mixed into its keys.
    """
    deal = _deal(parts.astype(np.int32, copy=False).tobytes(), len(waiting))
    slices_of_parts = [of_part.take(total) for of_part, total in zip(waiting, deal.totals, strict=True)]
    drawn = [some for slices in slices_of_parts for some in slices]
    keys = np.concatenate([some.keys for some in drawn])
    if salts is not None:
        keys = (keys ^ np.repeat(salts, deal.totals)) & LOW_BITS
    check = all_checks(some.run.rows.check for some in drawn)
    pool = RowPool([some.part for some in drawn], check, partial(_origin_of, drawn))
    rows = Rows(PickedRows(pool, deal.indices, deal.picker), drawn[0].run.rows.form)
    return rows, keys.take(deal.indices), slices_of_parts


def _origin_of(drawn: Sequence[RunSlice]) -> RowOrigin | None:
    return join_origins(some.origin() for some in drawn)


class _Deal(NamedTuple):
    """How draws are dealt, if the rows of each part lie together."""

    totals: list[int]
    """The number of draws from each part."""
    indices: I64
    """For each draw, the index of its row."""
    picker: Picker
    """Picks the values at ``indices``."""


@lru_cache(maxsize=DEALS_KEPT)
def _deal(draws: bytes, count: int) -> _Deal:
    """The deal of these draws from ``count`` parts, which are the bytes of their 32-bit numbers."""
    parts = np.frombuffer(draws, np.int32)
    indices = np.empty(len(parts), np.int64)
    indices[_by_part(parts, count)] = np.arange(len(parts))
    indices.flags.writeable = False
    return _Deal(np.bincount(parts, minlength=count).tolist(), indices, picker_of(indices))


def _by_part(parts: I32, count: int) -> I64:
    """The numbers of the draws, those of each part together and in their order. 16 bits are sorted in linear time."""
    return np.argsort(parts.astype(np.int16) if count <= 1 << 15 else parts, kind="stable")
