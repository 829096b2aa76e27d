"""How long a loop waits for its batches, and where the time goes, in this process and in workers.

The meter is a wrapper around the batches of a pass. It changes nothing about them.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from operator import add, sub
from typing import TYPE_CHECKING, Any, NamedTuple

from midepoch.pipeline.mixture import Mixture
from midepoch.pipeline.pipeline import Pipeline, PipelineLanes
from midepoch.sources.source import OpenSource, ReadCounts, sum_counts

if TYPE_CHECKING:
    from midepoch.delivery.passes import Pass, Progress

Metrics = dict[str, float]


class Tally(NamedTuple):
    """Seconds and counts of one or more processes."""

    read: float = 0.0
    """Seconds in which readers waited for rows to be fetched and decoded."""
    fetched: float = 0.0
    """Seconds of requests to a store, in all threads."""
    decoded: float = 0.0
    """Seconds in which blocks were decoded, in all threads."""
    functions: float = 0.0
    """Seconds in functions of the user."""
    rows: float = 0.0
    cache_hits: float = 0.0
    cache_misses: float = 0.0
    retries: float = 0.0
    tokens: float = 0.0
    """The tokens of packs, without padding."""
    places: float = 0.0
    """The same with padding."""
    made: float = 0.0
    """Seconds in which a worker made items, reading included."""
    sent: float = 0.0
    """Seconds in which a worker wrote items to shared memory."""
    idle: float = 0.0
    """Seconds in which a worker was as far ahead as it may be."""
    received: float = 0.0
    """Seconds in which the main process copied items from there."""
    restarts: float = 0.0
    """How often a worker that died was started again."""

    def plus(self, other: "Tally") -> "Tally":
        """Both together."""
        return Tally(*map(add, self, other))

    def minus(self, other: "Tally") -> "Tally":
        """What was added since ``other``."""
        return Tally(*map(sub, self, other))


SHOWN = ("read", "fetched", "decoded", "functions", "received", "cache_hits", "cache_misses", "retries", "restarts")
"""What metrics have of a tally under the same name."""


class Reading:
    """What one process holds open to read the lanes of an epoch, and what that has taken."""

    def __init__(self, lanes: PipelineLanes) -> None:
        self._lanes = lanes
        self._opened: list[OpenSource] = []
        self._closed_counts = ReadCounts()
        self.function_seconds = 0.0
        """How long functions of the user have taken."""

    def open(self, lanes: int) -> OpenSource:
        """What this process holds open to read this number of lanes."""
        self._opened.append(self._lanes.pipeline.source.open(lanes))
        return self._opened[-1]

    def close(self, opened: OpenSource, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Close what was opened to read. What that has taken stays counted.

        While the interpreter shuts down nothing is counted, because modules may have been cleared already.
        """
        self._opened.remove(opened)
        opened.close()
        if is_finalizing():
            return
        self._closed_counts = sum_counts((self._closed_counts, opened.counts()))

    def tally(self) -> Tally:
        """What this process has read and packed so far."""
        counts = sum_counts((self._closed_counts, *(opened.counts() for opened in self._opened)))
        return Tally(
            read=counts.seconds,
            fetched=counts.fetched,
            decoded=counts.decoded,
            functions=self.function_seconds,
            rows=counts.rows,
            cache_hits=counts.cache_hits,
            cache_misses=counts.cache_misses,
            retries=counts.retries,
            tokens=self._lanes.packs.tokens,
            places=self._lanes.packs.places,
        )


class Meter:
    """The times of a pass. It costs two looks at the clock for all batches that are ready."""

    def __init__(self, run: "Pass", clock: Callable[[], float] = time.perf_counter) -> None:
        self._run, self._clock = run, clock
        self._waited = 0.0
        self._begun: float | None = None
        self._ended: float | None = None
        self._earlier = self._base = 0
        self._epoch_begun = 0.0
        self._tokens_base: int | None = None
        """The tokens that the epoch had delivered before the loop, or None while nobody has asked."""
        self._earlier_tally = Tally()
        self._progress: Progress | None = None

    def timed(self, in_bulk: Iterator[Iterable[Any]]) -> Iterator[Iterable[Any]]:
        """The batches of the pass. What the loop does with them is not counted as waiting."""
        self._begun = asked = self._clock()
        try:
            for batches in in_bulk:
                self._note_epoch(self._run.progress(), asked)
                self._waited += self._clock() - asked
                yield batches
                del batches  # so that the next ones are made in the memory of these
                asked = self._clock()
            self._waited += self._clock() - asked
        finally:
            self._ended = self._clock()

    def _note_epoch(self, progress: "Progress", asked: float) -> None:
        if progress is not self._progress:
            self._earlier, self._earlier_tally = self._batches(), self._tally()
            self._progress, self._base = progress, progress.items
            self._tokens_base, self._epoch_begun = None, asked

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
            **{name: getattr(tally, name) for name in SHOWN},
            "processed": max(0.0, (tally.made or self._waited) - tally.read),
            "transported": tally.sent + tally.received,
            "workers_idle": tally.idle,
            "rows_read": tally.rows,
            "rows_read_per_second": tally.rows / seconds if seconds else 0.0,
        }
        if (rows := rows_of_item(pipeline)) is not None:
            figures["rows_per_second"] = figures["batches_per_second"] * rows
        if tally.places:
            figures["tokens_per_second"] = tally.tokens / seconds if seconds else 0.0
            figures["pack_fill"] = tally.tokens / tally.places
        if self._progress is not None:
            figures |= self._delivered(self._progress, now)
            if isinstance(pipeline.source, Mixture):
                figures |= _shares(pipeline.source, self._progress)
        return figures

    def _delivered(self, progress: "Progress", now: float) -> Metrics:
        """What all ranks have delivered of the epoch: tokens, and tokens and items of the parts of a mixture."""
        if progress.amounts is None:
            return {}
        if self._tokens_base is None:
            start = progress.session.after(self._base)
            self._tokens_base = progress.amounts.delivered(start)[""].tokens or 0
        figures: Metrics = {}
        for name, (items, tokens) in progress.amounts.delivered(progress.state()).items():
            if name:
                figures[f"items_{name}"] = items
            if tokens is not None:
                figures[f"tokens_{name}" if name else "tokens"] = tokens
        if "tokens" in figures:
            seconds = (now - self._epoch_begun) * progress.session.readers
            figures["tokens_per_second"] = (figures["tokens"] - self._tokens_base) / seconds if seconds else 0.0
        return figures


def _shares(mixture: Mixture, progress: Any) -> Metrics:
    """The share of each part in what was drawn since the present schedule began."""
    state = progress.state()
    cursors = [position.cursor for position in state.positions.expand()]
    if not progress.session.counted and state.reader_progress is not None:  # only what this rank has drawn
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
