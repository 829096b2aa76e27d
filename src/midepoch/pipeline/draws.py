"""Drawing from the parts of a mixture in one lane: one by one, or in runs where all parts are unchanged rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal, NamedTuple, Protocol

import numpy as np

from midepoch._common.hashing import key_of
from midepoch._common.types import I32
from midepoch.checkpoint.lanes import Cursor
from midepoch.pipeline.waiting_rows import LOW_BITS, WaitingRows, interleaved
from midepoch.stages.flow import Flow, RowRun, SingleItem

Stop = Literal["first", "all", "never"]
"""When an epoch ends: with the first part that ends, with the last one, or never, as parts start over."""
RUN_ROWS = 1024
RUNS_WAITING = 4
DRAWS_TOGETHER = 256
"""For how many items that are drawn one by one the parts are found together."""
EMPTY_PASSES = 10


class PartPosition(NamedTuple):
    """How far a lane has come in one part."""

    drawn: int
    """The number of items drawn since the schedule began."""
    times_ended: int
    """How often the part has come to its end."""
    cursor: Cursor
    """The part's own cursor."""


def join_positions(positions: Sequence[PartPosition]) -> Cursor:
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
class PartInput:
    """One part, as a lane draws from it."""

    name: str
    begin: Cursor
    open: Callable[[int, Cursor], Flow]
    """Returns the part's items, given how often it has ended and the cursor to start from."""


class Drawing(Protocol):
    """The order of draws of a lane."""

    def draw(self, drawn: Sequence[int]) -> int:
        """The part to draw from next, after ``drawn`` draws from each."""

    def draws(self, drawn: Sequence[int], available: Sequence[int], most: int) -> I32:
        """The parts of the next draws: at most ``most``, and from no part more than it has available."""


class Draws:
    """The draws of a lane from its position on. Each object is good for one pass over them."""

    def __init__(
        self,
        inputs: Sequence[PartInput],
        positions: Sequence[PartPosition],
        *,
        stop: Stop,
        schedule: Callable[[Sequence[int]], Drawing | None],
    ) -> None:
        """Take the parts, the position in each, and what makes a schedule, given how often each part has ended."""
        self._inputs, self._stop, self._make_schedule = inputs, stop, schedule
        self._drawn = [position.drawn for position in positions]
        self._times_ended = [position.times_ended for position in positions]
        self._cursors = [position.cursor for position in positions]
        self._empty_passes = [0] * len(positions)
        self._salts = [self._salt(part) for part in range(len(positions))]
        self._schedule = schedule(self._times_ended)

    def passes(self, weights: Sequence[int]) -> int:
        """How often all parts that have a weight have ended."""
        return min((ended for ended, weight in zip(self._times_ended, weights, strict=True) if weight), default=0)

    def _salt(self, part: int) -> int:
        """Separates the keys of one pass over a part from those of other parts and passes."""
        return part_salt(self._inputs[part].name, self._times_ended[part])

    def _open(self, part: int) -> Flow:
        return self._inputs[part].open(self._times_ended[part], self._cursors[part])

    def _part_cursors(self) -> list[Cursor]:
        positions = zip(self._drawn, self._times_ended, self._cursors, strict=True)
        return [(drawn, times_ended, *cursor) for drawn, times_ended, cursor in positions]

    def single_items(self) -> Iterator[SingleItem]:
        """The items, drawn one by one."""
        flows: dict[int, Iterator[SingleItem]] = {}
        part_cursors = self._part_cursors()
        many = [DRAWS_TOGETHER] * len(self._inputs)
        while self._schedule is not None:
            for part in self._schedule.draws(self._drawn, many, DRAWS_TOGETHER).tolist():
                while (single := self._next_of(part, flows)) is None:
                    del flows[part]
                    self._end(part)
                    part_cursors = self._part_cursors()
                    if self._stop != "never":
                        break  # other parts are drawn from now on
                if single is None:
                    break
                item, self._cursors[part], key = single
                self._drawn[part] += 1
                part_cursors[part] = (self._drawn[part], self._times_ended[part], *self._cursors[part])
                yield item, tuple(chain.from_iterable(part_cursors)), (key ^ self._salts[part]) & LOW_BITS

    def _next_of(self, part: int, flows: dict[int, Iterator[SingleItem]]) -> SingleItem | None:
        """The next item of a part, which is opened if it is not; None if it has ended."""
        if part not in flows:
            flows[part] = self._open(part).as_single_items()
        return next(flows[part], None)

    def row_runs(self) -> Iterator[RowRun]:
        """The items in runs: many draws at a time, from the runs of the parts that are waiting."""
        flows: dict[int, Iterator[RowRun]] = {}
        waiting = [WaitingRows() for _ in self._inputs]
        most = 1  # so that the first item after a resume comes as soon as possible
        while self._schedule is not None:
            part = self._schedule.draw(self._drawn)
            if part not in flows:
                flow = self._open(part)
                assert flow.row_runs is not None
                flows[part] = flow.row_runs
            for number, runs in flows.items():
                waiting[number].add(islice(runs, max(0, most - waiting[number].runs)))
            if waiting[part].rows:
                available = [of_part.rows for of_part in waiting]
                yield self._interleave(self._schedule.draws(self._drawn, available, RUN_ROWS), waiting)
                most = RUNS_WAITING
            else:
                del flows[part]
                self._end(part)

    def _interleave(self, parts: I32, waiting: Sequence[WaitingRows]) -> RowRun:
        """One run of the next rows of ``parts``, in the order of the draws. The rows are removed from ``waiting``."""
        rows, keys, slices_of_parts = interleaved(parts, waiting, self._salts)
        cursors = np.empty((len(parts), sum(2 + len(cursor) for cursor in self._cursors)), np.int64)
        column = 0
        for part, slices in enumerate(slices_of_parts):
            width = 2 + len(self._cursors[part])
            of_part = cursors[:, column : column + width]
            column += width
            before = self._drawn[part], self._times_ended[part], *self._cursors[part]
            if not slices:
                of_part[:] = before
                continue
            taken = np.cumsum(parts == part)
            part_cursors = np.concatenate([[before[2:]], *(some.cursors for some in slices)])
            of_part[:, 0], of_part[:, 1], of_part[:, 2:] = self._drawn[part] + taken, before[1], part_cursors[taken]
            self._drawn[part] += len(part_cursors) - 1
            self._cursors[part] = tuple(part_cursors[-1].tolist())
        return RowRun(rows, cursors, keys)

    def _end(self, part: int) -> None:
        """Continue, or end the epoch, when the part that is due has nothing left."""
        if self._stop == "first":
            self._schedule = None
            return
        if self._stop == "never":
            self._check_not_empty(part)
        self._times_ended[part] += 1
        if self._stop == "all":
            self._drawn = [0] * len(self._drawn)
            self._schedule = self._make_schedule(self._times_ended)
        else:
            self._cursors[part] = self._inputs[part].begin
            self._salts[part] = self._salt(part)

    def _check_not_empty(self, part: int) -> None:
        """Raise if a part that starts over again and again has no items in this lane."""
        name, begin = self._inputs[part].name, self._inputs[part].begin
        self._empty_passes[part] = 0 if self._cursors[part] != begin else self._empty_passes[part] + 1
        if self._empty_passes[part] == EMPTY_PASSES:
            raise empty_part(name)


def part_salt(name: str, times_ended: int) -> int:
    """Separates the keys of one pass over a part from those of other parts and passes."""
    return key_of("part", name, times_ended) & LOW_BITS


def empty_part(name: str) -> ValueError:
    """The error for a part that starts over again and again and has no items in a lane."""
    return ValueError(
        f"The part {name!r} of the mixture had no items in {EMPTY_PASSES} passes over a lane, so stop='never' "
        "cannot continue. The part has fewer rows than there are lanes, or a filter that keeps none: use fewer "
        "lanes, or leave the part out."
    )
