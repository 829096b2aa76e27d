"""Items that are counted: how many a lane has, and the cursor after each of them, known without reading rows.

A source counts its rows, and each stage counts its outputs from its inputs. The items of a lane are numbered from the
cursor where reading starts. A reader asks for the numbers that it delivers, and every stage asks the one before it for
what it needs for these: so a reader that shares a lane takes no rows of the others.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from midepoch._common.types import I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import SurveyMismatchError
from midepoch.stages.flow import Flow
from midepoch.stages.left_out import LeftOut

Checked = TypeVar("Checked")
Wanted = Iterator[I64]
"""Numbers of items, which rise over all arrays.

An empty array says that the next numbers are not known yet: what was asked for before must be made without them. If it
is asked for more, the next numbers are looked for, however long that takes.
"""
CHUNK = 1 << 14
"""How many inputs a filter counts at a time."""


class CountedItems(ABC):
    """The items of one lane from a cursor on."""

    @abstractmethod
    def has(self, number: int) -> bool:
        """True if there is an item with this number. Counts no further than it must."""

    @abstractmethod
    def total(self) -> int:
        """The number of items."""

    @abstractmethod
    def cursor(self, items: int) -> Cursor:
        """The cursor after the first ``items`` items, of which there are that many."""

    @abstractmethod
    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        """The wanted items, read through what ``Source.open`` returned. Their cursors mean nothing."""

    is_endless = False
    """True if there is always a next item, so that there is no total."""
    left_out: LeftOut | None = None
    """The rows among them that are read only to check filters; None if there are no filters. No item is one of them."""

    def keys(self, numbers: I64) -> I64:
        """The keys of items that are rows."""
        raise NotImplementedError

    def kept(self, numbers: I64) -> npt.NDArray[np.bool_]:
        """Whether the survey says that filters keep these rows."""
        raise NotImplementedError

    def lengths(self, numbers: I64) -> I64:
        """The lengths that the survey knows of these rows."""
        raise NotImplementedError


class Outputs(CountedItems):
    """The outputs of a stage that makes one of each input."""

    def __init__(self, inputs: CountedItems, make: Callable[[Flow], Flow]) -> None:
        self._inputs, self._make = inputs, make
        self.is_endless, self.left_out = inputs.is_endless, inputs.left_out

    def has(self, number: int) -> bool:
        return self._inputs.has(number)

    def total(self) -> int:
        return self._inputs.total()

    def cursor(self, items: int) -> Cursor:
        return self._inputs.cursor(items)

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        return self._make(self._inputs.flow(opened, wanted))

    def keys(self, numbers: I64) -> I64:
        return self._inputs.keys(numbers)

    def kept(self, numbers: I64) -> npt.NDArray[np.bool_]:
        return self._inputs.kept(numbers)

    def lengths(self, numbers: I64) -> I64:
        return self._inputs.lengths(numbers)


class Batches(CountedItems):
    """Batches of ``size`` items. The last one may be smaller, or is left out."""

    def __init__(self, inputs: CountedItems, make: Callable[[Flow], Flow], size: int, *, drop_last: bool) -> None:
        self._inputs, self._make, self._size, self._drop_last = inputs, make, size, drop_last
        self.is_endless = inputs.is_endless

    def has(self, number: int) -> bool:
        return self._inputs.has(number * self._size + (self._size - 1 if self._drop_last else 0))

    def total(self) -> int:
        return self._inputs.total() // self._size if self._drop_last else -(-self._inputs.total() // self._size)

    def cursor(self, items: int) -> Cursor:
        inputs = items * self._size
        whole = inputs == 0 or self._inputs.has(inputs - 1)
        return self._inputs.cursor(inputs if whole else self._inputs.total())

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        return self._make(self._inputs.flow(opened, map(self._members, wanted)))

    def _members(self, numbers: I64) -> I64:
        if not len(numbers):
            return numbers
        inputs = (numbers[:, None] * self._size + np.arange(self._size)).ravel()
        return inputs if self._inputs.has(int(inputs[-1])) else inputs[inputs < self._inputs.total()]


class Groups(CountedItems):
    """The outputs of groups of ``size`` inputs. Groups are counted one after the other, each when it is needed."""

    def __init__(self, inputs: CountedItems, size: int, delivered: int = 0) -> None:
        """``delivered`` outputs of the first group come before the first item."""
        self._inputs, self._size, self._delivered = inputs, size, delivered
        self._ends: list[int] = []
        """For each group that is counted, the number of outputs up to its end, delivered ones included."""
        self._complete = False

    @abstractmethod
    def _outputs(self, group: int) -> int:
        """The number of outputs of a group."""

    def has(self, number: int) -> bool:
        while not self._complete and (not self._ends or self._ends[-1] <= number + self._delivered):
            self._count_group()
        return bool(self._ends) and self._ends[-1] > number + self._delivered

    def total(self) -> int:
        while not self._complete:
            self._count_group()
        return max(0, self._ends[-1] - self._delivered)

    def _count_group(self) -> None:
        group = len(self._ends)
        self._complete = not self._inputs.has((group + 1) * self._size)
        self._ends.append(self._before(group) + self._outputs(group))

    def _before(self, group: int) -> int:
        return self._ends[group - 1] if group else 0

    def _members(self, group: int) -> I64:
        """The numbers of a group's inputs."""
        begin, end = group * self._size, (group + 1) * self._size
        return np.arange(begin, end if self._inputs.has(end - 1) else max(begin, self._inputs.total()))

    def _by_group(self, numbers: I64) -> Iterator[tuple[int, I64]]:
        """The groups of these items, which must exist, and the number of each item in its group."""
        self.has(int(numbers[-1]))
        outputs = numbers + self._delivered
        groups = np.searchsorted(self._ends, outputs, "right")
        for group in np.unique(groups).tolist():
            yield group, outputs[groups == group] - self._before(group)

    def cursor(self, items: int) -> Cursor:
        """The resume rule: the group's start and its delivered outputs, or the group's end after its last output."""
        if items == 0:
            return (*self._inputs.cursor(0), self._delivered)
        self.has(items - 1)
        outputs = items + self._delivered
        group = bisect_left(self._ends, outputs)
        if self._ends[group] == outputs:
            return (*self._inputs.cursor(int(self._members(group)[-1]) + 1), 0)
        return (*self._inputs.cursor(group * self._size), outputs - self._before(group))


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

    def _inputs_of(self, numbers: I64) -> I64:
        """The inputs that become these items, which must exist."""
        if not len(numbers):
            return numbers
        return np.concatenate([self._kept_in(group)[inside] for group, inside in self._by_group(numbers)])

    def cursor(self, items: int) -> Cursor:
        if items == 0:
            return self._inputs.cursor(0)
        return self._inputs.cursor(int(self._inputs_of(np.array([items - 1]))[0]) + 1)

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        expected: list[I64] = []

        def inputs() -> Iterator[I64]:
            begin = 0
            for numbers in wanted:
                of_inputs = self._inputs_of(numbers)
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

    def keys(self, numbers: I64) -> I64:
        return self._inputs.keys(self._inputs_of(numbers))

    def kept(self, numbers: I64) -> npt.NDArray[np.bool_]:
        return np.ones(len(numbers), np.bool_)

    def lengths(self, numbers: I64) -> I64:
        return self._inputs.lengths(self._inputs_of(numbers))


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
