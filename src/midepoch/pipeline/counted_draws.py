"""The draws of a mixture, counted: what each part has yielded after any number of draws follows from the schedule."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from midepoch._common.types import I32, I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.counted_part import CountedPart, PartItems
from midepoch.pipeline.draws import RUN_ROWS, PartPosition, Stop
from midepoch.pipeline.period import DrawTable
from midepoch.pipeline.waiting_rows import LOW_BITS, WaitingRows, interleaved
from midepoch.stages.counted import CountedItems, Wanted
from midepoch.stages.flow import Flow, RowRun, SingleItem
from midepoch.stages.traced import TracedRows, join_traced
from midepoch.values.forms import Form

DRAWS_AT_ONCE = 8192
"""For how many draws the parts and items are found together, at least, if as many are wanted."""
DRAWS_AHEAD = 16
"""How many arrays of draws may wait while the next items of a part are looked for."""
MOST_DRAWS_AHEAD = 1 << 14
"""How many draws may wait while a stage of a part holds rows back because its group is not full."""
NOT_KNOWN: I64 = np.empty(0, np.int64)


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
        self.batched = form[1]
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
        self._reached = [-1]
        """For each segment, the last item that is known to be in it."""
        endless = [part.is_endless for number, part in enumerate(self._parts) if self._weighted(number)]
        self.is_endless = bool(endless) and (all(endless) if stop == "first" else any(endless))

    def _segment(self, number: int) -> Segment | None:
        """The segment of an item; None if there is no such item."""
        index = bisect_right(self._segments, number, key=lambda segment: segment.first) - 1
        while (segment := self._segments[index]).period is not None:
            if number <= self._reached[index]:
                return segment
            taken = self._taken(segment, number + 1)
            drawn = np.flatnonzero(taken > segment.taken).tolist()
            short = [part for part in drawn if not self._parts[part].has(int(taken[part]) - 1)]
            if not short:
                self._reached[index] = number
                return segment
            if self._stop == "first":
                return None
            self._segments.append(self._segment_after(segment, short))
            self._reached.append(-1)
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
            if len(here) == len(every):  # all draws are wanted
                chosen = every
                for of_part, begun, drawn in zip(items, base.tolist(), self._taken(segment, last + 1), strict=True):
                    of_part.append(np.arange(begun, drawn))
            else:
                chosen = every[here - first]
                for part, of_part in enumerate(items):
                    ordinals = np.cumsum(every == part)[here - first] - 1
                    of_part.append(base[part] + ordinals[chosen == part])
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
        self._draws_due = 0
        self._of_parts: list[deque[I64]] = [deque() for _ in range(items.part_count)]
        self._later: I64 | None = None
        """An array of draws that was looked at, and comes next."""

    def _advance(self) -> int | None:
        """Find the parts of the next array of draws. Returns how many they are; None if there is no such array."""
        numbers = self._next_numbers()
        if numbers is None or not len(numbers):
            return None if numbers is None else 0
        parts, of_parts = self._items.located(numbers)
        self._due.append(parts)
        self._draws_due += len(parts)
        for part, of_part in enumerate(of_parts):
            if len(of_part):
                self._of_parts[part].append(of_part)
        return len(numbers)

    def _next_numbers(self) -> I64 | None:
        """The next array of wanted draws, or several as one. Short ones come first after a resume, and stay alone."""
        numbers = self._later if self._later is not None else next(self._wanted, None)
        self._later = None
        if numbers is None or len(numbers) < RUN_ROWS:
            return numbers
        arrays = [numbers]
        while sum(map(len, arrays)) < DRAWS_AT_ONCE and (numbers := next(self._wanted, None)) is not None:
            if len(numbers) and numbers[0] <= arrays[-1][-1]:  # of the same window of packs, which goes back
                self._later = numbers
                break
            arrays.append(numbers)
            if len(numbers) < RUN_ROWS:
                break
        return np.concatenate(arrays)

    def _wanted_of(self, part: int) -> Iterator[I64]:
        """The wanted items of a part. A part that is drawn from rarely does not look ahead through all draws.

        They end early if the part is asked for more while very many draws wait: a stage holds rows back because its
        group is not full, and there may be no further draw from the part. The end makes the stage give them out.
        """
        waiting = self._of_parts[part]
        looks_on = True
        while True:
            if waiting:
                yield waiting.popleft()
                looks_on = True
            elif not looks_on:
                yield NOT_KNOWN
                if not waiting and self._draws_due >= MOST_DRAWS_AHEAD:
                    return
                looks_on = True
            elif (found := self._advance()) is None:
                return
            else:
                looks_on = found > 0 and (bool(waiting) or len(self._due) < DRAWS_AHEAD)

    def _arrays(self) -> Iterator[I32]:
        while self._due or self._advance() is not None:
            if self._due:
                self._draws_due -= len(self._due[0])
                yield self._due.popleft()

    def single_items(self) -> Iterator[SingleItem]:
        flows = [self._singles(part) for part in range(self._items.part_count)]
        for parts in self._arrays():
            for part in parts.tolist():
                yield next(flows[part])

    def _flows(self, part: int) -> Iterator[tuple[int, Flow]]:
        """The flows of a part. It is opened again if its wanted items ended early and there are more."""
        while True:
            yield from self._items.part_flows(part, self._opened, self._wanted_of(part))
            if not self._of_parts[part]:
                return

    def _singles(self, part: int) -> Iterator[SingleItem]:
        for salt, flow in self._flows(part):
            for item, cursor, key in flow.as_single_items():
                yield item, cursor, (key ^ salt) & LOW_BITS

    def row_runs(self) -> Iterator[RowRun]:
        flows = [self._runs(part) for part in range(self._items.part_count)]
        waiting = [WaitingRows() for _ in flows]
        for parts in self._arrays():
            for part, needed in enumerate(np.bincount(parts, minlength=len(flows)).tolist()):
                while waiting[part].rows < needed:
                    waiting[part].add([next(flows[part])])
            for first in range(0, len(parts), RUN_ROWS):
                yield _dealt_run(parts[first : first + RUN_ROWS], waiting)

    def _runs(self, part: int) -> Iterator[RowRun]:
        for salt, flow in self._flows(part):
            assert flow.row_runs is not None
            for run in flow.row_runs:
                yield RowRun(run.rows, run.cursors, (run.keys ^ salt) & LOW_BITS)


def _dealt_run(parts: I32, waiting: Sequence[WaitingRows]) -> RowRun:
    """The next rows of ``parts``. Nobody else holds them, so the next ones are made in their memory."""
    rows, keys, _ = interleaved(parts, waiting)
    return RowRun(rows, np.zeros((len(keys), 1), np.int64), keys)
