"""Stages that drop everything of a mixture that never ends: noticed, because the loop would never get an item."""

from collections.abc import Callable

IDLE_PASSES = 10


class Idle:
    """Watches one stage in one lane."""

    def __init__(self, passes: Callable[[], int] | None, what: str) -> None:
        """Take what says how often all parts of the mixture have ended, None if they end once; ``what`` is missing."""
        self._passes, self._what = passes, what
        self._since: int | None = None

    def note(self, fruitful: bool) -> None:
        """Note whether anything is left of the next inputs. Raises if nothing was for many passes over all parts."""
        if self._passes is None:
            return
        passes = self._passes()
        if fruitful or self._since is None:
            self._since = passes
        elif passes - self._since >= IDLE_PASSES:
            raise ValueError(
                f"{self._what} in {IDLE_PASSES} passes over all parts of the mixture, so stop='never' would go on for "
                "ever without an item. Check the parts, or use stop='all'."
            )
