"""How much larger blocks are in memory than the index says: texts and numbers that repeat are stored once."""

from threading import Lock

KEPT = 0.9
"""What is left of the growth of a block with each block after it that grows less."""
OUTDATED = 4
"""A request is outdated if blocks grow this many times as much as when it was made."""


class Growth:
    """How many bytes blocks take in memory for each byte that the index says. Any thread may note a block.

    It rises at once, because too much memory is worse than too few blocks ahead, and falls slowly.
    """

    def __init__(self, known: float | None = None) -> None:
        self._lock, self._known = Lock(), known

    @property
    def is_known(self) -> bool:
        """True if it was given, or if a block was noted."""
        return self._known is not None

    @property
    def factor(self) -> float:
        """The bytes in memory for each byte in the index, at least 1; also 1 while nothing is known."""
        return self._known or 1.0

    def note(self, length: int, nbytes: int) -> None:
        """Note how many bytes a block of ``length`` bytes takes in memory."""
        grown = nbytes / max(1, length)
        with self._lock:
            self._known = max(1.0, grown, KEPT * self.factor)

    def outdates(self, factor: float) -> bool:
        """True if blocks grow so much more than by ``factor`` that what was requested for it is too much."""
        return self.factor > OUTDATED * factor
