"""How long a loop waits for its batches: a wrapper around the batches of a pass, which changes nothing about them."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from midepoch.delivery.passes import Pass
from midepoch.delivery.progress import Progress


class Meter:
    """The times of a pass. It costs two looks at the clock for all batches that are ready."""

    def __init__(self, run: Pass, clock: Callable[[], float] = time.perf_counter) -> None:
        self._run, self._clock = run, clock
        self._waited = 0.0
        self._begun: float | None = None
        self._ended: float | None = None
        self._earlier = self._base = 0
        self._progress: Progress | None = None

    def timed(self, in_bulk: Iterator[Iterable[Any]]) -> Iterator[Iterable[Any]]:
        """The batches of the pass. What the loop does with them is not counted as waiting."""
        self._begun = asked = self._clock()
        try:
            for batches in in_bulk:
                self._note_epoch(self._run.progress())
                self._waited += self._clock() - asked
                yield batches
                del batches  # so that the next ones are made in the memory of these
                asked = self._clock()
            self._waited += self._clock() - asked
        finally:
            self._ended = self._clock()

    def _note_epoch(self, progress: Progress) -> None:
        if progress is not self._progress:
            self._earlier += self._delivered()
            self._progress, self._base = progress, progress.items

    def _delivered(self) -> int:
        return 0 if self._progress is None else self._progress.items - self._base

    def metrics(self) -> dict[str, float]:
        """Figures of the pass so far, by name."""
        pipeline, now = self._run.plan.pipeline, self._clock() if self._ended is None else self._ended
        seconds = 0.0 if self._begun is None else now - self._begun
        batches = self._earlier + self._delivered()
        figures = {
            "batches": batches,
            "seconds": seconds,
            "waited": self._waited,
            "waited_share": self._waited / seconds if seconds else 0.0,
            "batches_per_second": batches / seconds if seconds else 0.0,
        }
        if pipeline.uniform:
            figures["rows_per_second"] = figures["batches_per_second"] * pipeline.item_rows
        return figures
