"""Drawing from the parts of a mixture in one lane: one by one, or in runs where all parts are unchanged rows.

A thousand rows are drawn at a time. Those of each part are a few slices of its runs. One permutation puts the rows of
all parts in the order of the draws. Where parts are counted, so are the draws: what each part has yielded after any
number of draws follows from a table.
"""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from midepoch._common.hashing import I32, I64, key_of
from midepoch.checkpoint.lanes import Cursor
from midepoch.pipeline.schedule import NEVER, DrawTable, draws_by_part
from midepoch.stages.counted import (
    Amounts,
    CountedItems,
    TokensOf,
    TracedRows,
    Wanted,
    amounts_of_parts,
    join_traced,
    sum_amounts,
)
from midepoch.stages.flow import Flow, RowRun, SingleItem
from midepoch.values.columns import Form
from midepoch.values.rows import concat

Stop = Literal["first", "all", "never"]
"""When an epoch ends: with the first part that ends, with the last one, or never, as parts start over."""
RUN_ROWS = 1024
DRAWS_TOGETHER = 256
"""For how many items that are drawn one by one the parts are found together."""
EMPTY_PASSES = 10
LOW_BITS = (1 << 63) - 1
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneParts(Generic[T]):
    """The parts of a mixture, as a lane draws from them from its position on."""

    names: Sequence[str]
    begins: Sequence[Cursor]
    positions: Sequence[PartPosition]
    stop: Stop
    open: Callable[[int, int, Cursor], T]
    """Returns the items of a part, given its number, how often it has ended and the cursor to start from."""
    table: Callable[[Sequence[int]], DrawTable | None]
    """Returns the draws of the lane, given how often each part has ended; None if no part is left to draw from."""

    def is_under_way(self, part: int) -> bool:
        """True if the first pass began before. Its rest may have no items, and the pass had some."""
        return self.positions[part].cursor != self.begins[part]

    def without_items(self, part: int) -> ValueError:
        """The error for a part that starts over again and again and has no items in the lane."""
        return ValueError(
            f"The part {self.names[part]!r} of the mixture had no items in {EMPTY_PASSES} passes over a lane, so "
            "stop='never' cannot continue. The part has fewer rows than there are lanes, or a filter that keeps none: "
            "use fewer lanes, or leave the part out."
        )


def part_salt(name: str, times_ended: int) -> int:
    """Separates the keys of one pass over a part from those of other parts and passes."""
    return key_of("part", name, times_ended) & LOW_BITS


ReadPass = Callable[[str, int, Flow], Iterator[T]]
"""Reads a pass over a part, given the part's name and how often it has ended: ``runs_of_pass`` or ``items_of_pass``."""


def runs_of_pass(name: str, times_ended: int, flow: Flow) -> Iterator[RowRun]:
    """The runs of a pass over a part. Cursors begin with how often it has ended, and no other pass has their keys."""
    assert flow.row_runs is not None
    salt = part_salt(name, times_ended)
    for run in flow.row_runs:
        cursors = np.insert(run.cursors, 0, times_ended, axis=1)
        yield RowRun(run.rows, cursors, (run.keys ^ salt) & LOW_BITS)


def items_of_pass(name: str, times_ended: int, flow: Flow) -> Iterator[SingleItem]:
    """The same one by one."""
    salt = part_salt(name, times_ended)
    for item, cursor, key in flow.as_single_items():
        yield item, (times_ended, *cursor), (key ^ salt) & LOW_BITS


class PartRows:
    """The rows of a part, taken as many at a time as are drawn."""

    def __init__(self, runs: Iterator[RowRun]) -> None:
        self._runs = runs
        self._waiting: deque[RowRun] = deque()
        self._rows = 0

    def ready(self, count: int) -> int:
        """How many of the next ``count`` rows there are. They are read if need be, and wait."""
        while self._rows < count and (run := next(self._runs, None)) is not None:
            self._waiting.append(run)
            self._rows += len(run)
        return min(count, self._rows)

    def take(self, count: int) -> list[RowRun]:
        """The next ``count`` rows, which are ready."""
        taken = []
        self._rows -= count
        while count:
            run = self._waiting.popleft()
            if len(run) > count:
                self._waiting.appendleft(run.slice(count, len(run)))
                run = run.slice(0, count)
            taken.append(run)
            count -= len(run)
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

    def __init__(self, parts: LaneParts[Flow]) -> None:
        self._parts = parts
        self._cursors: list[Cursor] = [(drawn, times_ended, *cursor) for drawn, times_ended, cursor in parts.positions]
        """Of each part, how many items were drawn, how often it has ended, and its own cursor."""
        self._table = parts.table([position.times_ended for position in parts.positions])

    def _flows(self, read: ReadPass[T]) -> list[Iterator[T]]:
        return [self._flow(part, read) for part in range(len(self._cursors))]

    def _flow(self, part: int, read: ReadPass[T]) -> Iterator[T]:
        """A part from its position on: one pass, or with stop="never" one after the other."""
        _, times_ended, cursor = self._parts.positions[part]
        empty_passes = -self._parts.is_under_way(part)
        while empty_passes < EMPTY_PASSES:
            empty_passes += 1
            for found in read(self._parts.names[part], times_ended, self._parts.open(part, times_ended, cursor)):
                empty_passes = 0
                yield found
            if self._parts.stop != "never":
                return
            times_ended, cursor = times_ended + 1, self._parts.begins[part]

    def _next_parts(self, table: DrawTable, most: int) -> I32:
        draws = sum(drawn for drawn, *_ in self._cursors)
        return table.parts(draws, draws + most)

    def single_items(self) -> Iterator[SingleItem]:
        """The items, drawn one by one."""
        flows = self._flows(items_of_pass)
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
        waiting = list(map(PartRows, self._flows(runs_of_pass)))
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
        if self._parts.stop == "never":
            raise self._parts.without_items(part)
        self._table = None
        if self._parts.stop == "all":
            self._cursors = [
                (0, times_ended + (number == part), *cursor)
                for number, (_, times_ended, *cursor) in enumerate(self._cursors)
            ]
            self._table = self._parts.table([times_ended for _, times_ended, *_ in self._cursors])


class PassItems(NamedTuple):
    """Some items of one pass over a part."""

    part: str
    times_ended: int
    """How often the part has ended before the pass."""
    items: CountedItems
    """All items of the pass."""
    numbers: I64
    """Which of them."""

    def keys(self) -> I64:
        """Their keys, which no other pass has."""
        return (self.items.keys(self.numbers) ^ part_salt(self.part, self.times_ended)) & LOW_BITS


class PartItems:
    """The items of one part from its position on, counted over all passes. A part that starts over has several."""

    def __init__(self, parts: LaneParts[CountedItems], part: int) -> None:
        self._parts, self._part, self.name = parts, part, parts.names[part]
        self._repeats, self._position = parts.stop == "never", parts.positions[part]
        self._pass = lru_cache(maxsize=PASSES_KEPT)(self._open_pass)
        self._starts = array("q", [0])
        """The number of items before each pass. A part of few rows has very many passes."""
        self._whole_passes: tuple[int, Amounts] = 0, sum_amounts([])
        """So many passes, and the amounts of these."""
        self.is_endless = self._repeats or self._pass(0).is_endless

    def _open_pass(self, number: int) -> CountedItems:
        cursor = self._parts.begins[self._part] if number else self._position.cursor
        return self._parts.open(self._part, self._position.times_ended + number, cursor)

    def has(self, item: int) -> bool:
        return self._find(item) is not None

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
                first = max(len(self._starts) - EMPTY_PASSES - 1, self._parts.is_under_way(self._part))
                if self._starts[first:].count(self._starts[-1]) > EMPTY_PASSES:
                    raise self._parts.without_items(self._part)
        return number, item - self._starts[number]

    def position(self, items: int) -> tuple[int, Cursor]:
        """How often the part has ended, and its cursor, after a number of items."""
        if items == 0:
            return self._position.times_ended, self._position.cursor
        found = self._find(items - 1)
        assert found is not None
        number, item = found
        return self._position.times_ended + number, self._pass(number).cursor(item + 1)

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

    def by_pass(self, items: I64) -> Iterator[PassItems]:
        """These items, which exist, by passes."""
        if self._repeats and len(items):
            self._find(int(items[-1]))  # now it is known where the passes before its own end
        while len(items):
            number = bisect_right(self._starts, int(items[0])) - 1
            is_last = number + 1 == len(self._starts)
            end = len(items) if is_last else int(np.searchsorted(items, self._starts[number + 1]))
            here = items[:end] - self._starts[number]
            yield PassItems(self.name, self._position.times_ended + number, self._pass(number), here)
            items = items[end:]

    def flows(self, opened: Any, wanted: Wanted) -> Iterator[tuple[int, Flow]]:
        """The wanted items, a flow for each pass, with how often the part has ended before it.

        Packs of one window may take documents of two passes in any order. Then there are several flows of a pass.
        """
        for times_ended, pieces in groupby(self._pieces(wanted), attrgetter("times_ended")):
            first = next(pieces)
            numbers = (piece.numbers for piece in chain([first], pieces))
            yield times_ended, first.items.flow(opened, numbers)

    def _pieces(self, wanted: Wanted) -> Iterator[PassItems]:
        """The wanted items by passes. Where the next ones are not known yet, the last pass is told so."""
        last: PassItems | None = None
        for items in wanted:
            if last is not None and not len(items):
                yield last._replace(numbers=items)
            for last in self.by_pass(items):
                yield last


@dataclass(frozen=True, slots=True)
class Stretch:
    """Draws by one table, until a part ends and the others share its draws."""

    first: int
    """The number of the first item."""
    draws: int
    """How many draws of the table are before item 0."""
    before: I64
    """The number of items of each part before the table's first draw."""
    ended: tuple[int, ...]
    """How often each part has ended, where ended parts are left out."""
    table: DrawTable

    def taken(self, items: int) -> I64:
        """The number of items of each part among the first ``items``, if the stretch lasts so long."""
        return self.before + self.table.drawn(self.draws + items)

    def number_of(self, part: int, item: int) -> int:
        """The number of the draw that takes an item of a part."""
        return self.table.draw_of(part, item - int(self.before[part])) - self.draws


class CountedDraws(CountedItems):
    """The items of a mixture in one lane."""

    def __init__(self, parts: LaneParts[CountedItems], *, form: tuple[Form, bool], in_runs: bool) -> None:
        """Take the parts, the form of the items, and whether all parts are unchanged rows, which are drawn in runs."""
        self._lane_parts, self._stop, self._in_runs = parts, parts.stop, in_runs
        self._form, self.batched = form
        self.parts = [PartItems(parts, part) for part in range(len(parts.names))]
        drawn = np.array([position.drawn for position in parts.positions], np.int64)
        ended = tuple(position.times_ended for position in parts.positions)
        table, draws = parts.table(ended), int(drawn.sum())
        self._stretches = [] if table is None else [Stretch(0, draws, -drawn, ended, table)]
        """Those that are known. There are none if all parts have ended."""
        self._weighted = [part for part in range(len(drawn)) if table is not None and table.draws_from(part)]
        endless = [self.parts[part].is_endless for part in self._weighted]
        self.is_endless = bool(endless) and (all(endless) if self._stop == "first" else any(endless))

    def _stretch(self, number: int) -> Stretch | None:
        """The stretch of an item; None if there is no such item."""
        index = bisect_right(self._stretches, number, key=attrgetter("first")) - 1
        stretch = self._stretches[index] if self._stretches else None
        while stretch is not None:
            taken, before = stretch.taken(number + 1).tolist(), stretch.before.clip(min=0).tolist()
            drawn = [part for part in self._weighted if taken[part] > before[part]]
            short = [part for part in drawn if not self.parts[part].has(taken[part] - 1)]
            if not short:
                break
            stretch = self._stretch_after(stretch, short) if self._stop == "all" else None
        return stretch

    def _stretch_after(self, last: Stretch, short: Sequence[int]) -> Stretch | None:
        """The stretch after the last one that is known, in which these parts end; None if no part is left."""
        number, part = min((last.number_of(part, self.parts[part].total()), part) for part in short)
        ended = tuple(times_ended + (other == part) for other, times_ended in enumerate(last.ended))
        table = self._lane_parts.table(ended)
        if table is None:
            return None
        self._stretches.append(Stretch(number, -number, last.taken(number), ended, table))
        return self._stretches[-1]

    def has(self, number: int) -> bool:
        return self._stretch(number) is not None

    def total(self) -> int:
        if self.is_endless:
            raise TypeError("The length is unknown: a mixture with stop='never' never ends.")
        if self._stop == "all":
            return sum(self.parts[part].total() for part in self._weighted)
        ends = [part for part in self._weighted if not self.parts[part].is_endless]
        return min(self._stretches[0].number_of(part, self.parts[part].total()) for part in ends)

    def cursor(self, items: int) -> Cursor:
        if items == 0:
            return join_positions(self._lane_parts.positions)
        stretch = self._stretch(items - 1)
        assert stretch is not None
        taken, positions = stretch.taken(items), []
        drawn = taken - stretch.before
        for number, part in enumerate(self.parts):
            times_ended, cursor = part.position(int(taken[number]))
            ended = stretch.ended[number] if self._stop == "all" else times_ended
            positions.append(PartPosition(int(drawn[number]), ended, cursor))
        return join_positions(positions)

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        reading = _Reading(self, opened, wanted)
        if self._in_runs:
            return Flow(row_runs=reading.row_runs(), form=self._form)
        return Flow(single_items=reading.single_items(), form=self._form, batched=self.batched)

    def located(self, numbers: I64) -> tuple[I32, I64]:
        """The part of each of these draws, and the number of its item in that part."""
        parts, items = np.empty(len(numbers), np.int32), np.empty(len(numbers), np.int64)
        if len(numbers):
            self._stretch(int(numbers[-1]))  # now it is known where the stretches before its own end
        ends = np.searchsorted(numbers, [stretch.first for stretch in self._stretches[1:]]).tolist()
        for stretch, begin, end in zip(self._stretches, [0, *ends], [*ends, len(numbers)], strict=False):
            if begin < end:
                first, last, chosen = int(numbers[begin]), int(numbers[end - 1]), numbers[begin:end] - numbers[begin]
                every = stretch.table.parts(stretch.draws + first, stretch.draws + last + 1)
                of_every = np.empty(len(every), np.int64)
                for begun, draws in zip(stretch.taken(first), draws_by_part(every, len(self.parts)), strict=True):
                    of_every[draws] = np.arange(begun, begun + len(draws))
                parts[begin:end], items[begin:end] = every[chosen], of_every[chosen]
        return parts, items

    def _passes(self, numbers: I64) -> Iterator[tuple[I64, PassItems]]:
        """These items by parts and passes: the places of some of them in ``numbers``, and these."""
        parts, items = self.located(numbers)
        for part, draws in zip(self.parts, draws_by_part(parts, len(self.parts)), strict=True):
            for piece in part.by_pass(items[draws]):
                yield draws[: len(piece.numbers)], piece
                draws = draws[len(piece.numbers) :]

    def _of_each(self, numbers: I64, ask: Callable[[PassItems], I64]) -> I64:
        """What the passes say of each of these items."""
        values = np.empty(len(numbers), np.int64)
        for places, piece in self._passes(numbers):
            values[places] = ask(piece)
        return values

    def keys(self, numbers: I64) -> I64:
        return self._of_each(numbers, PassItems.keys)

    def lengths(self, numbers: I64) -> I64:
        return self._of_each(numbers, lambda piece: piece.items.lengths(piece.numbers))

    def costs(self, numbers: I64) -> I64:
        return self._of_each(numbers, lambda piece: piece.items.costs(piece.numbers))

    def passed(self, cursor: Cursor, tokens_of: TokensOf = np.asarray, *, counting: bool = False) -> Amounts:
        positions = split_positions(cursor, list(map(len, self._lane_parts.begins)))
        own = zip(self.parts, positions, strict=True)
        return amounts_of_parts([(part.name, part.passed(position, tokens_of)) for part, position in own])

    def amounts(self, numbers: I64, tokens: I64 | None = None) -> Amounts:
        return amounts_of_parts(
            [
                (piece.part, piece.items.amounts(piece.numbers, None if tokens is None else tokens[places]))
                for places, piece in self._passes(numbers)
            ]
        )

    def trace(self, numbers: I64) -> TracedRows:
        traced = []
        for places, piece in self._passes(numbers):
            rows = piece.items.trace(piece.numbers).within(piece.part)
            traced.append(rows._replace(items=places[rows.items]))
        return join_traced(traced)

    def find(self, file: str, row: int) -> I64:
        found = [
            number
            for part in self._weighted
            for item in self.parts[part].find(file, row).tolist()
            if (number := self._number_of(part, item)) is not None
        ]
        return np.array(sorted(found), np.int64)

    def _number_of(self, part: int, item: int) -> int | None:
        """The number of the draw that takes an item of a part; None if the mixture ends before."""
        for stretch in self._stretches:  # more may become known meanwhile
            number = stretch.number_of(part, item)
            if self._stop != "all" and number >= NEVER - stretch.draws:
                return None
            if self._stretch(number) is stretch:
                return number
        return None


class _Reading:
    """The wanted draws of one reader. Each part is asked for its items of an array of draws when they are needed."""

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

    def _read(self, part: int, read: ReadPass[T]) -> Iterator[T]:
        """What a part yields. It is opened again if its wanted items ended early and there are more."""
        items, opened = self._items.parts[part], self._opened.parts[part]
        while True:
            for times_ended, flow in items.flows(opened, self._wanted_of(part)):
                yield from read(items.name, times_ended, flow)
            if not self._of_parts[part]:
                return

    def single_items(self) -> Iterator[SingleItem]:
        flows = [self._read(part, items_of_pass) for part in range(len(self._items.parts))]
        for parts in self._arrays():
            for part in parts.tolist():
                item, _, key = next(flows[part])
                yield item, (0,), key

    def row_runs(self) -> Iterator[RowRun]:
        waiting = [PartRows(self._read(part, runs_of_pass)) for part in range(len(self._items.parts))]
        for parts in self._arrays():
            known_draws(parts, waiting)
            yield deal(parts, waiting)[0]
