"""A stage that counts the rows that pass through it, in every worker process."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from midepoch._common.checks import cached_property
from midepoch._common.world import is_starting_a_process
from midepoch.checkpoint.lanes import Cursor
from midepoch.index.index import IndexView
from midepoch.stages.flow import Context, Flow, RowRun
from midepoch.stages.stage import Stage

NUMBERS = 3
"""Counted for each worker: rows, bytes, seconds."""


class Counters:
    """Rows, bytes and seconds of each worker, in memory that processes share."""

    def __init__(self, workers: int) -> None:
        from multiprocessing.sharedctypes import RawArray

        self._numbers = RawArray("d", NUMBERS * workers)

    def __getstate__(self) -> dict[str, Any]:
        # Shared memory can only be sent to a process that is being started; any other copy counts on its own.
        if is_starting_a_process():
            return {"shared": self._numbers}
        return {"workers": len(self._numbers) // NUMBERS}

    def __setstate__(self, values: dict[str, Any]) -> None:
        if "workers" in values:
            Counters.__init__(self, values["workers"])
        else:
            self._numbers = values["shared"]

    def add(self, worker: int, rows: int, size: float, seconds: float) -> None:
        """Add to the counts of a worker. Each worker is one process, so no lock is needed."""
        first = NUMBERS * worker
        if first < len(self._numbers):  # another loader may start more workers than this was made for
            self._numbers[first] += rows
            self._numbers[first + 1] += size
            self._numbers[first + 2] += seconds

    def reset(self) -> None:
        """Start again from 0. What a worker adds at this moment may be lost."""
        for number in range(len(self._numbers)):
            self._numbers[number] = 0

    def totals(self) -> list[dict[str, Any]]:
        """The counts of each worker."""
        lines = np.array(self._numbers).reshape(-1, NUMBERS).tolist()
        return [
            {"worker": worker, "rows": int(rows), "bytes": int(size), "seconds": seconds}
            for worker, (rows, size, seconds) in enumerate(lines)
        ]


@dataclass(frozen=True, kw_only=True)
class Measure(Stage):
    """Counts the rows that are read, their bytes in the files, and the time that reading takes. Changes no row."""

    counters: Counters
    index: IndexView
    worker: Any
    """A function that returns the worker of this process and the number of workers; None outside of a worker."""
    name = "metrics"

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("counters", "index", "worker")}

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        return inputs if inputs.row_runs is None else replace(inputs, row_runs=self._counted(inputs.row_runs))

    def _counted(self, runs: Iterator[RowRun]) -> Iterator[RowRun]:
        worker = (self.worker() or (0, 1))[0]
        start = time.perf_counter()
        for run in runs:
            self.counters.add(worker, len(run), self._bytes(run), time.perf_counter() - start)
            yield run
            del run  # the next run can then reuse this one's memory, which is still in the CPU cache
            start = time.perf_counter()

    def _bytes(self, run: RowRun) -> float:
        starts, keys = self.index.block_starts, run.keys
        first, last = (np.searchsorted(starts, [keys.min(), keys.max()], "right") - 1).tolist()
        if first == last:
            return len(keys) * float(self._row_bytes[first])
        return float(self._row_bytes[np.searchsorted(starts, keys, "right") - 1].sum())

    @cached_property
    def _row_bytes(self) -> npt.NDArray[np.float64]:
        """The bytes per row of each block."""
        lengths, rows = self.index.block_lengths, self.index.block_rows
        sizes: npt.NDArray[np.float64] = lengths / np.maximum(1, rows)
        return sizes
