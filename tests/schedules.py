"""A model of a mixture's schedule, which draws one by one. The schedule itself finds many draws together."""

from midepoch.pipeline.schedule import Shares


class OneByOne:
    """The draws of one lane by constant weights."""

    def __init__(self, weights, *key):
        self._weights = [(part, weight) for part, weight in enumerate(weights) if weight]
        self._total = sum(weights)
        self._slack = max(1, 2 * len(self._weights) - 2)
        self._phases = Shares(weights, *key)._phases

    def draw(self, drawn):
        """The part to draw from next, after ``drawn`` draws from each: of those that are due, the first to be late."""
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

    def parts(self, count, drawn=None):
        """The parts of the next draws."""
        drawn, found = list(drawn or [0] * (1 + max(part for part, _ in self._weights))), []
        for _ in range(count):
            found.append(self.draw(drawn))
            drawn[found[-1]] += 1
        return found
