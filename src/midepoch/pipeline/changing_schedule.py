"""The draws of a lane whose weights change: one schedule after the other, each from its own beginning.

In each step every part is within one item of its exact share. What was drawn before a step follows from the weights and
lengths of the earlier steps, so any draw can be found without the ones before it.
"""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from midepoch._common.types import I32, I64
from midepoch.pipeline.period import Period
from midepoch.pipeline.schedule import Schedule

NEVER = 1 << 62
"""The number of a draw that never comes."""


class ChangingSchedule:
    """The order in which one lane draws from the parts. It has the methods of a Schedule, and makes a Period."""

    def __init__(self, steps: Sequence[tuple[int, Sequence[int]]], *key: int | str) -> None:
        """Take the draws of this lane at which each step begins, and its weights. The first begins at 0."""
        self._starts = [start for start, _ in steps]
        self._weights = [list(weights) for _, weights in steps]
        self._key = key
        self._schedules: dict[int, Schedule] = {}
        self._periods: dict[int, Period] = {}
        self._before: list[I64] = [np.zeros(len(self._weights[0]), np.int64)]

    def step(self, draws: int) -> int:
        """The step of the next draw after a number of draws."""
        return bisect_right(self._starts, draws) - 1

    def schedule(self, step: int) -> Schedule:
        """The schedule of a step, which counts from its own beginning."""
        if step not in self._schedules:
            self._schedules[step] = Schedule(self._weights[step], *self._key, step)
        return self._schedules[step]

    def period(self, step: int) -> Period:
        """One period of the schedule of a step."""
        if step not in self._periods:
            self._periods[step] = Period(self.schedule(step), self._weights[step])
        return self._periods[step]

    def before(self, step: int) -> I64:
        """How many items were drawn from each part before a step."""
        while len(self._before) <= step:
            number = len(self._before) - 1
            weights = np.array(self._weights[number], np.int64)
            periods, rest = divmod(self._starts[number + 1] - self._starts[number], int(weights.sum()))
            counts = periods * weights
            if rest:
                nothing = [0] * len(weights)
                drawn = self.schedule(number).draws(nothing, [rest] * len(weights), rest)
                counts = counts + np.bincount(drawn, minlength=len(weights))
            self._before.append(self._before[-1] + counts)
        return self._before[step]

    def _in_step(self, drawn: Sequence[int]) -> tuple[int, list[int]]:
        """The step of the next draw, and how many items it has drawn from each part."""
        step = self.step(sum(drawn))
        return step, (np.asarray(drawn, np.int64) - self.before(step)).tolist()

    def can_have_drawn(self, drawn: Sequence[int]) -> bool:
        """True if these numbers of draws can have been reached."""
        step, here = self._in_step(drawn)
        return min(here) >= 0 and self.schedule(step).can_have_drawn(here)

    def draw(self, drawn: Sequence[int]) -> int:
        """The part to draw from next, after ``drawn`` draws from each."""
        step, here = self._in_step(drawn)
        return self.schedule(step).draw(here)

    def draws(self, drawn: Sequence[int], available: Sequence[int], most: int) -> I32:
        """The parts of the next draws: at most ``most``, none of a later step, none more than is available."""
        step, here = self._in_step(drawn)
        if step + 1 < len(self._starts):
            most = min(most, self._starts[step + 1] - sum(drawn))
        return self.schedule(step).draws(here, available, most)

    def drawn(self, draws: int) -> I64:
        """How many items were drawn from each part after a number of draws."""
        step = self.step(draws)
        counts: I64 = self.before(step) + self.period(step).drawn(draws - self._starts[step])
        return counts

    def parts(self, first: int, stop: int) -> I32:
        """The parts of the draws from ``first`` to ``stop``."""
        found = [np.empty(0, np.int32)]
        while first < stop:
            step = self.step(first)
            end = min(stop, self._starts[step + 1]) if step + 1 < len(self._starts) else stop
            found.append(self.period(step).parts(first - self._starts[step], end - self._starts[step]))
            first = end
        return np.concatenate(found)

    def draws_from(self, part: int) -> bool:
        """True if the part is drawn from at all."""
        return any(weights[part] for weights in self._weights)

    def draw_of(self, part: int, number: int) -> int:
        """The draw that takes the item with this number of a part; ``NEVER`` if no draw does."""
        step = 0
        while step + 1 < len(self._starts) and self.before(step + 1)[part] <= number:
            step += 1
        if not self.period(step).draws_from(part):
            return NEVER
        return self._starts[step] + self.period(step).draw_of(part, number - int(self.before(step)[part]))
