"""One period of a mixture's schedule: what each part has yielded after any number of draws, by a table.

The schedule repeats after ``sum(weights)`` draws, its *period*. So the draws so far from each part, and the draw that
takes a given item of a part, are a division and a look into the table.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from midepoch._common.types import I32, I64
from midepoch.pipeline.schedule import Schedule

COUNTED_EVERY = 64
"""The table of a period holds the draws from each part after each multiple of this number."""


class Period:
    """One period of a schedule."""

    def __init__(self, schedule: Schedule, weights: Sequence[int]) -> None:
        self._weights = np.array(weights, np.int64)
        self._parts = schedule.period()
        self._total = len(self._parts)
        table = self._parts[:, None] == np.arange(len(weights))
        self._counts = np.concatenate([np.zeros((1, len(weights)), np.int64), table.cumsum(axis=0)])[::COUNTED_EVERY]
        self._draws_from = [np.flatnonzero(table[:, part]) for part in range(len(weights))]

    def drawn(self, draws: int) -> I64:
        """How many items were drawn from each part after a number of draws."""
        periods, rest = divmod(draws, self._total)
        known = rest // COUNTED_EVERY
        after = np.bincount(self._parts[known * COUNTED_EVERY : rest], minlength=len(self._weights))
        counts: I64 = periods * self._weights + self._counts[known] + after
        return counts

    def parts(self, first: int, stop: int) -> I32:
        """The parts of the draws from ``first`` to ``stop``."""
        drawn: I32 = self._parts[np.arange(first, stop) % self._total]
        return drawn

    def draws_from(self, part: int) -> bool:
        """True if the part is drawn from at all."""
        return len(self._draws_from[part]) > 0

    def draw_of(self, part: int, number: int) -> int:
        """The draw that takes the item with this number of a part."""
        draws = self._draws_from[part]
        periods, rest = divmod(number, len(draws))
        return periods * self._total + int(draws[rest])


class DrawTable(Protocol):
    """All draws of a lane: those of a Period, which repeats, or of weights that change."""

    def drawn(self, draws: int) -> I64:
        """How many items were drawn from each part after a number of draws."""

    def parts(self, first: int, stop: int) -> I32:
        """The parts of the draws from ``first`` to ``stop``."""

    def draws_from(self, part: int) -> bool:
        """True if the part is drawn from at all."""

    def draw_of(self, part: int, number: int) -> int:
        """The draw that takes the item with this number of a part."""
