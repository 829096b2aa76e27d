"""How long a loop waits for its batches, and where the time goes: a wrapper around the batches of a pass.

It changes nothing about them.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from midepoch.delivery.passes import Pass, Progress
from midepoch.delivery.tally import Tally
from midepoch.delivery.uncounted import ReportedProgress
from midepoch.pipeline.mixture import Mixture
from midepoch.pipeline.pipeline import Pipeline
from midepoch.stages.pack.stage import PackStream, PackWindows

Metrics = dict[str, float]
OnMetrics = Callable[[Metrics], object]


class Meter:
    """The times of a pass. It costs two looks at the clock for all batches that are ready."""

    def __init__(
        self,
        run: Pass,
        clock: Callable[[], float] = time.perf_counter,
        *,
        on_metrics: OnMetrics | None = None,
        every: int = 100,
    ) -> None:
        """``on_metrics`` is called after ``every`` batches, and at the end of the pass."""
        self._run, self._clock, self._on_metrics, self._every = run, clock, on_metrics, every
        self._waited = 0.0
        self._begun: float | None = None
        self._ended: float | None = None
        self._earlier = self._base = 0
        self._earlier_tally = Tally()
        self._progress: Progress | None = None

    def timed(self, in_bulk: Iterator[Iterable[Any]]) -> Iterator[Iterable[Any]]:
        """The batches of the pass. What the loop does with them is not counted as waiting."""
        self._begun = asked = self._clock()
        try:
            for batches in in_bulk:
                self._note_epoch(self._run.progress())
                self._waited += self._clock() - asked
                if self._on_metrics is None:
                    yield batches
                else:
                    yield from self._reporting(batches, self._on_metrics)
                del batches  # so that the next ones are made in the memory of these
                asked = self._clock()
            self._waited += self._clock() - asked
        finally:
            self._ended = self._clock()
        if self._on_metrics is not None:
            self._on_metrics(self.metrics())

    def _reporting(self, batches: Iterable[Any], on_metrics: OnMetrics) -> Iterator[Iterable[Any]]:
        """The batches in parts that end where metrics are due."""
        remaining = iter(batches)
        while True:
            before = self._batches()
            due = self._every - before % self._every
            yield islice(remaining, due)
            if self._batches() - before < due:
                return
            on_metrics(self.metrics())

    def _note_epoch(self, progress: Progress) -> None:
        if progress is not self._progress:
            self._earlier, self._earlier_tally = self._batches(), self._tally()
            self._progress, self._base = progress, progress.items

    def _batches(self) -> int:
        return self._earlier + (0 if self._progress is None else self._progress.items - self._base)

    def _tally(self) -> Tally:
        """What was done in all processes so far."""
        if self._progress is None:
            return self._earlier_tally
        return self._earlier_tally.plus(self._progress.reading.tally()).plus(self._progress.of_workers)

    def metrics(self) -> Metrics:
        """Figures of the pass so far, by name."""
        pipeline, now = self._run.plan.pipeline, self._clock() if self._ended is None else self._ended
        seconds = 0.0 if self._begun is None else now - self._begun
        batches, tally = self._batches(), self._tally()
        figures = {
            "batches": batches,
            "seconds": seconds,
            "waited": self._waited,
            "waited_share": self._waited / seconds if seconds else 0.0,
            "batches_per_second": batches / seconds if seconds else 0.0,
            "read": tally.read,
            "fetched": tally.fetched,
            "decoded": tally.decoded,
            "functions": tally.functions,
            "processed": max(0.0, (tally.made or self._waited) - tally.read),
            "transported": tally.sent + tally.received,
            "received": tally.received,
            "workers_idle": tally.idle,
            "rows_read": tally.rows,
            "rows_read_per_second": tally.rows / seconds if seconds else 0.0,
            "cache_hits": tally.cache_hits,
            "cache_misses": tally.cache_misses,
            "retries": tally.retries,
        }
        if (rows := rows_of_item(pipeline)) is not None:
            figures["rows_per_second"] = figures["batches_per_second"] * rows
        if tally.packs:
            lengths = [stage.spec.length for stage in pipeline.stages if isinstance(stage, PackWindows | PackStream)]
            figures["tokens_per_second"] = tally.tokens / seconds if seconds else 0.0
            figures["pack_fill"] = tally.tokens / (tally.packs * lengths[-1])
        if self._progress is not None and isinstance(pipeline.source, Mixture):
            figures |= _shares(pipeline.source, self._progress)
        return figures


def _shares(mixture: Mixture, progress: Progress) -> Metrics:
    """The share of each part in what was drawn since the present schedule began."""
    state = progress.state()
    cursors = [position.cursor for position in state.positions.expand()]
    if isinstance(progress, ReportedProgress) and state.reader_progress is not None:  # only what this rank has drawn
        cursors = progress.cursors
    drawn = [0] * len(mixture.parts)
    for cursor in cursors:
        for part, position in enumerate(mixture.part_positions(cursor[: len(mixture.begin)])):
            drawn[part] += position.drawn
    return {f"share_{name}": own / sum(drawn) for name, own in zip(mixture.names, drawn, strict=True) if sum(drawn)}


def rows_of_item(pipeline: Pipeline) -> int | None:
    """The rows of a whole item; None if items have different numbers of rows, such as packs."""
    if any(stage.many_outputs for stage in pipeline.stages):
        return None
    rows: int | None = 1
    if isinstance(pipeline.source, Mixture):
        of_parts = {rows_of_item(part) for part in pipeline.source.parts}
        rows = of_parts.pop() if len(of_parts) == 1 else None
    return None if rows is None else rows * pipeline.item_rows
