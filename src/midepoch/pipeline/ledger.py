"""Which rows the items of a lane are made of, noted where they are read: hashes of their keys, summed for each item.

The keys are noted after the last stage that changes the number of items, such as a filter or ``pack``. All stages after
it make one output of each input, or batches, and keep the order. So the next item is made of the next keys that were
noted, and nothing has to pass through the stages with it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np

from midepoch._common.hashing import hash_keys
from midepoch._common.types import I64, U64
from midepoch.stages.flow import Flow, ItemRun, RowRun, SingleItem
from midepoch.stages.stacked import StackedRun


class Grouping(NamedTuple):
    """A stage that makes batches of the units whose keys are noted."""

    size: int
    drop_last: bool


class Ledger:
    """The keys of a lane that were noted, until the items that are made of them are taken."""

    def __init__(self, groupings: Sequence[Grouping]) -> None:
        self._groupings = groupings
        self._units = units_of_item(groupings)
        self._noted: deque[I64] = deque()
        self._single: list[int] = []

    def note(self, keys: I64) -> None:
        """Note the keys of units that were read. They are hashed later, many at a time."""
        self._noted.append(keys)

    def record(self, flow: Flow) -> Flow:
        """The same flow. The keys of everything that passes are noted."""
        if flow.row_runs is not None:
            return replace(flow, row_runs=self._row_runs(flow.row_runs))
        if flow.item_runs is not None:
            return replace(flow, item_runs=self._item_runs(flow.item_runs))
        if flow.stacked_runs is not None:
            return replace(flow, stacked_runs=self._stacked_runs(flow.stacked_runs))
        return flow.with_single_items(self._single_items(flow.as_single_items()))

    def _row_runs(self, runs: Iterator[RowRun]) -> Iterator[RowRun]:
        for run in runs:
            self.note(run.keys)
            yield run
            del run  # so that the next one is made in its memory, which is still in the CPU cache

    def _item_runs(self, runs: Iterator[ItemRun]) -> Iterator[ItemRun]:
        for run in runs:
            self.note(run.keys)
            yield run
            del run

    def _stacked_runs(self, runs: Iterator[StackedRun]) -> Iterator[StackedRun]:
        for run in runs:
            self.note(np.array(run.keys, np.int64))
            yield run

    def _single_items(self, items: Iterator[SingleItem]) -> Iterator[SingleItem]:
        note = self._single.append
        for single in items:
            note(single[2])
            yield single

    def take(self, items: int) -> U64:
        """The sum of each of the next items of the lane; fewer if it has run out."""
        hashes = hash_keys(self._taken(items * self._units))
        whole = len(hashes) // self._units
        sums: U64 = hashes[: whole * self._units].reshape(whole, self._units).sum(axis=1, dtype=np.uint64)
        if whole == items:
            return sums
        return np.concatenate([sums, _grouped(hashes[whole * self._units :], self._groupings)])

    def take_keys(self, items: int) -> list[I64]:
        """The keys of the units of each of the next items, which were made."""
        keys = self._taken(items * self._units)
        keys = keys[: units_in_items(len(keys), self._groupings)]
        return [keys[begin : begin + self._units] for begin in range(0, len(keys), self._units)]

    def _taken(self, units: int) -> I64:
        """Remove the first ``units`` keys, or all that are left at the end of a lane, and return them."""
        if self._single:
            self.note(np.array(self._single, np.int64))
            self._single.clear()
        taken = []
        while units and self._noted:
            first = self._noted.popleft()
            if len(first) > units:
                self._noted.appendleft(first[units:])
            taken.append(first[:units])
            units -= len(taken[-1])
        return taken[0] if len(taken) == 1 else np.concatenate([np.empty(0, np.int64), *taken])


class SharedLedger:
    """The ledger of those items of a lane that one of several readers takes."""

    def __init__(self, of_lane: Ledger) -> None:
        self._of_lane = of_lane
        self._wanted: list[bool] = []

    def choose(self, items: Iterator[SingleItem], wanted: Iterator[bool]) -> Iterator[SingleItem]:
        """The wanted items of the lane."""
        note = self._wanted.append
        for single, is_wanted in zip(items, wanted, strict=False):
            note(is_wanted)
            if is_wanted:
                yield single

    def take(self, items: int) -> U64:
        """The sum of each of the next items that are wanted; fewer if the lane has run out."""
        chosen, end = self._next(items)
        return self._of_lane.take(end)[chosen]

    def take_keys(self, items: int) -> list[I64]:
        """The keys of the units of each of the next items that are wanted."""
        chosen, end = self._next(items)
        keys = self._of_lane.take_keys(end)
        return [keys[number] for number in chosen.tolist()]

    def _next(self, items: int) -> tuple[I64, int]:
        """Which of the lane's next items are the next that are wanted, and how many items these lie in."""
        chosen = np.flatnonzero(self._wanted)[:items]
        end = int(chosen[-1]) + 1 if len(chosen) else 0
        del self._wanted[:end]
        return chosen, end


class LedgerChain:
    """The ledger of a lane that was opened again: of what was read before, then of what is read since."""

    def __init__(self, before: "AnyLedger", since: "AnyLedger") -> None:
        self._before, self._since = before, since

    def take(self, items: int) -> U64:
        """The sum of each of the next items of the lane; fewer if it has run out."""
        sums = self._before.take(items)
        return sums if len(sums) == items else np.concatenate([sums, self._since.take(items - len(sums))])

    def take_keys(self, items: int) -> list[I64]:
        """The keys of the units of each of the next items, which were made."""
        keys = self._before.take_keys(items)
        return keys + self._since.take_keys(items - len(keys))


AnyLedger = Ledger | SharedLedger | LedgerChain
Ledgers = dict[int, AnyLedger]
"""The ledgers of the lanes that one process reads."""


def units_of_item(groupings: Sequence[Grouping]) -> int:
    """The number of units of an item that is whole."""
    return prod(grouping.size for grouping in groupings)


def units_in_items(units: int, groupings: Sequence[Grouping]) -> int:
    """How many of a lane's first units are in items: all, unless the last ones of a batch are left out."""
    scale = 1
    for size, drop_last in groupings:
        if drop_last:
            inputs = -(-units // scale)
            units = min(units, inputs // size * size * scale)
        scale *= size
    return units


def _grouped(hashes: U64, groupings: Sequence[Grouping]) -> U64:
    """The sums of items that are made of the last units of a lane."""
    for size, drop_last in groupings:
        kept = hashes[: len(hashes) // size * size] if drop_last else hashes
        hashes = np.add.reduceat(kept, np.arange(0, len(kept), size)) if len(kept) else kept
    return hashes
