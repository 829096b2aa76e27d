"""Counting the packs of a whole epoch in parallel, before their total is asked for."""

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple

from midepoch._common.executors import run_all
from midepoch._common.lazy import cached_property
from midepoch._common.progress_bar import ProgressBar
from midepoch.checkpoint.lanes import Cursor
from midepoch.pipeline.lanes import PipelineLanes
from midepoch.pipeline.mixture import MixtureLanes
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.source import EpochCut

IN_PARALLEL = 20_000_000
"""With more documents than this left to count, processes are started."""
JOB_DOCUMENTS = 1 << 18


class Job(NamedTuple):
    """Some consecutive windows of a lane."""

    lane: int
    cursor: Cursor
    """The cursor at the start of the first window."""
    windows: int


@dataclass(frozen=True)
class CountWindows:
    """Counts the packs of windows, in any process."""

    pipeline: Pipeline
    cut: EpochCut

    @cached_property
    def _lanes(self) -> PipelineLanes:
        return PipelineLanes(self.pipeline, self.cut)

    def __call__(self, job: Job) -> list[tuple[int, int]]:
        """The position of each window's first row in its lane, and its number of packs."""
        windows = self._lanes.windows(job.lane, job.cursor)
        assert windows is not None
        return windows.outputs(job.windows)


def count_ahead(lanes: PipelineLanes, executor: Executor | None = None) -> None:
    """Count the packs of all lanes, if so many are unknown that one process would take long."""
    if isinstance(lanes.source, MixtureLanes):
        for part in lanes.source.first_passes():
            count_ahead(part, executor)
        return
    jobs = list(_unknown(lanes))
    documents = len(jobs) * JOB_DOCUMENTS
    if documents <= IN_PARALLEL:
        return
    with ProgressBar("packs are counted", unit="documents", total=documents) as bar:
        count = CountWindows(lanes.pipeline, lanes.cut)
        for number, (job, counts) in enumerate(run_all(count, jobs, executor), start=1):
            of_lane = lanes.output_counts(job.lane)
            for start, outputs in counts:
                of_lane.put(start, outputs)
            bar.update(number * JOB_DOCUMENTS)


def _unknown(lanes: PipelineLanes) -> Iterator[Job]:
    """The windows that nobody has counted, as jobs of about ``JOB_DOCUMENTS`` documents."""
    for lane in range(lanes.cut.lanes):
        windows = lanes.windows(lane, lanes.pipeline.begin)
        if windows is None or not windows.is_shared:
            return
        at_once = max(1, JOB_DOCUMENTS // windows.size)
        total = windows.windows()
        for first in range(0, total, at_once):
            here = range(first, min(first + at_once, total))
            if any(windows.known_outputs(number) is None for number in here):
                yield Job(lane, (*windows.start(first), 0), len(here))
