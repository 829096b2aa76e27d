"""Which part a mixture draws from next, so that every part stays within one item of its exact share.

Each draw goes to a part that is due: the one that would be late first (the chairman assignment of R. Tijdeman, 1980).
Of ``n`` parts none is ever more than ``1 - 1/(2n - 2)`` items away from its share of the draws so far. The rest of that
one item lets every lane begin at another phase, so that lanes do not all draw from the same part at once.

Everything is integers, in units of ``1 / sum(weights)`` of an item, so the schedule is the same on every machine. After
``sum(weights)`` draws each part has been drawn exactly as often as its weight says, and the schedule repeats. A table
of one period says which part a draw takes, what was drawn before it, and which draw takes a given item.

Weights may change with the number of items drawn: in steps, or in ramps of small steps. Each step is a schedule of its
own, from its own beginning.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from itertools import pairwise
from math import gcd, lcm
from typing import Any

import numpy as np

from midepoch._common.checks import cached_property, check_integer, log_once
from midepoch._common.hashing import I32, I64, key_of

PERIOD, ROUNDED = 1 << 20, 1 << 16
"""The largest sum of integer weights, and about the sum that they are rounded to beyond it: a table has every draw."""
NEVER = 1 << 62
"""The number of a draw that never comes."""
RAMP_STEPS = 32
"""A ramp from one weight to the next has at most this number of equal steps."""
RAMP_PARTS = 256
"""Inside a ramp, shares are rounded to multiples of one part in this number, so that their period is short."""


def integer_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """The smallest integers in the proportion of the weights, taken as the decimals that they print as.

    Where their sum would be above ``PERIOD``, as for 0.1 + 0.2, they are rounded to a sum of about ``ROUNDED``. A
    weight that is not 0 never becomes 0.
    """
    shares = [Fraction(repr(float(weight))) for weight in weights]
    scale = lcm(*(share.denominator for share in shares))
    integers = [int(share * scale) for share in shares]
    if sum(integers) // gcd(*integers) > PERIOD:
        total = sum(shares)
        integers = [max(1, round(ROUNDED * share / total)) if share else 0 for share in shares]
        rounded = _smallest(integers)
        log_once(
            f"The weights {', '.join(map(str, weights))} of a mixture are rounded to {', '.join(map(str, rounded))}. "
            f"As they are, their schedule repeats only after more than {PERIOD:,} items: give weights of fewer digits."
        )
    return _smallest(integers)


def token_weights(weights: Sequence[float], means: Sequence[Fraction]) -> tuple[int, ...]:
    """Weights of items by which parts with these mean lengths have such shares of tokens. The sum is at most 2**16."""
    shares = [Fraction(repr(float(weight))) / mean for weight, mean in zip(weights, means, strict=True)]
    unit = (ROUNDED - len(shares)) / sum(shares)
    return _smallest([max(1, round(share * unit)) if share else 0 for share in shares])


def _smallest(integers: Sequence[int]) -> tuple[int, ...]:
    common = gcd(*integers)
    return tuple(integer // common for integer in integers)


def draws_by_part(parts: I32, count: int) -> list[I64]:
    """For each of ``count`` parts, which of these draws are from it."""
    ends = np.cumsum(np.bincount(parts, minlength=count))
    # 16 bits are sorted in linear time.
    order = np.argsort(parts.astype(np.int16) if count <= 1 << 15 else parts, kind="stable")
    return [order[begin:end] for begin, end in pairwise([0, *ends.tolist()])]


class Shares:
    """The draws of one lane by constant weights, counted from their beginning."""

    def __init__(self, weights: Sequence[int], *key: int | str) -> None:
        """Take integer weights, of which at least one is not 0. The key decides the phase."""
        self.weights = np.array(weights, np.int64)
        self._weights = [(part, weight) for part, weight in enumerate(weights) if weight]
        self._total = sum(weights)
        self._slack = max(1, 2 * len(self._weights) - 2)
        self._phases = self._begin(*key)

    def _begin(self, *key: int | str) -> dict[int, int]:
        """How far ahead of its share each part begins, in units of ``1 / slack`` of the total. The sum is 0."""
        phases = {part: 0 for part, _ in self._weights}
        order = sorted(phases, key=lambda part: key_of("phase", part, *key))
        for ahead, late in zip(order[::2], order[1::2], strict=False):
            shift = key_of("shift", ahead, *key) % (2 * self._total - 1) - (self._total - 1)
            phases[ahead], phases[late] = shift, -shift
        return phases

    @cached_property
    def _period(self) -> I32:
        """The parts of the first ``sum(weights)`` draws, which repeat.

        Every item of a part is due from some draw on, and late after some other. Both follow from the item's number.
        Each draw takes, of the items that are due, the one that is late first.
        """
        due, late, parts = [], [], []
        for part, weight in self._weights:
            items = self._total - self._phases[part] + self._slack * self._total * np.arange(weight)
            due.append(-(-items // (self._slack * weight)))
            late.append(_parts_of_quotients(items + (self._slack - 2) * self._total, weight))
            parts.append(np.full(weight, part, np.int32))
        order = np.lexsort(np.hstack(late))
        return np.concatenate(parts)[order[_first_due(np.concatenate(due)[order])]]

    @cached_property
    def _draws_of(self) -> list[I64]:
        """For each part, its draws in a period."""
        return draws_by_part(self._period, len(self.weights))

    def drawn(self, draws: int) -> I64:
        """How many items were drawn from each part after a number of draws."""
        periods, rest = divmod(draws, self._total)
        of_parts = np.array([of_part.searchsorted(rest) for of_part in self._draws_of], np.int64)
        return periods * self.weights + of_parts

    def parts(self, first: int, stop: int) -> I32:
        """The parts of the draws from ``first`` to ``stop``."""
        return self._period.take(np.arange(first, stop) % self._total)

    def draw_of(self, part: int, number: int) -> int:
        """The draw that takes the item with this number of a part, which has a weight."""
        periods, rest = divmod(number, len(self._draws_of[part]))
        return periods * self._total + int(self._draws_of[part][rest])


class DrawTable:
    """All draws of one lane: by constant weights, or in steps by several, one after the other.

    What was drawn before a step follows from the weights and lengths of the earlier steps, so any draw can be found
    without the ones before it.
    """

    def __init__(self, steps: Sequence[tuple[int, Shares]]) -> None:
        """Take the draw at which each step begins, and its shares. The first begins at 0."""
        self._starts = [start for start, _ in steps]
        self._steps = [shares for _, shares in steps]
        self._before = [np.zeros_like(self._steps[0].weights)]

    def continue_with(self, other: "DrawTable", start: int) -> None:
        """Let all draws from ``start`` on be those of another table, from its beginning."""
        self._starts += [start + begin for begin in other._starts]
        self._steps += other._steps

    def step(self, draw: int) -> int:
        """The number of the step of a draw."""
        return bisect_right(self._starts, draw) - 1

    def drawn_before(self, step: int) -> I64:
        """How many items were drawn from each part before a step."""
        while len(self._before) <= step:
            last = len(self._before) - 1
            drawn = self._steps[last].drawn(self._starts[last + 1] - self._starts[last])
            self._before.append(self._before[last] + drawn)
        return self._before[step]

    def drawn(self, draws: int) -> I64:
        """How many items were drawn from each part after a number of draws."""
        step = self.step(draws)
        return self.drawn_before(step) + self._steps[step].drawn(draws - self._starts[step])

    def parts(self, first: int, stop: int) -> I32:
        """The parts of the draws from ``first`` to ``stop``."""
        found = [np.empty(0, np.int32)]
        while first < stop:
            step = self.step(first)
            end = min([stop, *self._starts[step + 1 : step + 2]])
            found.append(self._steps[step].parts(first - self._starts[step], end - self._starts[step]))
            first = end
        return np.concatenate(found)

    def draw_of(self, part: int, number: int) -> int:
        """The draw that takes the item with this number of a part; ``NEVER`` or a later one if no draw does."""
        step = 0
        while step + 1 < len(self._starts) and self.drawn_before(step + 1)[part] <= number:
            step += 1
        if not self._steps[step].weights[part]:
            return NEVER
        return self._starts[step] + self._steps[step].draw_of(part, number - int(self.drawn_before(step)[part]))


def _parts_of_quotients(numbers: I64, divisor: int) -> I64:
    """Quotients as rows of integers, the most important last: 41 bits of fractions, and whole numbers.

    Fractions with different divisors, which add up to about ``PERIOD`` at most, differ in these bits.
    """
    whole, rest = np.divmod(numbers, divisor)
    return np.stack([(rest << 41) // divisor, whole])


def _first_due(due: I64) -> I64:
    """For each draw, counted from 1, the first number that is due by then and was not taken before."""
    taken = np.arange(len(due))
    early = np.flatnonzero(due > taken + 1).tolist()
    if not early:
        return taken
    by_due, due_draws = np.argsort(due, kind="stable").tolist(), due.tolist()
    waiting: list[int] = []
    released = end = 0
    for first in early:
        if first < end:
            continue
        last = end = first
        while end <= last:  # a number that comes too early waits, until no number before the last one is left
            end += 1
            while released < len(by_due) and due_draws[by_due[released]] <= end:
                heappush(waiting, by_due[released])
                released += 1
            while (number := heappop(waiting)) < first:
                pass  # it was taken in its place
            taken[end - 1] = number
            last = max(last, number)
    return taken


@dataclass(frozen=True)
class WeightSchedule:
    """Weights by the number of items that the mixture has drawn in an epoch, for ``mix(weights=...)``.

        weights = midepoch.WeightSchedule({0: [3, 1], 100_000: [1, 1]}, ramp=True)
        midepoch.mix([web, books], weights=weights, stop="never")

    ``weights`` is a dict. A key is the number of items, of all ranks together, from which on its weights hold; one key
    must be 0. Its weights are those that ``mix`` takes, for the same datasets at every key. With ``ramp=True`` the
    shares move from one key's to the next one's in 32 equal steps, each rounded to 1/256.
    """

    weights: Mapping[int, Sequence[float] | Mapping[str, float]]
    ramp: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.weights, Mapping) or not self.weights:
            raise TypeError(
                "WeightSchedule takes a dict of weights by the number of items, such as {0: [1, 1], 10_000: [3, 1]}, "
                f"got {self.weights!r}."
            )
        for items, weights in self.weights.items():
            check_integer("A key of a WeightSchedule", items)
            if isinstance(weights, str) or not isinstance(weights, Sized):
                raise TypeError(
                    f"A WeightSchedule needs a list or a dict of weights at every key, but at {items} it has "
                    f"{weights!r}. Give one weight for each dataset."
                )
        if 0 not in self.weights:
            raise ValueError(f"A WeightSchedule needs weights from item 0 on; its first key is {min(self.weights)}.")
        for items, weights in self.weights.items():
            if _datasets(weights) != _datasets(self.weights[0]):
                raise ValueError(
                    f"The weights of a WeightSchedule are for other datasets from item {items} on, {weights!r}, than "
                    f"from item 0 on, {self.weights[0]!r}. Give one weight for each dataset at every key."
                )


def _datasets(weights: Sequence[float] | Mapping[str, float]) -> set[str] | int:
    """The names of the datasets that have these weights, or their number."""
    return {*weights} if isinstance(weights, Mapping) else len(weights)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The weights of all parts of a mixture: constant, or those of a ``WeightSchedule``."""

    weights: tuple[tuple[float, ...], ...]
    """Those of all parts, for each number of items in ``at``."""
    at: tuple[int, ...] = (0,)
    ramp: bool = False
    are_constant: bool = False

    @classmethod
    def constant(cls, weights: Sequence[float]) -> "Weights":
        """The same weights from the first item to the last."""
        return cls(weights=(tuple(weights),), are_constant=True)

    @property
    def described(self) -> list[Any]:
        """The weight of each part as a checkpoint holds it: a number, or all of its weights if they can change."""
        if self.are_constant:
            return list(self.weights[0])
        own = zip(*self.weights, strict=True)
        return [{"ramp": self.ramp, "at": [list(pair) for pair in zip(self.at, of, strict=True)]} for of in own]

    @cached_property
    def steps(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """From which item on which integer weights hold."""
        steps = []
        for number, (begin, weights) in enumerate(zip(self.at, self.weights, strict=True)):
            steps.append((begin, integer_weights(weights)))
            if self.ramp and number + 1 < len(self.at):
                steps += _ramp(begin, self.at[number + 1], weights, self.weights[number + 1])
        return tuple(steps)

    def of_lane(self, lane: int, lanes: int) -> list[tuple[int, tuple[int, ...]]]:
        """The same for one lane, which takes every ``lanes``-th item."""
        return [(max(0, -((lane - items) // lanes)), weights) for items, weights in self.steps]


def weight_in_words(weight: Any) -> str:
    """A weight of a checkpoint: a number, or the weights from some items on."""
    if isinstance(weight, Mapping):
        return ", ".join(f"{of_item:g} from item {items}" for items, of_item in weight["at"])
    return f"{weight:g}"


def _ramp(begin: int, end: int, before: Sequence[float], after: Sequence[float]) -> list[tuple[int, tuple[int, ...]]]:
    """The steps between two keys, without the first."""
    count = min(RAMP_STEPS, end - begin)
    first, last = _shares(before), _shares(after)
    steps = []
    for step in range(1, count):
        shares = [a + (b - a) * Fraction(step, count) for a, b in zip(first, last, strict=True)]
        integers = [max(1, round(RAMP_PARTS * share)) if share else 0 for share in shares]
        steps.append((begin + (end - begin) * step // count, integer_weights(integers)))
    return steps


def _shares(weights: Sequence[float]) -> list[Fraction]:
    integers = integer_weights(weights)
    return [Fraction(integer, sum(integers)) for integer in integers]
