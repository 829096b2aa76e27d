"""The draws of a mixture, counted: what each part has yielded after any number of draws follows from a table."""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from midepoch._common.hashing import I32, I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.draws import (
    EMPTY_PASSES,
    LOW_BITS,
    LaneParts,
    PartPosition,
    ReadPass,
    WaitingRows,
    deal,
    fill,
    items_of_pass,
    join_positions,
    part_salt,
    runs_of_pass,
)
from midepoch.pipeline.schedule import NEVER, DrawTable, draws_by_part
from midepoch.stages.counted import CountedItems, TracedRows, Wanted, join_traced
from midepoch.stages.flow import Flow, RowRun, SingleItem
from midepoch.values.forms import Form

PASSES_KEPT = 8
"""How many passes over a part are kept in memory; older ones are opened again if they are needed."""
DRAWS_AHEAD = 16
"""How many arrays of draws may wait while the next items of a part are looked for."""
MOST_DRAWS_AHEAD = 1 << 14
"""How many draws may wait while a stage of a part holds rows back because its group is not full."""
NOT_KNOWN: I64 = np.empty(0, np.int64)
T = TypeVar("T")


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
                if self._starts[-EMPTY_PASSES - 1 :].count(self._starts[-1]) > EMPTY_PASSES:
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
        if table is not None and not np.array_equal(table.drawn(draws), drawn):
            raise CheckpointMismatchError(
                f"The state is damaged: {drawn.tolist()} items drawn from the parts {', '.join(parts.names)} do not "
                "follow from the weights. Load an earlier checkpoint."
            )
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
        flows = [self._read(part, runs_of_pass) for part in range(len(self._items.parts))]
        waiting = [WaitingRows() for _ in flows]
        for parts in self._arrays():
            fill(waiting, flows, parts)
            yield deal(parts, waiting)[0]
