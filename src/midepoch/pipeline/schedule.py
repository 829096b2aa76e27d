"""Which source a mixture draws next: a schedule that keeps every source within one item of its exact share.

Each draw goes to a source that is due, the one that would be late first (the chairman assignment of R. Tijdeman,
1980): of ``n`` sources none is ever more than ``1 - 1/(2n - 2)`` items away from its share of the draws so far. The
little that is left to one item is used to begin every lane at another phase, so that lanes do not all draw the same
source at once.

Everything is whole numbers, in units of ``1 / sum(weights)`` of an item, so the schedule is the same on every machine.
After ``sum(weights)`` draws each source has given its weight exactly, and the schedule repeats.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from midepoch._common.hashing import key_of
from midepoch._common.types import I32

EXACT = 1 << 32
REMEMBERED = 1 << 14


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """The weights as the smallest whole numbers in their proportion, which is that of the decimals they print as.

    Where those numbers would be beyond all use, as for 0.1 + 0.2, to one in four billion. None that is not 0 becomes 0.
    """
    shares = [Fraction(repr(float(weight))) for weight in weights]
    scale = lcm(*(share.denominator for share in shares))
    whole = [int(share * scale) for share in shares]
    if sum(whole) // gcd(*whole) > EXACT:
        total = sum(shares)
        whole = [max(1, round(EXACT * share / total)) if share else 0 for share in shares]
    common = gcd(*whole)
    return tuple(one // common for one in whole)


class Schedule:
    """The order in which sources are drawn from, in one lane."""

    def __init__(self, weights: Sequence[int], *key: int | str) -> None:
        """Take whole weights, of which at least one is not 0; the key decides how the schedule begins."""
        self._all_weights = weights
        self._weights = [(number, weight) for number, weight in enumerate(weights) if weight]
        self._total = sum(weights)
        self._slack = max(1, 2 * len(self._weights) - 2)
        self._phases = self._begin(*key)
        self._known = np.full(self._total if self._total <= REMEMBERED else 0, -1, np.int32)

    def _begin(self, *key: int | str) -> dict[int, int]:
        """How far ahead of its share each source begins, in units of ``1 / slack`` of the total: they cancel out."""
        phases = {number: 0 for number, _ in self._weights}
        order = sorted(phases, key=lambda number: key_of("phase", number, *key))
        for ahead, behind in zip(order[::2], order[1::2], strict=False):
            shift = key_of("shift", ahead, *key) % (2 * self._total - 1) - (self._total - 1)
            phases[ahead], phases[behind] = shift, -shift
        return phases

    def comes_to(self, drawn: Sequence[int]) -> bool:
        """Whether so many items of each can have been drawn: all are within one of their share."""
        draws = sum(drawn)
        return all(
            abs(weight * draws - self._total * count) < self._total
            for weight, count in zip(self._all_weights, drawn, strict=True)
        )

    def draw(self, drawn: Sequence[int]) -> int:
        """The source to draw from next, when so many items were drawn from each."""
        draws = sum(drawn) + 1
        total, slack = self._total, self._slack
        best, best_late, best_weight = -1, 0, 1
        for number, weight in self._weights:
            owed = slack * (weight * draws - total * drawn[number]) + self._phases[number]
            if owed < total:  # not due yet
                continue
            late = (slack - 1) * total - owed
            if best < 0 or late * best_weight < best_late * weight:
                best, best_late, best_weight = number, late, weight
        return best

    def draws(self, drawn: Sequence[int], have: Sequence[int], most: int) -> I32:
        """The sources of the next draws, at most ``most``, up to the first that would take more than a source has."""
        if not len(self._known):
            return np.array(self._drawn_one_by_one(drawn, have, most), np.int32)
        places = np.arange(sum(drawn), sum(drawn) + most) % self._total
        known = self._known[places]
        if known.min() < 0 or known[0] != self.draw(drawn):  # counts of a damaged state need not follow the schedule
            some = np.array(self._drawn_one_by_one(drawn, have, most), np.int32)
            self._known[places[: len(some)]] = some
            return some
        taken = (known[:, None] == np.arange(len(have))).cumsum(axis=0)
        too_many = (taken > np.asarray(have)).any(axis=1)
        return known[: int(too_many.argmax())] if too_many.any() else known

    def _drawn_one_by_one(self, drawn: Sequence[int], have: Sequence[int], most: int) -> list[int]:
        counts, left, sources = list(drawn), list(have), list[int]()
        while len(sources) < most and left[number := self.draw(counts)]:
            counts[number] += 1
            left[number] -= 1
            sources.append(number)
        return sources
