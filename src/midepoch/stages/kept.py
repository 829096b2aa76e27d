"""The rows that surveyed filters keep, counted by the survey's bits. What is read is compared with these.

The rows that a survey says are kept are all read and checked. To read all others too would cost as much as no survey.
So a sample of them passes through the filters, and none may come out.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from midepoch._common.hashing import I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import SurveyMismatchError
from midepoch.stages.counted import CHUNK, CountedItems, Groups, Outputs, Pieces, Wanted
from midepoch.stages.flow import Flow

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


Checked = TypeVar("Checked")


class Kept(Groups):
    """The rows that surveyed filters keep."""

    def __init__(
        self,
        inputs: CountedItems,
        make: Callable[[Flow], Flow],
        stage: str,
        name_row: Callable[[int], str],
    ) -> None:
        """``make`` is the filter itself, which checks what the survey says. ``name_row`` names the row of a key."""
        super().__init__(inputs, CHUNK)
        self._make, self._stage, self._name_row = make, stage, name_row
        self._is_first = inputs.left_out is None
        self.left_out: LeftOut = inputs.left_out or LeftOut()
        self._last: tuple[int, I64] = (-1, np.empty(0, np.int64))

    def _outputs(self, group: int) -> int:
        return len(self._kept_in(group))

    def _kept_in(self, group: int) -> I64:
        """The inputs in a group that are kept."""
        if self._last[0] != group:
            members = self._members(group)
            self._last = group, members[self._inputs.kept(members)] if len(members) else members
        return self._last[1]

    def inputs_of(self, numbers: I64) -> Pieces:
        inputs = [self._kept_in(group)[inside] for group, inside in self._by_group(numbers)]
        return Pieces(np.arange(len(numbers)), np.concatenate([numbers[:0], *inputs]))

    def outputs_of(self, inputs: I64) -> I64:
        outputs = [inputs[:0]]
        for number in inputs.tolist():
            self._counted_until(number // self._size)
            outputs.append(
                self._before(number // self._size) + np.flatnonzero(self._kept_in(number // self._size) == number)
            )
        return np.concatenate(outputs)

    def cursor(self, items: int) -> Cursor:
        if items == 0:
            return self._inputs.cursor(0)
        return self._inputs.cursor(int(self.inputs_of(np.array([items - 1])).inputs[0]) + 1)

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        expected: list[I64] = []

        def inputs() -> Iterator[I64]:
            begin = 0
            for numbers in wanted:
                of_inputs = self.inputs_of(numbers).inputs
                if len(of_inputs):
                    expected.append(self._inputs.keys(of_inputs))
                    if self._is_first:
                        others = self.left_out.sample(begin, of_inputs, self._inputs.kept)
                        self.left_out.remember(self._inputs.keys(others))
                        begin = int(of_inputs[-1]) + 1
                        of_inputs = np.sort(np.concatenate([of_inputs, others]))
                yield of_inputs

        flow = self._make(self._inputs.flow(opened, inputs()))
        if flow.row_runs is not None:
            return replace(flow, row_runs=self._checked(flow.row_runs, lambda run: run.keys.tolist(), expected))
        return flow.with_single_items(self._checked(flow.as_single_items(), lambda single: [single[2]], expected))

    def _checked(
        self, kept: Iterator[Checked], keys_of: Callable[[Checked], list[int]], expected: list[I64]
    ) -> Iterator[Checked]:
        """What the filter keeps, if it keeps the rows that the survey says. Later filters may leave out the others."""
        due: list[int] = []
        for each in kept:
            keys = [key for key in keys_of(each) if key not in self.left_out]
            while len(due) < len(keys) and expected:
                due += expected.pop(0).tolist()
            for key, expected_key in zip(keys, due, strict=False):
                if key != expected_key:
                    raise self._rejected(expected_key)
            del due[: len(keys)]
            yield each
        for key in [*due, *chain.from_iterable(expected)][:1]:
            raise self._rejected(int(key))

    def _rejected(self, key: int) -> SurveyMismatchError:
        return rejected_row(self._stage, self._name_row(key))

    def kept(self, numbers: I64) -> npt.NDArray[np.bool_]:
        return np.ones(len(numbers), np.bool_)


def without_others(items: CountedItems, stage: str, name_row: Callable[[int], str]) -> CountedItems:
    """What is left after the last filter, ``stage``. Raises if a row is there that the survey says is left out."""
    left_out = items.left_out
    if left_out is None:
        return items

    def check(flow: Flow) -> Flow:
        if flow.row_runs is not None:
            return replace(flow, row_runs=checked(flow.row_runs, lambda run: run.keys.tolist()))
        return flow.with_single_items(checked(flow.as_single_items(), lambda single: (single[2],)))

    def checked(kept: Iterator[Checked], keys_of: Callable[[Checked], Iterable[int]]) -> Iterator[Checked]:
        for each in kept:
            left_out.check(keys_of(each), stage, name_row)
            yield each

    return Outputs(items, check)


def rejected_row(stage: str, row: str) -> SurveyMismatchError:
    """The error for a row that a stage leaves out, and that the survey says it keeps."""
    return SurveyMismatchError(
        f"The survey says that {stage} keeps {row}, and now it does not. A function changed, or does not always say "
        "the same of a row. After a change pass another version to survey(version=...)."
    )
