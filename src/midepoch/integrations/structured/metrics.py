"""A stage that changes nothing and counts what passes through it, in whichever process that is."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from midepoch.checkpoint.lanes import Cursor
from midepoch.index.index import IndexView
from midepoch.stages.flow import Context, Flow, RowRun
from midepoch.stages.stage import Stage

NUMBERS = 3


class Counters:
    """Rows, bytes and seconds of each worker, in memory that processes share."""

    def __init__(self, workers: int) -> None:
        from multiprocessing.sharedctypes import RawArray

        self._numbers = RawArray("d", NUMBERS * workers)

    def __getstate__(self) -> dict[str, Any]:
        # Only a process that is being started can be given shared memory; any other copy counts on its own.
        context = sys.modules.get("multiprocessing.context")
        shared = context is not None and context.get_spawning_popen() is not None
        return {"shared": self._numbers} if shared else {"workers": len(self._numbers) // NUMBERS}

    def __setstate__(self, values: dict[str, Any]) -> None:
        if "workers" in values:
            Counters.__init__(self, values["workers"])
        else:
            self._numbers = values["shared"]

    def add(self, worker: int, rows: int, size: float, seconds: float) -> None:
        """Count some rows. Only one process counts for a worker, so nothing needs to be locked."""
        at = NUMBERS * worker
        if at < len(self._numbers):  # a foreign loader may have more workers than were announced
            self._numbers[at] += rows
            self._numbers[at + 1] += size
            self._numbers[at + 2] += seconds

    def told(self) -> list[dict[str, Any]]:
        """What each worker has counted."""
        lines = np.array(self._numbers).reshape(-1, NUMBERS).tolist()
        return [
            {"worker": worker, "rows": int(rows), "bytes": int(size), "seconds": seconds}
            for worker, (rows, size, seconds) in enumerate(lines)
        ]


@dataclass(frozen=True, kw_only=True)
class Measure(Stage):
    """Counts the rows that are read, the bytes they take in their files, and the time that reading them takes."""

    counters: Counters
    index: IndexView
    worker: Any
    """A function that says which worker this process is, and of how many; or None outside of one."""
    name = "metrics"

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("counters", "index", "worker")}

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        """The inputs as they are."""
        return inputs if inputs.row_runs is None else replace(inputs, row_runs=self._counted(inputs.row_runs))

    def _counted(self, runs: Iterator[RowRun]) -> Iterator[RowRun]:
        worker = (self.worker() or (0, 1))[0]
        begun = time.perf_counter()
        for run in runs:
            self.counters.add(worker, len(run), self._bytes(run), time.perf_counter() - begun)
            yield run
            del run  # so that the next one is made in its memory, which is still in the cache
            begun = time.perf_counter()

    def _bytes(self, run: RowRun) -> float:
        starts, keys = self.index.block_starts, run.keys
        first, last = (np.searchsorted(starts, [keys.min(), keys.max()], "right") - 1).tolist()
        if first == last:
            return len(keys) * float(self._row_bytes[first])
        return float(self._row_bytes[np.searchsorted(starts, keys, "right") - 1].sum())

    @cached_property
    def _row_bytes(self) -> npt.NDArray[np.float64]:
        """The bytes of a row of each block."""
        lengths, rows = self.index.block_lengths, self.index.block_rows
        sizes: npt.NDArray[np.float64] = lengths / np.maximum(1, rows)
        return sizes
