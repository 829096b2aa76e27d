"""Drawing from the parts of a mixture in one lane: one by one, or in runs where all parts are unchanged rows.

A thousand rows are drawn at a time. Those of each part are a few slices of its runs. One permutation puts the rows of
all parts in the order of the draws.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np

from midepoch._common.hashing import I32, key_of
from midepoch.checkpoint.lanes import Cursor
from midepoch.pipeline.schedule import DrawTable, draws_by_part
from midepoch.stages.flow import Flow, RowRun, SingleItem
from midepoch.values.rows import concat

Stop = Literal["first", "all", "never"]
"""When an epoch ends: with the first part that ends, with the last one, or never, as parts start over."""
RUN_ROWS = 1024
DRAWS_TOGETHER = 256
"""For how many items that are drawn one by one the parts are found together."""
EMPTY_PASSES = 10
LOW_BITS = (1 << 63) - 1
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


def split_cursor(cursor: Cursor, widths: Sequence[int]) -> list[PartPosition]:
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


class WaitingRows:
    """The rows of a part that are read and not drawn yet."""

    def __init__(self) -> None:
        self.rows = 0
        self._runs: deque[RowRun] = deque()
        self._drawn = 0
        """How many rows of the first run are drawn."""

    def add(self, run: RowRun) -> None:
        """Let more rows wait."""
        self._runs.append(run)
        self.rows += len(run)

    def take(self, count: int) -> list[RowRun]:
        """Remove the next ``count`` rows, and return them."""
        taken = []
        self.rows -= count
        while count:
            run, begin = self._runs[0], self._drawn
            self._drawn = min(begin + count, len(run))
            taken.append(run.slice(begin, self._drawn))
            count -= self._drawn - begin
            if self._drawn == len(run):
                self._runs.popleft()
                self._drawn = 0
        return taken


def deal(parts: I32, waiting: Sequence[WaitingRows]) -> tuple[RowRun, list[list[RowRun]]]:
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


def fill(waiting: Sequence[WaitingRows], flows: Sequence[Iterator[RowRun]], parts: I32) -> int:
    """Let the rows wait that draws from ``parts`` need. Returns how many draws there are before one finds no row."""
    missing = [len(parts)]
    for of_part, runs, draws in zip(waiting, flows, draws_by_part(parts, len(waiting)), strict=True):
        while of_part.rows < len(draws) and (run := next(runs, None)) is not None:
            of_part.add(run)
        missing += draws[of_part.rows : of_part.rows + 1].tolist()
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
        empty_passes = 0
        while empty_passes < EMPTY_PASSES:
            empty_passes += 1
            for found in read(self._parts.names[part], times_ended, self._parts.open(part, times_ended, cursor)):
                empty_passes = 0
                yield found
            if self._parts.stop != "never":
                return
            times_ended, cursor = times_ended + 1, self._parts.begins[part]

    def _next_parts(self, table: DrawTable, most: int) -> I32:
        return table.next_parts([drawn for drawn, *_ in self._cursors], most)

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
        flows = self._flows(runs_of_pass)
        waiting = [WaitingRows() for _ in flows]
        most = 1  # so that the first item after a resume comes as soon as possible
        while self._table is not None:
            parts = self._next_parts(self._table, most)
            known = fill(waiting, flows, parts)
            if known:
                yield self._interleave(parts[:known], waiting)
            if known < len(parts):
                self._end(int(parts[known]))
            most = RUN_ROWS if known else 1

    def _interleave(self, parts: I32, waiting: Sequence[WaitingRows]) -> RowRun:
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
