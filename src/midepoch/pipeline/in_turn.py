"""The draws of a lane that reads its parts one after the other: always the first part that has not ended."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from midepoch._common.types import I32, I64
from midepoch.pipeline.changing_schedule import NEVER


@dataclass(frozen=True, slots=True)
class InTurn:
    """The draws from one part until it ends. It has the methods of a Schedule, and of a Period."""

    parts_in_all: int
    current: int
    """The part that is drawn from."""

    @classmethod
    def of(cls, times_ended: Sequence[int]) -> "InTurn | None":
        """The draws from the first part that has not ended; None if all have."""
        current = next((part for part, ended in enumerate(times_ended) if not ended), None)
        return None if current is None else cls(len(times_ended), current)

    def can_have_drawn(self, drawn: Sequence[int]) -> bool:
        """True if no other part was drawn from since the one before ended."""
        return sum(drawn) == drawn[self.current]

    def draw(self, drawn: Sequence[int]) -> int:
        """The part to draw from next."""
        return self.current

    def draws(self, drawn: Sequence[int], available: Sequence[int], most: int) -> I32:
        """The parts of the next draws: at most ``most``, and not more than the part has available."""
        return np.full(min(most, available[self.current]), self.current, np.int32)

    def drawn(self, draws: int) -> I64:
        """How many items were drawn from each part after a number of draws."""
        counts = np.zeros(self.parts_in_all, np.int64)
        counts[self.current] = draws
        return counts

    def parts(self, first: int, stop: int) -> I32:
        """The parts of the draws from ``first`` to ``stop``."""
        return np.full(stop - first, self.current, np.int32)

    def draws_from(self, part: int) -> bool:
        """True of the part that is drawn from, and of those that follow."""
        return part >= self.current

    def draw_of(self, part: int, number: int) -> int:
        """The draw that takes the item with this number of a part; ``NEVER`` if no draw does before the part ends."""
        return number if part == self.current else NEVER
