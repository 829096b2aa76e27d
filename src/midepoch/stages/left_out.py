"""Rows that filters leave out, as a survey says: a few of them are read, to notice a filter that keeps them now.

The rows that a survey says are kept are all read and checked. To read all others too would cost as much as no survey.
So a sample of them passes through the filters, and none may come out.
"""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from midepoch._common.types import I64
from midepoch.errors import SurveyMismatchError

FIRST, FIRST_AT_ONCE = 64, 8
"""How many rows are checked at least, if there are as many, and how many of these before the first item."""
SHARE = 16
"""After these, one row is checked for this many rows that are kept."""
SPAN = 1 << 14
"""In a longer span, rows are tried at places that are evenly spread, not all of them."""
REMEMBERED = 1 << 16
"""How many keys are known at a time. Stages hold far fewer rows."""


class LeftOut:
    """The rows of a lane that are read only to see that filters leave them out."""

    def __init__(self) -> None:
        self._keys: dict[int, None] = {}
        self._kept = self._read = 0

    def sample(self, begin: int, kept_inputs: I64, kept: Callable[[I64], npt.NDArray[np.bool_]]) -> I64:
        """Some inputs that are left out, from ``begin`` on and before the last of these that are kept."""
        self._kept += len(kept_inputs)
        allowed = FIRST + self._kept // SHARE - self._read
        most = min(allowed, FIRST_AT_ONCE + len(kept_inputs) // SHARE)
        end = int(kept_inputs[-1])
        if most <= 0 or end <= begin:
            return np.empty(0, np.int64)
        candidates = np.arange(begin, end) if end - begin <= SPAN else np.linspace(begin, end - 1, 4 * most, dtype=int)
        left_out = candidates[~kept(candidates)]
        if len(left_out) > most:
            left_out = left_out[np.linspace(0, len(left_out) - 1, most, dtype=int)]
        self._read += len(left_out)
        return left_out

    def remember(self, keys: I64) -> None:
        """Note the keys of rows that are read next."""
        self._keys |= dict.fromkeys(keys.tolist())
        while len(self._keys) > REMEMBERED:
            del self._keys[next(iter(self._keys))]

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def check(self, keys: Iterable[int], stage: str, name_row: Callable[[int], str]) -> None:
        """Raise if one of these rows, which passed all filters, is to be left out."""
        for key in keys:
            if key in self._keys:
                raise SurveyMismatchError(
                    f"The survey says that {stage} leaves out {name_row(key)}, and now it does not. A function "
                    "changed, or does not always say the same of a row. After a change pass another version to "
                    "survey(version=...)."
                )
