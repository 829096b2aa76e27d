"""Which part a mixture draws from next: a schedule that keeps every part within one item of its exact share.

Each draw goes to a part that is due: the one that would be late first (the chairman assignment of R. Tijdeman, 1980).
Of ``n`` parts none is ever more than ``1 - 1/(2n - 2)`` items away from its share of the draws so far. The rest of that
one item lets every lane begin at another phase, so that lanes do not all draw from the same part at once.

Everything is integers, in units of ``1 / sum(weights)`` of an item, so the schedule is the same on every machine. After
``sum(weights)`` draws each part has been drawn exactly as often as its weight says, and the schedule repeats.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from midepoch._common.hashing import key_of
from midepoch._common.types import I32, I64

EXACT = 1 << 32
"""The largest sum of integer weights. Beyond it weights are rounded."""
COUNTED = 1 << 20
"""The longest period of draws for which a mixture is counted."""
REMEMBERED = 1 << 14
"""The longest period of draws that is kept in memory."""
DRAWN_TOGETHER = 1024
"""How many draws are found together, at most."""


def integer_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """The smallest integers in the proportion of the weights, taken as the decimals that they print as.

    Where their sum would be above ``EXACT``, as for 0.1 + 0.2, they are rounded to one in four billion. A weight that
    is not 0 never becomes 0.
    """
    shares = [Fraction(repr(float(weight))) for weight in weights]
    scale = lcm(*(share.denominator for share in shares))
    integers = [int(share * scale) for share in shares]
    if sum(integers) // gcd(*integers) > EXACT:
        total = sum(shares)
        integers = [max(1, round(EXACT * share / total)) if share else 0 for share in shares]
    common = gcd(*integers)
    return tuple(integer // common for integer in integers)


class Schedule:
    """The order in which one lane draws from the parts."""

    def __init__(self, weights: Sequence[int], *key: int | str) -> None:
        """Take integer weights, of which at least one is not 0. The key decides the phase."""
        self._all_weights = weights
        self._weights = [(part, weight) for part, weight in enumerate(weights) if weight]
        self._total = sum(weights)
        self._slack = max(1, 2 * len(self._weights) - 2)
        self._phases = self._begin(*key)
        self._known = np.full(self._total if self._total <= REMEMBERED else 0, -1, np.int32)

    def _begin(self, *key: int | str) -> dict[int, int]:
        """How far ahead of its share each part begins, in units of ``1 / slack`` of the total. The sum is 0."""
        phases = {part: 0 for part, _ in self._weights}
        order = sorted(phases, key=lambda part: key_of("phase", part, *key))
        for ahead, late in zip(order[::2], order[1::2], strict=False):
            shift = key_of("shift", ahead, *key) % (2 * self._total - 1) - (self._total - 1)
            phases[ahead], phases[late] = shift, -shift
        return phases

    def period(self) -> I32:
        """The parts of the first ``sum(weights)`` draws, which repeat."""
        if len(self._known) and self._known.min() >= 0:
            return self._known
        parts = self._next_draws([0] * len(self._all_weights), self._total)
        if len(self._known):
            self._known = parts
        return parts

    def can_have_drawn(self, drawn: Sequence[int]) -> bool:
        """True if these numbers of draws from each part are all within one of their shares."""
        draws = sum(drawn)
        return all(
            abs(weight * draws - self._total * count) < self._total
            for weight, count in zip(self._all_weights, drawn, strict=True)
        )

    def draw(self, drawn: Sequence[int]) -> int:
        """The part to draw from next, after ``drawn`` draws from each."""
        draws = sum(drawn) + 1
        total, slack = self._total, self._slack
        best, best_late, best_weight = -1, 0, 1
        for part, weight in self._weights:
            owed = slack * (weight * draws - total * drawn[part]) + self._phases[part]
            if owed < total:  # not due yet
                continue
            late = (slack - 1) * total - owed
            if best < 0 or late * best_weight < best_late * weight:
                best, best_late, best_weight = part, late, weight
        return best

    def draws(self, drawn: Sequence[int], available: Sequence[int], most: int) -> I32:
        """The parts of the next draws: at most ``most``, and from no part more than it has available."""
        if len(self._known):
            numbers = np.arange(sum(drawn), sum(drawn) + most) % self._total
            parts = self._known[numbers]
            if parts.min() < 0 or parts[0] != self.draw(drawn):  # the counts of a damaged state may be off the schedule
                parts = self._known[numbers] = self._next_draws(drawn, most)
        else:
            parts = self._next_draws(drawn, most)
        if (np.bincount(parts, minlength=len(available)) <= available).all():
            return parts
        taken = (parts[:, None] == np.arange(len(available))).cumsum(axis=0)
        return parts[: int((taken > np.asarray(available)).any(axis=1).argmax())]

    def _next_draws(self, drawn: Sequence[int], count: int) -> I32:
        """The parts of the next ``count`` draws."""
        counts, parts = np.array(drawn, np.int64), [np.empty(0, np.int32)]
        for first in range(0, count, DRAWN_TOGETHER):
            some = self._drawn_together(counts.tolist(), min(DRAWN_TOGETHER, count - first))
            counts += np.bincount(some, minlength=len(counts))
            parts.append(some)
        return np.concatenate(parts)

    def _drawn_together(self, drawn: Sequence[int], count: int) -> I32:
        """The same for so few draws that all numbers fit 64 bits.

        Every item of a part is due from some draw on, and late after some other. Both follow from the item's number.
        Each draw takes, of the items that are due, the one that is late first, as ``draw`` does.
        """
        unit, draws = self._slack * self._total, sum(drawn)
        due, late, parts = [], [], []
        for part, weight in self._weights:
            missing = self._total - self._phases[part] + unit * drawn[part] - self._slack * weight * draws
            most = min(count, (self._slack * weight * count - missing) // unit + 1)  # those after them are due later
            items = missing + unit * np.arange(max(0, most))
            due.append(-(-items // (self._slack * weight)))
            late.append(_parts_of_quotients(items + (self._slack - 2) * self._total, weight))
            parts.append(np.full(len(items), part, np.int32))
        order = np.lexsort(np.hstack(late))
        return np.concatenate(parts)[order[_first_due(np.concatenate(due)[order], count)]]


def _parts_of_quotients(numbers: I64, divisor: int) -> I64:
    """Quotients as rows of integers, the most important last: 31 more bits of fractions, 31 bits, and whole numbers.

    Fractions with different divisors, which add up to ``EXACT`` at most, differ in their first 62 bits.
    """
    whole, rest = np.divmod(numbers, divisor)
    high, rest = np.divmod(rest << 31, divisor)
    return np.stack([(rest << 31) // divisor, high, whole])


def _first_due(due: I64, count: int) -> I64:
    """For each draw, counted from 1, the first number that is due by then and was not taken before."""
    taken = np.arange(count)
    is_early = due[:count] > taken + 1
    if not is_early.any():
        return taken
    due_draws, end = due.tolist(), 0
    for first in np.flatnonzero(is_early).tolist():
        if first < end:
            continue
        # Numbers that come too early wait, and others come before them, until none waits: then all are in order again.
        waiting, following, end = [first], first + 1, first
        while waiting and end < count:
            end += 1
            number = next((number for number in waiting if due_draws[number] <= end), None)
            if number is not None:
                waiting.remove(number)
            else:
                while due_draws[following] > end:
                    waiting.append(following)
                    following += 1
                number, following = following, following + 1
            taken[end - 1] = number
    return taken
