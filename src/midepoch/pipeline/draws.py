"""Drawing from the parts of a mixture in one lane: one by one, or in runs where all parts are unchanged rows.

A thousand rows are drawn at a time. Those of each part are a few slices of its runs. One permutation puts the rows of
all parts in the order of the draws. Where parts are counted, so are the draws: what each part has yielded after any
number of draws follows from a table.
"""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np

from midepoch._common.hashing import I32, I64, key_of
from midepoch.checkpoint.lanes import Cursor
from midepoch.pipeline.schedule import NEVER, DrawTable, draws_by_part
from midepoch.stages.counted import (
    Amounts,
    CountedItems,
    Outputs,
    TokensOf,
    TracedRows,
    Wanted,
    amounts_of_parts,
    join_traced,
    sum_amounts,
)
from midepoch.stages.flow import Flow, RowRun, SingleItem, noting
from midepoch.values.rows import concat

if TYPE_CHECKING:
    from midepoch.pipeline.mixture import MixtureLanes

Stop = Literal["first", "all", "never"]
"""When an epoch ends: with the first part that ends, with the last one, or never, as parts start over."""
RUN_ROWS = 1024
DRAWS_TOGETHER = 256
"""For how many items that are drawn one by one the parts are found together."""
EMPTY_PASSES = 10
LOW_BITS = (1 << 63) - 1
MOST_ITEMS = 1 << 40
"""More items than a part has that ends. Of one that does not, nobody looks for them pass by pass."""
PASSES_KEPT = 8
"""How many passes over a part are kept in memory; older ones are opened again if they are needed."""
DRAWS_AHEAD = 16
"""How many arrays of draws may wait while the next items of a part are looked for."""
MOST_DRAWS_AHEAD = 1 << 14
"""How many draws may wait while a stage of a part holds rows back because its group is not full."""
NOT_KNOWN: I64 = np.empty(0, np.int64)
T = TypeVar("T")


class PartPosition(NamedTuple):
    """How far a lane has come in one part."""

    drawn: int
    """The number of items drawn since the schedule began."""
    times_ended: int
    """How often the part has come to its end."""
    cursor: Cursor
    """The part's own cursor."""


def join_positions(positions: Iterable[PartPosition]) -> Cursor:
    """The positions in all parts as one cursor."""
    return tuple(number for drawn, times_ended, cursor in positions for number in (drawn, times_ended, *cursor))


def split_positions(cursor: Cursor, widths: Sequence[int]) -> list[PartPosition]:
    """The position in each part, of parts whose own cursors have these widths."""
    positions, start = [], 0
    for width in widths:
        end = start + 2 + width
        positions.append(PartPosition(cursor[start], cursor[start + 1], cursor[start + 2 : end]))
        start = end
    return positions


def without_items(name: str) -> ValueError:
    """The error for a part that starts over again and again and has no items in the lane."""
    return ValueError(
        f"The part {name!r} of the mixture had no items in {EMPTY_PASSES} passes over a lane, so stop='never' cannot "
        "continue. The part has fewer rows than there are lanes, or a filter that keeps none: use fewer lanes, or "
        "leave the part out."
    )


def part_salt(name: str, times_ended: int) -> int:
    """Separates the keys of one pass over a part from those of other parts and passes."""
    return key_of("part", name, times_ended) & LOW_BITS


def flow_of_pass(name: str, times_ended: int, flow: Flow, left_out: set[int] | None = None) -> Flow:
    """A pass over a part. Cursors begin with how often the part has ended, and no other pass has its keys.

    The keys of those items that only keep their places are added to ``left_out``.
    """
    salt = part_salt(name, times_ended)

    if left_out is not None and flow.left_out is not None:
        flow = noting(flow, partial(_note_left_out, left_out, flow.left_out, salt))
    if flow.row_runs is None:
        items = ((item, (times_ended, *own), (key ^ salt) & LOW_BITS) for item, own, key in flow.as_single_items())
        return flow.with_single_items(items)
    runs = (
        RowRun(run.rows, np.insert(run.cursors, 0, times_ended, axis=1), (run.keys ^ salt) & LOW_BITS)
        for run in flow.row_runs
    )
    return replace(flow, row_runs=runs)


def _note_left_out(left_out: set[int], of_part: set[int], salt: int, keys: list[int]) -> None:
    left_out.update((key ^ salt) & LOW_BITS for key in keys if key in of_part)


ReadFlow = Callable[[Flow], Iterator[T]]
"""Returns the items of a flow: one by one, or in runs of rows."""


def row_runs(flow: Flow) -> Iterator[RowRun]:
    """The items of a flow of unchanged rows."""
    assert flow.row_runs is not None
    return flow.row_runs


class PartRows:
    """The rows of a part, taken as many at a time as are drawn."""

    def __init__(self, runs: Iterator[RowRun]) -> None:
        self._runs = runs
        self._waiting: list[RowRun] = []

    def ready(self, count: int) -> int:
        """How many of the next ``count`` rows there are. They are read if need be, and wait."""
        rows = sum(map(len, self._waiting))
        while rows < count and (run := next(self._runs, None)) is not None:
            self._waiting.append(run)
            rows += len(run)
        return min(count, rows)

    def take(self, count: int) -> list[RowRun]:
        """The next ``count`` rows, which are ready."""
        taken = []
        while count:
            run = self._waiting.pop(0)
            if len(run) > count:
                self._waiting.insert(0, run.slice(count, len(run)))
            taken.append(run.slice(0, min(count, len(run))))
            count -= len(taken[-1])
        return taken


def deal(parts: I32, waiting: Sequence[PartRows]) -> tuple[RowRun, list[list[RowRun]]]:
    """The next rows of ``parts`` in the order of the draws, and the rows of each part that they are.

    The rows are removed from ``waiting``. Their cursors mean nothing.
    """
    draws = draws_by_part(parts, len(waiting))
    of_parts = [of_part.take(len(own)) for of_part, own in zip(waiting, draws, strict=True)]
    runs = list(chain.from_iterable(of_parts))
    places = np.empty(len(parts), np.int64)
    places[np.concatenate(draws)] = np.arange(len(parts))
    rows, keys = concat([run.rows for run in runs]).take(places), np.concatenate([run.keys for run in runs])[places]
    return RowRun(rows, np.zeros((len(keys), 1), np.int64), keys), of_parts


def known_draws(parts: I32, waiting: Sequence[PartRows]) -> int:
    """How many draws from ``parts`` there are before one finds no row. The rows that they need are read."""
    missing = [len(parts)]
    for of_part, draws in zip(waiting, draws_by_part(parts, len(waiting)), strict=True):
        ready = of_part.ready(len(draws))
        missing += draws[ready : ready + 1].tolist()
    return min(missing)


class Draws:
    """The draws of a lane from its position on. Each object is good for one pass over them."""

    def __init__(
        self, lanes: "MixtureLanes", lane: int, cursor: Cursor, opened: Any, left_out: set[int] | None
    ) -> None:
        """Take the lanes of the mixture, a lane, its cursor, and what ``Mixture.open`` returned."""
        self.left_out = left_out
        """The keys of items that only keep their places, as far as these were drawn; None if there are none."""
        self._lanes, self._lane, self._opened, self._stop = lanes, lane, opened, lanes.mixture.stop
        self._positions = lanes.mixture.part_positions(cursor)
        self._cursors: list[Cursor] = [(drawn, times_ended, *own) for drawn, times_ended, own in self._positions]
        """Of each part, how many items were drawn, how often it has ended, and its own cursor."""
        self._table = lanes.table(lane, [position.times_ended for position in self._positions])

    def _part(self, part: int, read: ReadFlow[T]) -> Iterator[T]:
        """A part from its position on: one pass, or with stop="never" one after the other."""
        _, times_ended, cursor = self._positions[part]
        name, begin = self._lanes.mixture.names[part], self._lanes.mixture.parts[part].begin
        empty_passes = -(cursor != begin)  # the first pass began before: its rest may have no items, and it had some
        while empty_passes < EMPTY_PASSES:
            empty_passes += 1
            flow = self._lanes.of_part(part, times_ended).flow(self._opened.parts[part], self._lane, cursor)
            for found in read(flow_of_pass(name, times_ended, flow, self.left_out)):
                empty_passes = 0
                yield found
            if self._stop != "never":
                return
            times_ended, cursor = times_ended + 1, begin

    def _next_parts(self, table: DrawTable, most: int) -> I32:
        draws = sum(drawn for drawn, *_ in self._cursors)
        return table.parts(draws, draws + most)

    def single_items(self) -> Iterator[SingleItem]:
        """The items, drawn one by one."""
        flows = [self._part(part, Flow.as_single_items) for part in range(len(self._cursors))]
        while self._table is not None:
            for part in self._next_parts(self._table, DRAWS_TOGETHER).tolist():
                single = next(flows[part], None)
                if single is None:
                    self._end(part)
                    break  # other parts are drawn from now on
                item, cursor, key = single
                self._cursors[part] = (self._cursors[part][0] + 1, *cursor)
                yield item, tuple(chain.from_iterable(self._cursors)), key

    def row_runs(self) -> Iterator[RowRun]:
        """The items in runs: many draws at a time."""
        waiting = [PartRows(self._part(part, row_runs)) for part in range(len(self._cursors))]
        most = 1  # so that the first item after a resume comes as soon as possible
        while self._table is not None:
            parts = self._next_parts(self._table, most)
            known = known_draws(parts, waiting)
            if known:
                yield self._interleave(parts[:known], waiting)
            if known < len(parts):
                self._end(int(parts[known]))
            most = RUN_ROWS if known else 1

    def _interleave(self, parts: I32, waiting: Sequence[PartRows]) -> RowRun:
        """One run of the next rows of ``parts``, in the order of the draws. The rows are removed from ``waiting``."""
        run, of_parts = deal(parts, waiting)
        cursors, column = np.empty((len(parts), sum(map(len, self._cursors))), np.int64), 0
        for part, runs in enumerate(of_parts):
            drawn, *before = self._cursors[part]
            ends = np.concatenate([[before], *(own.cursors for own in runs)])
            own = np.column_stack([np.arange(drawn, drawn + len(ends)), ends])
            cursors[:, column : column + own.shape[1]] = own[np.cumsum(parts == part)]
            column += own.shape[1]
            self._cursors[part] = tuple(own[-1].tolist())
        return RowRun(run.rows, cursors, run.keys)

    def _end(self, part: int) -> None:
        """Continue without a part that has ended, or end the epoch."""
        if self._stop == "never":
            raise without_items(self._lanes.mixture.names[part])
        self._table = None
        if self._stop == "all":
            self._cursors = [
                (0, times_ended + (number == part), *cursor)
                for number, (_, times_ended, *cursor) in enumerate(self._cursors)
            ]
            self._table = self._lanes.table(self._lane, [times_ended for _, times_ended, *_ in self._cursors])


class PassItems(Outputs):
    """All items of one pass over a part, with the keys that they have in the mixture."""

    def __init__(self, items: CountedItems, part: str, times_ended: int) -> None:
        super().__init__(items, partial(flow_of_pass, part, times_ended))
        self.part, self.times_ended = part, times_ended

    def keys(self, numbers: I64) -> I64:
        return (super().keys(numbers) ^ part_salt(self.part, self.times_ended)) & LOW_BITS

    def trace(self, numbers: I64) -> TracedRows:
        return super().trace(numbers).within(self.part)


class PartItems:
    """The items of one part from its position on, counted over all passes. A part that starts over has several."""

    def __init__(self, lanes: "MixtureLanes", lane: int, part: int, position: PartPosition) -> None:
        self._lanes, self._lane, self._part, self._position = lanes, lane, part, position
        self.name, self._begin = lanes.mixture.names[part], lanes.mixture.parts[part].begin
        self._repeats = lanes.mixture.stop == "never"
        self._pass = lru_cache(maxsize=PASSES_KEPT)(self._open_pass)
        self._starts = array("q", [0])
        """The number of items before each pass. A part of few rows has very many passes."""
        self._whole_passes: tuple[int, Amounts] = 0, sum_amounts([])
        """So many passes, and the amounts of these."""
        self.is_endless = self._repeats or self._pass(0).is_endless

    def _open_pass(self, number: int) -> PassItems:
        times_ended = self._position.times_ended + number
        lanes = self._lanes.of_part(self._part, times_ended)
        items = lanes.counted(self._lane, self._begin if number else self._position.cursor)
        return PassItems(items, self.name, times_ended)

    def has(self, item: int) -> bool:
        return (self.is_endless and item >= MOST_ITEMS) or self._find(item) is not None

    def total(self) -> int:
        """The number of items of a part that does not start over."""
        return self._pass(0).total()

    def _find(self, item: int) -> tuple[int, int] | None:
        """The pass of an item, and its number there; None if there is no such item."""
        number = bisect_right(self._starts, item) - 1
        while not self._pass(number).has(item - self._starts[number]):
            if not self._repeats:
                return None
            number += 1
            if number == len(self._starts):
                self._starts.append(self._starts[-1] + self._pass(number - 1).total())
                first = max(len(self._starts) - EMPTY_PASSES - 1, self._position.cursor != self._begin)
                if self._starts[first:].count(self._starts[-1]) > EMPTY_PASSES:
                    raise without_items(self.name)
        return number, item - self._starts[number]

    def position(self, items: int) -> tuple[int, Cursor]:
        """How often the part has ended, and its cursor, after a number of items."""
        if items == 0:
            return self._position.times_ended, self._position.cursor
        found = self._find(items - 1)
        assert found is not None
        number, item = found
        return self._pass(number).times_ended, self._pass(number).cursor(item + 1)

    def passed(self, position: PartPosition, tokens_of: TokensOf) -> Amounts:
        """The amounts before a position, of all passes."""
        passes = position.times_ended - self._position.times_ended if self._repeats else 0
        if passes < self._whole_passes[0]:
            self._whole_passes = 0, sum_amounts([])
        for number in range(self._whole_passes[0], passes):
            items = self._pass(number)
            whole = items.passed(items.cursor(items.total()), tokens_of, counting=True)
            self._whole_passes = number + 1, sum_amounts([self._whole_passes[1], whole])
        present = self._pass(passes).passed(position.cursor, tokens_of, counting=True)
        return sum_amounts([self._whole_passes[1], present])

    def find(self, file: str, row: int) -> I64:
        """The items of the present pass that have this row."""
        return self._pass(0).find(file, row)

    def by_pass(self, items: I64) -> Iterator[tuple[PassItems, I64]]:
        """The passes of these items, which exist, and their numbers in each."""
        if self._repeats and len(items):
            self._find(int(items[-1]))  # now it is known where the passes before its own end
        while len(items):
            number = bisect_right(self._starts, int(items[0])) - 1
            is_last = number + 1 == len(self._starts)
            end = len(items) if is_last else int(np.searchsorted(items, self._starts[number + 1]))
            yield self._pass(number), items[:end] - self._starts[number]
            items = items[end:]

    def flows(self, opened: Any, wanted: Wanted) -> Iterator[Flow]:
        """The wanted items, a flow for each pass.

        Packs of one window may take documents of two passes in any order. Then there are several flows of a pass.
        """
        for _, pieces in groupby(self._pieces(wanted), lambda piece: piece[0].times_ended):
            first = next(pieces)
            yield first[0].flow(opened, (numbers for _, numbers in chain([first], pieces)))

    def _pieces(self, wanted: Wanted) -> Iterator[tuple[PassItems, I64]]:
        """The wanted items by passes. Where the next ones are not known yet, the last pass is told so."""
        last: PassItems | None = None
        for items in wanted:
            if last is not None and not len(items):
                yield last, items
            for last, numbers in self.by_pass(items):
                yield last, numbers


class CountedDraws(CountedItems):
    """The items of a mixture in one lane."""

    def __init__(self, lanes: "MixtureLanes", lane: int, cursor: Cursor) -> None:
        self._lanes, self._lane, self._stop = lanes, lane, lanes.mixture.stop
        _, self.batched = lanes.mixture.item_spec
        self._positions = lanes.mixture.part_positions(cursor)
        self.parts = [PartItems(lanes, lane, part, position) for part, position in enumerate(self._positions)]
        self._drawn = np.array([position.drawn for position in self._positions], np.int64)
        """The number of items of each part before item 0, since the schedule began."""
        self._draws = int(self._drawn.sum())
        self._ended = [tuple(position.times_ended for position in self._positions)]
        """How often each part has ended: at the start, and with stop="all" after each end that is known."""
        self._table = lanes.table(lane, self._ended[0])
        """The draws up to the last end that is known, and those that follow if no part ends; None if all have ended."""
        self._drawn_from = lanes.draws_from(self._ended[0])
        self._left = [*self._drawn_from]
        """Those of them whose end is not known yet."""
        endless = [self.parts[part].is_endless for part in self._drawn_from]
        self.is_endless = bool(endless) and (all(endless) if self._stop == "first" else any(endless))

    def _taken(self, items: int) -> I64:
        """The number of items of each part among the first ``items``, as far as ends are known."""
        assert self._table is not None
        return self._table.drawn(self._draws + items) - self._drawn

    def _number_of(self, part: int, item: int) -> int:
        """The number of the draw that takes an item of a part, as far as ends are known."""
        assert self._table is not None
        return self._table.draw_of(part, item + int(self._drawn[part])) - self._draws

    def has(self, number: int) -> bool:
        while self._table is not None:
            taken = self._taken(number + 1).tolist()
            short = [part for part in self._left if taken[part] > 0 and not self.parts[part].has(taken[part] - 1)]
            if not short:
                return True
            if self._stop != "all" or not self._end_first(self._table, short):
                break
        return False

    def _end_first(self, table: DrawTable, short: Sequence[int]) -> bool:
        """Let the others share the draws after the first of these parts has ended; False if there are no others."""
        number, first = min((self._number_of(part, self.parts[part].total()), part) for part in short)
        ended = tuple(times_ended + (part == first) for part, times_ended in enumerate(self._ended[-1]))
        others = self._lanes.table(self._lane, ended)
        if others is not None:
            table.continue_with(others, self._draws + number)
            self._ended.append(ended)
            self._left.remove(first)
        return others is not None

    def total(self) -> int:
        if self.is_endless:
            raise TypeError("The length is unknown: a mixture with stop='never' never ends.")
        if self._stop == "all":
            return sum(self.parts[part].total() for part in self._drawn_from)
        ends = [part for part in self._drawn_from if not self.parts[part].is_endless]
        return min(self._number_of(part, self.parts[part].total()) for part in ends)

    def cursor(self, items: int) -> Cursor:
        if items == 0:
            return join_positions(self._positions)
        assert self.has(items - 1)
        assert self._table is not None
        taken, positions, ended = self._taken(items), [], self._ended[0]
        drawn = self._drawn + taken
        if self._stop == "all":  # the schedule begins anew when a part has ended
            step = self._table.step(self._draws + items - 1)
            drawn, ended = drawn - self._table.drawn_before(step), self._ended[step]
        for number, part in enumerate(self.parts):
            times_ended, cursor = part.position(int(taken[number]))
            times_ended = ended[number] if self._stop == "all" else times_ended
            positions.append(PartPosition(int(drawn[number]), times_ended, cursor))
        return join_positions(positions)

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        return self._lanes.mixture.flow_of(ReadDraws(self, opened, wanted))

    def located(self, numbers: I64) -> tuple[I32, I64]:
        """The part of each of these draws, and the number of its item in that part."""
        if self._table is None or not len(numbers):
            return np.empty(0, np.int32), numbers
        first, last = int(numbers[0]), int(numbers[-1])
        self.has(last)  # now it is known which parts end before
        every = self._table.parts(self._draws + first, self._draws + last + 1)
        items = np.empty(len(every), np.int64)
        for begin, draws in zip(self._taken(first), draws_by_part(every, len(self.parts)), strict=True):
            items[draws] = np.arange(begin, begin + len(draws))
        return every[numbers - first], items[numbers - first]

    def _passes(self, numbers: I64) -> Iterator[tuple[I64, PassItems, I64]]:
        """The places in ``numbers`` of the items of each pass over a part, the pass, and their numbers there."""
        parts, items = self.located(numbers)
        for part, draws in zip(self.parts, draws_by_part(parts, len(self.parts)), strict=True):
            for of_pass, own in part.by_pass(items[draws]):
                yield draws[: len(own)], of_pass, own
                draws = draws[len(own) :]

    def _of_each(self, numbers: I64, ask: Callable[[PassItems, I64], I64]) -> I64:
        """What the passes say of each of these items."""
        values = np.empty(len(numbers), np.int64)
        for places, of_pass, own in self._passes(numbers):
            values[places] = ask(of_pass, own)
        return values

    def keys(self, numbers: I64) -> I64:
        return self._of_each(numbers, PassItems.keys)

    def lengths(self, numbers: I64) -> I64:
        return self._of_each(numbers, PassItems.lengths)

    def costs(self, numbers: I64) -> I64:
        return self._of_each(numbers, PassItems.costs)

    def passed(self, cursor: Cursor, tokens_of: TokensOf = np.asarray, *, counting: bool = False) -> Amounts:
        own = zip(self.parts, self._lanes.mixture.part_positions(cursor), strict=True)
        return amounts_of_parts([(part.name, part.passed(position, tokens_of)) for part, position in own])

    def amounts(self, numbers: I64, tokens: I64 | None = None) -> Amounts:
        return amounts_of_parts(
            [
                (of_pass.part, of_pass.amounts(own, None if tokens is None else tokens[places]))
                for places, of_pass, own in self._passes(numbers)
            ]
        )

    def trace(self, numbers: I64) -> TracedRows:
        traced = [(places, of_pass.trace(own)) for places, of_pass, own in self._passes(numbers)]
        return join_traced([rows._replace(items=places[rows.items]) for places, rows in traced])

    def find(self, file: str, row: int) -> I64:
        found = [
            number
            for part in self._drawn_from
            for item in self.parts[part].find(file, row).tolist()
            if (number := self._draw_of(part, item)) is not None
        ]
        return np.array(sorted(found), np.int64)

    def _draw_of(self, part: int, item: int) -> int | None:
        """The number of the draw that takes an item of a part; None if the mixture ends before."""
        last = -1
        while (number := self._number_of(part, item)) != last:
            last, exists = number, self.has(number)  # more ends may be known now
        return number if exists and number < NEVER - self._draws else None


class ReadDraws:
    """The wanted draws of one reader. Each part is asked for its items of an array of draws when they are needed."""

    left_out = None

    def __init__(self, items: CountedDraws, opened: Any, wanted: Wanted) -> None:
        self._items, self._opened, self._wanted = items, opened, wanted
        self._due: deque[I32] = deque()
        """The parts of the next draws."""
        self._of_parts: list[deque[I64]] = [deque() for _ in items.parts]
        """For each part, its items among them that it was not asked for yet."""

    def _advance(self) -> I64 | None:
        """Find the parts and items of the next array of draws, which may be empty; None if there is no such array."""
        numbers = next(self._wanted, None)
        if numbers is not None and len(numbers):
            parts, items = self._items.located(numbers)
            self._due.append(parts)
            for waiting, draws in zip(self._of_parts, draws_by_part(parts, len(self._of_parts)), strict=True):
                if len(draws):
                    waiting.append(items[draws])
        return numbers

    def _wanted_of(self, part: int) -> Iterator[I64]:
        """The wanted items of a part. A part that is drawn from rarely does not look ahead through all draws.

        They end early if the part is asked for more while very many draws wait: a stage holds rows back because its
        group is not full, and there may be no further draw from the part. The end makes the stage give them out.
        """
        waiting = self._of_parts[part]
        while True:
            while not waiting:
                numbers = self._advance()
                if numbers is None:
                    return
                if not waiting and (not len(numbers) or len(self._due) >= DRAWS_AHEAD):
                    yield NOT_KNOWN
                    if not waiting and sum(map(len, self._due)) >= MOST_DRAWS_AHEAD:
                        return
            yield waiting.popleft()

    def _arrays(self) -> Iterator[I32]:
        while self._due or self._advance() is not None:
            if self._due:
                yield self._due.popleft()

    def _part(self, part: int, read: ReadFlow[T]) -> Iterator[T]:
        """What a part yields. It is opened again if its wanted items ended early and there are more."""
        items, opened = self._items.parts[part], self._opened.parts[part]
        while True:
            for flow in items.flows(opened, self._wanted_of(part)):
                yield from read(flow)
            if not self._of_parts[part]:
                return

    def single_items(self) -> Iterator[SingleItem]:
        flows = [self._part(part, Flow.as_single_items) for part in range(len(self._items.parts))]
        for parts in self._arrays():
            for part in parts.tolist():
                item, _, key = next(flows[part])
                yield item, (0,), key

    def row_runs(self) -> Iterator[RowRun]:
        waiting = [PartRows(self._part(part, row_runs)) for part in range(len(self._items.parts))]
        for parts in self._arrays():
            known_draws(parts, waiting)
            yield deal(parts, waiting)[0]
