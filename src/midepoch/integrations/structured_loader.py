"""The loader of StructuredDataset: it shares a position with its dataset, shows progress, and counts what is read."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from midepoch._common.checks import cached_property, check_integer
from midepoch._common.jobs import EVERY_SECONDS, ProgressBar
from midepoch._common.world import is_starting_a_process, torch_worker
from midepoch.checkpoint.lanes import Cursor
from midepoch.dataset import position_of
from midepoch.delivery.passes import Pass
from midepoch.index.index import IndexView
from midepoch.loader import Loader
from midepoch.stages.flow import Context, Flow, RowRun
from midepoch.stages.stage import Stage


class StructuredLoader(Loader):
    """A :class:`midepoch.Loader` that shares its states with its dataset."""

    show_progress = False
    """Whether a terminal shows how much of the epoch is delivered."""
    progress_interval = EVERY_SECONDS
    """The seconds after which the progress bar is drawn again."""

    def __setstate__(self, values: dict[str, Any]) -> None:
        super().__setstate__(values)
        if not position_of(self.dataset).is_of_loader:  # type: ignore[arg-type]
            self.dataset.share_position_of(self)  # type: ignore[attr-defined]

    def _describe_state(self, run: Pass) -> dict[str, Any]:
        """The state of a pass, with the splits that are done."""
        return {**super()._describe_state(run), **self.dataset.own_keys(run)}  # type: ignore[attr-defined]

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *, new_files: Literal["error", "append"] = "error"
    ) -> None:
        """Resume at a state; see :meth:`midepoch.StructuredDataset.load_state_dict`."""
        self.dataset.load_state_dict(state_dict, new_files=new_files)  # type: ignore[attr-defined]

    def _batches(self, run: Pass) -> Iterator[Iterable[Any]]:
        """The batches of a pass, with a progress bar if that was asked for."""
        batches = super()._batches(run)
        return self._with_progress(run, batches) if self.show_progress else batches

    def _with_progress(self, run: Pass, in_bulk: Iterator[Iterable[Any]]) -> Iterator[Iterable[Any]]:
        """The batches, with a progress bar on the terminal: rows of this rank's epoch, and batches per second."""
        start, total = time.monotonic(), 0
        with ProgressBar(f"epoch {run.epoch}", unit="rows", every=self.progress_interval) as bar:
            for number, batch in enumerate(chain.from_iterable(in_bulk), start=1):
                if bar.is_due or number == 1:
                    rows, total = self._rows_delivered(run)
                    pace = number / max(1e-9, time.monotonic() - start)
                    bar.update(rows, total=total, note=f"{pace:,.1f} batches/s")
                yield (batch,)
            bar.update(total)

    def _rows_delivered(self, run: Pass) -> tuple[int, int]:
        """How many rows of this rank's epoch were delivered, and about how many there are."""
        progress = run.progress()
        session = progress.session
        rows = sum(session.lanes.size(lane) for lane in range(len(session.positions)))
        total = rows // session.readers
        return min(total, progress.items * self.plan.pipeline.item_rows), total


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

    def _table(self) -> npt.NDArray[np.float64]:
        """The numbers in a line for each worker."""
        return np.frombuffer(self._numbers).reshape(-1, NUMBERS)

    def add(self, worker: int, rows: int, size: float, seconds: float) -> None:
        """Add to the counts of a worker. Each worker is one process, so no lock is needed."""
        lines = self._table()[worker : worker + 1]
        lines += (rows, size, seconds)  # there may be no line: another loader may start more workers than planned

    def reset(self) -> None:
        """Start again from 0. What a worker adds at this moment may be lost."""
        self._table()[:] = 0

    def totals(self) -> list[dict[str, Any]]:
        """The counts of each worker."""
        return [
            {"worker": worker, "rows": int(rows), "bytes": int(size), "seconds": seconds}
            for worker, (rows, size, seconds) in enumerate(self._table().tolist())
        ]


@dataclass(frozen=True, kw_only=True)
class Measure(Stage):
    """Counts the rows that are read, their bytes in the files, and the time that reading takes. Changes no row."""

    counters: Counters
    index: IndexView
    name = "metrics"

    @classmethod
    def of(cls, index: IndexView, workers: int) -> Self:
        """A stage that counts for this many workers, or for the process itself."""
        return cls(counters=Counters(max(1, check_integer("num_workers", workers))), index=index)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("counters", "index")}

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:  # noqa: D102
        return inputs if inputs.row_runs is None else replace(inputs, row_runs=self._counted(inputs.row_runs))

    def _counted(self, runs: Iterator[RowRun]) -> Iterator[RowRun]:
        worker = (torch_worker() or (0, 1))[0]
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
