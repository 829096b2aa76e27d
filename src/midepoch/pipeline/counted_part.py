"""The items of one part of a mixture, counted over all passes: a part that has ended may start over."""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np

from midepoch._common.types import I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.pipeline.draws import EMPTY_PASSES, PartPosition, empty_part, part_salt
from midepoch.pipeline.waiting_rows import LOW_BITS
from midepoch.stages.counted import CountedItems, Wanted
from midepoch.stages.flow import Flow
from midepoch.stages.traced import TracedRows, join_traced

PASSES_KEPT = 8
"""How many passes over a part are kept in memory; older ones are opened again if they are needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedPart:
    """One part, as a lane draws from it."""

    name: str
    begin: Cursor
    open: Callable[[int, Cursor], CountedItems]
    """Returns the part's items, given how often it has ended and the cursor to start from."""


class PartItems:
    """The items of one part from its position on. A part that starts over has several passes."""

    def __init__(self, part: CountedPart, position: PartPosition, *, repeats: bool) -> None:
        self._part, self._position, self._repeats = part, position, repeats
        self._passes: dict[int, CountedItems] = {}
        """The passes that were used last. A part of few rows has very many."""
        self._starts = array("q", [0])
        """The number of items before each pass."""
        self.is_endless = repeats or self._pass(0).is_endless

    def _pass(self, run: int) -> CountedItems:
        items = self._passes.pop(run, None)
        if items is None:
            cursor = self._part.begin if run else self._position.cursor
            items = self._part.open(self._position.times_ended + run, cursor)
        while len(self._passes) >= PASSES_KEPT:
            del self._passes[next(iter(self._passes))]
        self._passes[run] = items
        return items

    def has(self, number: int) -> bool:
        return self._find(number) is not None

    def left(self) -> int:
        """The number of items of a part that does not start over."""
        return self._pass(0).total()

    def _find(self, number: int) -> tuple[int, int] | None:
        """The pass of an item, and its number there; None if there is no such item."""
        run = bisect_right(self._starts, number) - 1
        while not self._pass(run).has(number - self._starts[run]):
            if not self._repeats:
                return None
            run += 1
            if run == len(self._starts):
                self._start_over()
        return run, number - self._starts[run]

    def _start_over(self) -> None:
        run = len(self._starts) - 1
        start = self._starts[-1] + self._pass(run).total()
        last = [*self._starts[-EMPTY_PASSES:], start]
        if len(last) > EMPTY_PASSES and last[0] == last[-1]:
            raise empty_part(self._part.name)
        self._starts.append(start)

    def position(self, items: int) -> tuple[int, Cursor]:
        """How often the part has ended, and its cursor, after a number of items."""
        if items == 0:
            return self._position.times_ended, self._position.cursor
        found = self._find(items - 1)
        assert found is not None
        run, number = found
        return self._position.times_ended + run, self._pass(run).cursor(number + 1)

    def trace(self, numbers: I64) -> TracedRows:
        """The rows of these items."""
        traced, before = [], 0
        for run, of_pass in self._by_pass(numbers):
            rows = self._pass(run).trace(of_pass)
            traced.append(rows.with_columns(items=rows.items + before))
            before += len(of_pass)
        return join_traced(traced).within(self._part.name)

    def keys(self, numbers: I64) -> I64:
        """The keys of these rows. They differ from those of other parts and passes."""
        return np.concatenate(
            [(self._pass(run).keys(of_pass) ^ self._salt(run)) & LOW_BITS for run, of_pass in self._by_pass(numbers)]
        )

    def lengths(self, numbers: I64) -> I64:
        """The lengths of these rows."""
        return np.concatenate([self._pass(run).lengths(of_pass) for run, of_pass in self._by_pass(numbers)])

    def costs(self, numbers: I64) -> I64:
        """The costs of these packs."""
        return np.concatenate([self._pass(run).costs(of_pass) for run, of_pass in self._by_pass(numbers)])

    def _by_pass(self, numbers: I64) -> Iterator[tuple[int, I64]]:
        """The passes of these items, which exist, and the items' numbers there."""
        if not self._repeats:
            yield 0, numbers
            return
        last = self._find(int(numbers[-1]))
        assert last is not None
        first = bisect_right(self._starts, int(numbers[0])) - 1
        bounds = np.searchsorted(numbers, [self._starts[run] for run in range(first + 1, last[0] + 1)]).tolist()
        for run, begin, end in zip(range(first, last[0] + 1), [0, *bounds], [*bounds, len(numbers)], strict=True):
            if end > begin:
                yield run, numbers[begin:end] - self._starts[run]

    def _salt(self, run: int) -> int:
        """Separates the keys of a pass from those of other parts and passes."""
        return part_salt(self._part.name, self._position.times_ended + run)

    def find(self, file: str, row: int) -> I64:
        """The items of the present pass that have this row."""
        return self._pass(0).find(file, row)

    def flows(self, opened: Any, wanted: Wanted) -> Iterator[tuple[int, Flow]]:
        """The wanted items, a flow for each pass, with what makes the keys of the pass differ from those of others.

        Packs of one window may take documents of two passes in any order. Then there are several flows of a pass.
        """
        waiting: deque[I64] = deque()

        def of_pass(run: int) -> Iterator[I64]:
            for numbers in chain(_popped(waiting), wanted):
                if not len(numbers):
                    yield numbers
                    continue
                first, here = next(self._by_pass(numbers))
                here = here if first == run else numbers[:0]
                if len(here):
                    yield here
                if len(here) < len(numbers):
                    waiting.append(numbers[len(here) :])
                    return

        while True:
            waiting.extend(() if waiting else islice(filter(len, wanted), 1))
            if not waiting:
                return
            run, _ = next(self._by_pass(waiting[0]))
            yield self._salt(run), self._pass(run).flow(opened, of_pass(run))


def _popped(waiting: deque[I64]) -> Iterator[I64]:
    while waiting:
        yield waiting.popleft()
