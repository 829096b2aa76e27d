"""Items that are counted: how many a lane has, and the cursor after each of them, known without reading rows.

A source counts its rows, and each stage counts its outputs from its inputs. The items of a lane are numbered from the
cursor where reading starts. A reader asks for the numbers that it delivers, and every stage asks the one before it for
what it needs for these: so a reader that shares a lane takes no rows of the others.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from midepoch._common.types import I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.stages.flow import Flow
from midepoch.stages.left_out import LeftOut
from midepoch.stages.traced import TracedRows

Wanted = Iterator[I64]
"""Numbers of items, which rise over all arrays.

An empty array says that the next numbers are not known yet: what was asked for before must be made without them. If it
is asked for more, the next numbers are looked for, however long that takes.
"""
CHUNK = 1 << 14
"""How many inputs are counted at a time."""


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
    members = 1
    """The number of rows or packs of an item: more than 1 for batches."""

    def costs(self, numbers: I64) -> I64:
        """The costs of these items, which exist, and whose numbers rise: the squares of their documents' lengths."""
        raise NotImplementedError

    @abstractmethod
    def trace(self, numbers: I64) -> TracedRows:
        """The rows of these items, which exist. Their numbers rise."""

    @abstractmethod
    def find(self, file: str, row: int) -> I64:
        """The numbers of the items that have this row of a file, or a piece of it."""

    def keys(self, numbers: I64) -> I64:
        """The keys of these items, which exist. Their numbers rise."""
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
        self.is_endless, self.left_out, self.members = inputs.is_endless, inputs.left_out, inputs.members

    def has(self, number: int) -> bool:
        return self._inputs.has(number)

    def total(self) -> int:
        return self._inputs.total()

    def cursor(self, items: int) -> Cursor:
        return self._inputs.cursor(items)

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        return self._make(self._inputs.flow(opened, wanted))

    def costs(self, numbers: I64) -> I64:
        return self._inputs.costs(numbers)

    def trace(self, numbers: I64) -> TracedRows:
        return self._inputs.trace(numbers)

    def find(self, file: str, row: int) -> I64:
        return self._inputs.find(file, row)

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
        self.is_endless, self.members = inputs.is_endless, inputs.members * size

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

    def costs(self, numbers: I64) -> I64:
        inputs, costs = self._members(numbers), np.zeros(len(numbers), np.int64)
        np.add.at(costs, np.searchsorted(numbers, inputs // self._size), self._inputs.costs(inputs))
        return costs

    def trace(self, numbers: I64) -> TracedRows:
        inputs = self._members(numbers)
        traced = self._inputs.trace(inputs)
        batches, slots = np.divmod(inputs[traced.items], self._size)
        places = slots * self._inputs.members + traced.places
        return traced.with_columns(items=np.searchsorted(numbers, batches), places=places)

    def keys(self, numbers: I64) -> I64:
        return self._inputs.keys(numbers * self._size)

    def find(self, file: str, row: int) -> I64:
        batches = np.unique(self._inputs.find(file, row) // self._size)
        return batches[[self.has(batch) for batch in batches.tolist()]] if self._drop_last else batches


class Groups(CountedItems):
    """The outputs of groups of ``size`` inputs. Groups are counted one after the other, each when it is needed."""

    def __init__(self, inputs: CountedItems, size: int, delivered: int = 0) -> None:
        """``delivered`` outputs of the first group come before the first item."""
        self._inputs, self._size, self._delivered = inputs, size, delivered
        self.is_endless = inputs.is_endless
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
        self._inputs.total()  # raises if there is no end
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

    def _counted_until(self, group: int) -> None:
        """Count the groups up to this one, which exists."""
        while len(self._ends) <= group:
            self._count_group()

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
