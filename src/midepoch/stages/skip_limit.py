"""How many broken samples may be skipped before skipping them is an error."""

from dataclasses import dataclass

from midepoch._common.checks import check_integer

ALL = 1.0
"""The limit that allows everything."""
LEAST_SAMPLES = 1000
"""A share is judged as one of at least this many samples: of fewer, a few broken ones in a row would exceed it."""


@dataclass(frozen=True, slots=True)
class SkipLimit:
    """A number of samples, a share of them, or None: not all of them."""

    limit: int | float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.limit, float):
            if not 0 <= self.limit <= 1:
                raise ValueError(
                    f"max_skipped is {self.limit}; as a float it is a share of the samples, between 0.0 and 1.0. Pass "
                    "an integer for a number of samples."
                )
        elif self.limit is not None:
            check_integer("max_skipped", self.limit)

    @property
    def allows_all(self) -> bool:
        """True if an epoch may be empty because everything in it is skipped."""
        return isinstance(self.limit, float) and self.limit == ALL

    def is_exceeded(self, skipped: int, tried: int) -> bool:
        """True if ``skipped`` of the ``tried`` samples are too many."""
        if self.limit is None:
            return skipped == tried >= LEAST_SAMPLES
        if isinstance(self.limit, float):
            return skipped > self.limit * max(tried, LEAST_SAMPLES)
        return skipped > self.limit

    def __str__(self) -> str:
        return "" if self.limit is None else f", more than max_skipped={self.limit!r}"
