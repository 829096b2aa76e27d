"""Weights of a mixture that change with the number of items drawn: in steps, or in ramps of small steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from midepoch._common.checks import check_integer
from midepoch._common.lazy import cached_property
from midepoch.pipeline.schedule import integer_weights

RAMP_STEPS = 32
"""A ramp from one weight to the next has at most this number of equal steps."""
RAMP_PARTS = 256
"""Inside a ramp, shares are rounded to multiples of one part in this number, so that their period is short."""


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
        for items in self.weights:
            check_integer("A key of a WeightSchedule", items)
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
class WeightSteps:
    """The same with the weights of each part in order."""

    at: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]
    ramp: bool = False

    def of_part(self, part: int) -> dict[str, Any]:
        """The weights of a part as plain values, for a checkpoint."""
        pairs = zip(self.at, self.weights, strict=True)
        return {"ramp": self.ramp, "at": [[items, weights[part]] for items, weights in pairs]}

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
