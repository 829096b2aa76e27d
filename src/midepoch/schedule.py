"""Which source a mixture draws next: a schedule that keeps every source within one item of its exact share.

Each draw goes to a source that is due, the one that would be late first (the chairman assignment of R. Tijdeman,
1980): of ``n`` sources none is ever more than ``1 - 1/(2n - 2)`` items away from its share of the draws so far. The
little that is left to one item is used to begin every lane at another phase, so that lanes do not all draw the same
source at once.

Everything is whole numbers, in units of ``1 / sum(weights)`` of an item, so the schedule is the same on every machine.
"""

from collections.abc import Sequence
from math import gcd

from midepoch.permute import key_of

PRECISION = 1 << 20


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """The weights as the smallest whole numbers in their proportion, to about one in a million."""
    total = sum(weights)
    scaled = [max(1, round(PRECISION * weight / total)) if weight else 0 for weight in weights]
    common = gcd(*scaled)
    return tuple(one // common for one in scaled)


class Schedule:
    """The order in which sources are drawn from, in one lane."""

    def __init__(self, weights: Sequence[int], *key: int | str) -> None:
        """Take whole weights, of which at least one is not 0; the key decides how the schedule begins."""
        self._weights = [(number, weight) for number, weight in enumerate(weights) if weight]
        self._total = sum(weights)
        self._slack = max(1, 2 * len(self._weights) - 2)
        self._phases = self._begin(*key)

    def _begin(self, *key: int | str) -> dict[int, int]:
        """How far ahead of its share each source begins, in units of ``1 / slack`` of the total: they cancel out."""
        phases = {number: 0 for number, _ in self._weights}
        order = sorted(phases, key=lambda number: key_of("phase", number, *key))
        for ahead, behind in zip(order[::2], order[1::2], strict=False):
            shift = key_of("shift", ahead, *key) % (2 * self._total - 1) - (self._total - 1)
            phases[ahead], phases[behind] = shift, -shift
        return phases

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
