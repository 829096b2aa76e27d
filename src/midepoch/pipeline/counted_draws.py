"""The draws of a mixture, counted: what each part has yielded after any number of draws follows from the schedule.

The schedule repeats after ``sum(weights)`` draws, its *period*. So the draws so far from each part, and the draw that
takes a given item of a part, are a division and a look into the table of one period.
"""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np

from midepoch._common.types import I32, I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.draws import (
    EMPTY_PASSES,
    LOW_BITS,
    RUN_ROWS,
    PartPosition,
    Stop,
    empty_part,
    interleaved,
    part_salt,
)
from midepoch.pipeline.schedule import Schedule
from midepoch.stages.counted import CountedItems, Wanted
from midepoch.stages.flow import Flow, RowRun, SingleItem
from midepoch.stages.traced import TracedRows, join_traced
from midepoch.values.forms import Form

COUNTED_EVERY = 64
"""The table of a period holds the draws from each part after each multiple of this number."""
DRAWS_AT_ONCE = 8192
"""For how many draws the parts and items are found together, at least, if so many are wanted."""
DRAWS_AHEAD = 16
"""How many arrays of draws may wait while the next items of a part are looked for."""
NOT_KNOWN: I64 = np.empty(0, np.int64)
PASSES_KEPT = 8
"""How many passes over a part are kept in memory; older ones are opened again if they are needed."""


class Period:
    """One period of a schedule."""

    def __init__(self, schedule: Schedule, weights: Sequence[int]) -> None:
        self._weights = np.array(weights, np.int64)
        self._parts = schedule.period()
        self._total = len(self._parts)
        table = self._parts[:, None] == np.arange(len(weights))
        self._counts = np.concatenate([np.zeros((1, len(weights)), np.int64), table.cumsum(axis=0)])[::COUNTED_EVERY]
        self._draws_from = [np.flatnonzero(table[:, part]) for part in range(len(weights))]

    def drawn(self, draws: int) -> I64:
        """How many items were drawn from each part after a number of draws."""
        periods, rest = divmod(draws, self._total)
        known = rest // COUNTED_EVERY
        after = np.bincount(self._parts[known * COUNTED_EVERY : rest], minlength=len(self._weights))
        counts: I64 = periods * self._weights + self._counts[known] + after
        return counts

    def parts(self, first: int, stop: int) -> I32:
        """The parts of the draws from ``first`` to ``stop``."""
        drawn: I32 = self._parts[np.arange(first, stop) % self._total]
        return drawn

    def draws_from(self, part: int) -> bool:
        """True if the part is drawn from at all."""
        return len(self._draws_from[part]) > 0

    def draw_of(self, part: int, number: int) -> int:
        """The draw that takes the item with this number of a part."""
        draws = self._draws_from[part]
        periods, rest = divmod(number, len(draws))
        return periods * self._total + int(draws[rest])


class DrawTable(Protocol):
    """All draws of a lane: those of a Period, which repeats, or of weights that change."""

    def drawn(self, draws: int) -> I64:
        """How many items were drawn from each part after a number of draws."""

    def parts(self, first: int, stop: int) -> I32:
        """The parts of the draws from ``first`` to ``stop``."""

    def draws_from(self, part: int) -> bool:
        """True if the part is drawn from at all."""

    def draw_of(self, part: int, number: int) -> int:
        """The draw that takes the item with this number of a part."""


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


@dataclass(frozen=True, slots=True)
class Segment:
    """Draws under one schedule."""

    first: int
    """The number of the first item."""
    draws: int
    """The number of draws of the schedule before the first item."""
    drawn: I64
    """The same for each part."""
    taken: I64
    """The number of items of each part before the first item."""
    ended: tuple[int, ...]
    """How often each part has ended, where ended parts are left out."""
    period: DrawTable | None
    """None if all parts have ended."""


class CountedDraws(CountedItems):
    """The items of a mixture in one lane."""

    def __init__(
        self,
        parts: Sequence[CountedPart],
        positions: Sequence[PartPosition],
        *,
        stop: Stop,
        period: Callable[[Sequence[int]], DrawTable | None],
        form: tuple[Form, bool],
        in_runs: bool,
    ) -> None:
        """``period`` makes the period of a schedule, given how often each part has ended."""
        self._names, self._stop, self._make_period = [part.name for part in parts], stop, period
        self._form, self._in_runs, self._positions = form, in_runs, positions
        self._parts = [
            PartItems(part, position, repeats=stop == "never") for part, position in zip(parts, positions, strict=True)
        ]
        drawn = np.array([position.drawn for position in positions], np.int64)
        ended = tuple(position.times_ended for position in positions)
        first = period(ended)
        draws = int(drawn.sum())
        if first is not None and not np.array_equal(first.drawn(draws), drawn):
            raise CheckpointMismatchError(
                f"The state is damaged: {drawn.tolist()} items drawn from the parts {', '.join(self._names)} do not "
                "follow from the weights. Load an earlier checkpoint."
            )
        self._segments = [Segment(0, draws, drawn, np.zeros_like(drawn), ended, first)]
        endless = [part.is_endless for number, part in enumerate(self._parts) if self._weighted(number)]
        self.is_endless = bool(endless) and (all(endless) if stop == "first" else any(endless))

    def _segment(self, number: int) -> Segment | None:
        """The segment of an item; None if there is no such item."""
        index = bisect_right(self._segments, number, key=lambda segment: segment.first) - 1
        while (segment := self._segments[index]).period is not None:
            taken = self._taken(segment, number + 1)
            drawn = np.flatnonzero(taken > segment.taken).tolist()
            short = [part for part in drawn if not self._parts[part].has(int(taken[part]) - 1)]
            if not short:
                return segment
            if self._stop == "first":
                return None
            self._segments.append(self._segment_after(segment, short))
            index += 1
        return None

    def _segment_after(self, segment: Segment, short: Sequence[int]) -> Segment:
        """The segment after one in which these parts end."""
        assert segment.period is not None
        ends: dict[int, int] = {}
        for part in short:
            left = self._parts[part].left() - int(segment.taken[part])
            ends[segment.period.draw_of(part, int(segment.drawn[part]) + left)] = part
        draw = min(ends)
        ended = list(segment.ended)
        ended[ends[draw]] += 1
        number = segment.first + draw - segment.draws
        zeros = np.zeros_like(segment.drawn)
        return Segment(number, 0, zeros, self._taken(segment, number), tuple(ended), self._make_period(ended))

    def _taken(self, segment: Segment, items: int) -> I64:
        """The number of items of each part among the first ``items``, if the segment lasts so long."""
        assert segment.period is not None
        drawn: I64 = segment.period.drawn(segment.draws + items - segment.first)
        return segment.taken + drawn - segment.drawn

    def has(self, number: int) -> bool:
        return self._segment(number) is not None

    def total(self) -> int:
        if self.is_endless:
            raise TypeError("The length is unknown: a mixture with stop='never' never ends.")
        if self._stop == "all":
            return sum(part.left() for number, part in enumerate(self._parts) if self._weighted(number))
        segment = self._segments[0]
        if segment.period is None:
            return 0
        ends = [
            segment.period.draw_of(number, int(segment.drawn[number]) + part.left())
            for number, part in enumerate(self._parts)
            if self._weighted(number) and not part.is_endless
        ]
        return min(ends) - segment.draws

    def _weighted(self, part: int) -> bool:
        period = self._segments[0].period
        return period is not None and period.draws_from(part)

    def cursor(self, items: int) -> Cursor:
        segment = self._segments[0] if items == 0 else self._segment(items - 1)
        assert segment is not None
        if segment.period is None:
            taken, drawn = segment.taken, segment.drawn
        else:
            taken = self._taken(segment, items)
            drawn = segment.drawn + taken - segment.taken
        cursor: list[int] = []
        for number, part in enumerate(self._parts):
            times_ended, part_cursor = part.position(int(taken[number]))
            if self._stop == "all":
                times_ended = segment.ended[number]
            cursor += [int(drawn[number]), times_ended, *part_cursor]
        return tuple(cursor)

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        draws = _Draws(self, opened, wanted)
        form, batched = self._form
        if self._in_runs:
            return Flow(row_runs=draws.row_runs(), form=form)
        return Flow(single_items=draws.single_items(), form=form, batched=batched)

    def trace(self, numbers: I64) -> TracedRows:
        parts, of_parts = self.located(numbers)
        traced = []
        for part, items in enumerate(of_parts):
            if len(items):
                rows = self._parts[part].trace(items)
                traced.append(rows.with_columns(items=np.flatnonzero(parts == part)[rows.items]))
        return join_traced(traced)

    def keys(self, numbers: I64) -> I64:
        return self._of_each(numbers, PartItems.keys)

    def lengths(self, numbers: I64) -> I64:
        return self._of_each(numbers, PartItems.lengths)

    def costs(self, numbers: I64) -> I64:
        return self._of_each(numbers, PartItems.costs)

    def _of_each(self, numbers: I64, of_part: Callable[[PartItems, I64], I64]) -> I64:
        """What the parts say of each of these items."""
        if not len(numbers):
            return numbers
        parts, of_parts = self.located(numbers)
        values = np.empty(len(numbers), np.int64)
        for part, items in enumerate(of_parts):
            if len(items):
                values[parts == part] = of_part(self._parts[part], items)
        return values

    def find(self, file: str, row: int) -> I64:
        found = [
            number
            for part in range(len(self._parts))
            if self._weighted(part)
            for item in self._parts[part].find(file, row).tolist()
            if (number := self._number_of(part, item)) is not None
        ]
        return np.array(sorted(found), np.int64)

    def _number_of(self, part: int, item: int) -> int | None:
        """The number of the draw that takes an item of a part; None if the mixture ends before."""
        index = 0
        while index < len(self._segments) and (segment := self._segments[index]).period is not None:
            if segment.period.draws_from(part):
                draw = segment.period.draw_of(part, int(segment.drawn[part]) + item - int(segment.taken[part]))
                number = segment.first + draw - segment.draws
                if self._segment(number) is segment:
                    return number
            index += 1  # the part comes later, under another schedule, if there is one
        return None

    def located(self, numbers: I64) -> tuple[I32, list[I64]]:
        """The part of each of these draws, and, for each part, the numbers of its items among them."""
        parts, items = [], [list[I64]() for _ in self._parts]
        begin = 0
        while begin < len(numbers):
            segment = self._segment(int(numbers[begin]))
            assert segment is not None
            assert segment.period is not None
            later = [other.first for other in self._segments if other.first > segment.first]
            end = len(numbers)
            if later:
                end = int(np.searchsorted(numbers, later[0]))
            elif self._segment(int(numbers[-1])) is not segment:
                continue  # now it is known where the segment ends
            here = numbers[begin:end]
            first, last = int(here[0]), int(here[-1])
            base = self._taken(segment, first)
            every = segment.period.parts(
                segment.draws + first - segment.first, segment.draws + last + 1 - segment.first
            )
            chosen = every[here - first]
            for part in range(len(self._parts)):
                if len(here) == len(every):  # all draws are wanted
                    items[part].append(base[part] + np.arange(np.count_nonzero(every == part)))
                else:
                    ordinals = np.cumsum(every == part)[here - first] - 1
                    items[part].append(base[part] + ordinals[chosen == part])
            parts.append(chosen)
            begin = end
        return np.concatenate(parts), [np.concatenate(of_part) for of_part in items]

    def part_flows(self, part: int, opened: Any, wanted: Wanted) -> Iterator[tuple[int, Flow]]:
        """The items of a part, a flow for each pass over it."""
        return self._parts[part].flows(opened.parts[part], wanted)

    @property
    def part_count(self) -> int:
        return len(self._parts)


class _Draws:
    """The wanted draws of one reader. Each part is asked for its items of an array of draws when they are needed."""

    def __init__(self, items: CountedDraws, opened: Any, wanted: Wanted) -> None:
        self._items, self._opened, self._wanted = items, opened, wanted
        self._due: deque[I32] = deque()
        self._of_parts: list[deque[I64]] = [deque() for _ in range(items.part_count)]

    def _advance(self) -> bool:
        """Find the parts of the next array of draws. False if there is none."""
        numbers = self._next_numbers()
        if numbers is None:
            return False
        if not len(numbers):
            return True
        parts, of_parts = self._items.located(numbers)
        self._due.append(parts)
        for part, of_part in enumerate(of_parts):
            if len(of_part):
                self._of_parts[part].append(of_part)
        return True

    def _next_numbers(self) -> I64 | None:
        """The next array of wanted draws, or several as one. Short ones come first after a resume, and stay alone."""
        numbers = next(self._wanted, None)
        if numbers is None or len(numbers) < RUN_ROWS:
            return numbers
        arrays = [numbers]
        while sum(map(len, arrays)) < DRAWS_AT_ONCE and (numbers := next(self._wanted, None)) is not None:
            arrays.append(numbers)
            if len(numbers) < RUN_ROWS:
                break
        return np.concatenate(arrays)

    def _wanted_of(self, part: int) -> Iterator[I64]:
        """The wanted items of a part. A part that is drawn from rarely does not look ahead through all draws."""
        waiting = self._of_parts[part]
        looks_on = True
        while True:
            if waiting:
                yield waiting.popleft()
                looks_on = True
            elif not looks_on:
                yield NOT_KNOWN
                looks_on = True
            elif self._advance():
                looks_on = bool(waiting) or len(self._due) < DRAWS_AHEAD
            else:
                return

    def _arrays(self) -> Iterator[I32]:
        while self._due or self._advance():
            if self._due:
                yield self._due.popleft()

    def single_items(self) -> Iterator[SingleItem]:
        flows = [self._singles(part) for part in range(self._items.part_count)]
        for parts in self._arrays():
            for part in parts.tolist():
                yield next(flows[part])

    def _singles(self, part: int) -> Iterator[SingleItem]:
        for salt, flow in self._items.part_flows(part, self._opened, self._wanted_of(part)):
            for item, cursor, key in flow.as_single_items():
                yield item, cursor, (key ^ salt) & LOW_BITS

    def row_runs(self) -> Iterator[RowRun]:
        flows = [self._runs(part) for part in range(self._items.part_count)]
        waiting: list[list[RowRun]] = [[] for _ in flows]
        for parts in self._arrays():
            for part, needed in enumerate(np.bincount(parts, minlength=len(flows)).tolist()):
                while sum(map(len, waiting[part])) < needed:
                    waiting[part].append(next(flows[part]))
            for first in range(0, len(parts), RUN_ROWS):
                rows, keys, _ = interleaved(parts[first : first + RUN_ROWS], waiting)
                yield RowRun(rows, np.zeros((len(keys), 1), np.int64), keys)
                del rows, keys  # so that the next rows are made in their memory, which is still in the CPU cache

    def _runs(self, part: int) -> Iterator[RowRun]:
        for salt, flow in self._items.part_flows(part, self._opened, self._wanted_of(part)):
            assert flow.row_runs is not None
            for run in flow.row_runs:
                yield RowRun(run.rows, run.cursors, (run.keys ^ salt) & LOW_BITS)
