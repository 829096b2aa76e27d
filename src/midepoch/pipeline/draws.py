"""Drawing from the parts of a mixture in one lane: one by one, or, where all of them give rows as they are, in runs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import Literal, NamedTuple

import numpy as np

from midepoch._common.hashing import key_of
from midepoch._common.types import I32, I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.pipeline.schedule import Schedule
from midepoch.stages.flow import Flow, RowRun, SingleItem
from midepoch.values.forms import Form
from midepoch.values.pool import PickedRows, RowPool
from midepoch.values.rows import Rows

Stop = Literal["first", "all", "never"]
RUN_ROWS, RUNS_AT_HAND = 1024, 4
EMPTY_PASSES = 10
LOW = (1 << 63) - 1


class Drawn(NamedTuple):
    """Where a lane stands in one part."""

    items: int
    """How many items the schedule has drawn."""
    ends: int
    """How often the part came to its end."""
    cursor: Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """One part, as a lane draws from it."""

    name: str
    begin: Cursor
    open: Callable[[int, Cursor], Flow]
    """Its items from a cursor on, when it has come to its end so many times."""


class Draws:
    """The draws of a lane from where it stands. Good for one pass over them."""

    def __init__(
        self,
        supplies: Sequence[Supply],
        drawn: Sequence[Drawn],
        *,
        stop: Stop,
        schedule: Callable[[Sequence[int]], Schedule | None],
    ) -> None:
        """Take the parts, where each stands, and the schedule for each time that some of them have ended."""
        self._supplies, self._stop, self._schedule_of = supplies, stop, schedule
        self._items, self._ends = [one.items for one in drawn], [one.ends for one in drawn]
        self._cursors = [one.cursor for one in drawn]
        self._empty_passes = [0] * len(drawn)
        self._salts = [self._salt(number) for number in range(len(drawn))]
        self._schedule = schedule(self._ends)

    def _salt(self, number: int) -> int:
        """What keeps the keys of a part's pass apart from those of other parts and passes."""
        return key_of("part", self._supplies[number].name, self._ends[number]) & LOW

    def _open(self, number: int) -> Flow:
        return self._supplies[number].open(self._ends[number], self._cursors[number])

    def each(self) -> Iterator[SingleItem]:
        """The items drawn one by one."""
        inputs: dict[int, Iterator[SingleItem]] = {}
        segments: list[Cursor] = [
            (items, ends, *cursor) for items, ends, cursor in zip(self._items, self._ends, self._cursors, strict=True)
        ]
        while self._schedule is not None:
            number = self._schedule.draw(self._items)
            if number not in inputs:
                inputs[number] = self._open(number).as_single_items()
            step = next(inputs[number], None)
            if step is None:
                del inputs[number]
                self._end(number)
                segments = [(items, *segment[1:]) for items, segment in zip(self._items, segments, strict=True)]
                segments[number] = (self._items[number], self._ends[number], *self._cursors[number])
                continue
            item, self._cursors[number], key = step
            self._items[number] += 1
            segments[number] = (self._items[number], self._ends[number], *self._cursors[number])
            yield item, tuple(chain.from_iterable(segments)), (key ^ self._salts[number]) & LOW

    def runs(self) -> Iterator[RowRun]:
        """The items in runs: many draws at a time, of what the parts have at hand."""
        inputs: dict[int, Iterator[RowRun]] = {}
        at_hand: list[list[RowRun]] = [[] for _ in self._supplies]
        most = 1  # whoever has just resumed waits for one run
        while self._schedule is not None:
            number = self._schedule.draw(self._items)
            if number not in inputs:
                flow = self._open(number)
                assert flow.row_runs is not None
                inputs[number] = flow.row_runs
            for one, runs in inputs.items():
                at_hand[one] += islice(runs, most - len(at_hand[one]))
            if at_hand[number]:
                have = [sum(map(len, runs)) for runs in at_hand]
                yield self._interleaved(self._schedule.draws(self._items, have, RUN_ROWS), at_hand)
                most = RUNS_AT_HAND
            else:
                del inputs[number]
                self._end(number)

    def _interleaved(self, sources: I32, at_hand: Sequence[list[RowRun]]) -> RowRun:
        """One run of the rows that the draws take from the parts, which are then at hand no more."""
        taken = (sources[:, None] == np.arange(len(self._supplies))).cumsum(axis=0)
        totals: list[int] = taken[-1].tolist()
        begins = np.array(list(accumulate(totals, initial=0))[:-1])
        places: I64 = begins[sources] + taken[np.arange(len(sources)), sources] - 1
        ends, batches, keys = [], [], []
        form: Form = "python"
        for number, total in enumerate(totals):
            ends.append((self._items[number] + taken[:, number])[:, None])
            ends.append(np.full((len(sources), 1), self._ends[number]))
            behind = np.array([self._cursors[number]], np.int64)
            if total:
                some = _take(at_hand[number], total)
                behind = np.concatenate([behind, *(run.cursors for run in some)])
                for run in some:
                    assert not isinstance(run.rows.data, dict), "a batched function makes single items of a mixture"
                    batches.append(run.rows.data)
                    keys.append((run.keys ^ self._salts[number]) & LOW)
                form = some[0].rows.form
                self._items[number] += total
                self._cursors[number] = tuple(behind[-1].tolist())
            ends.append(behind[taken[:, number]])
        return RowRun(Rows(PickedRows(RowPool(batches), places), form), np.hstack(ends), np.concatenate(keys)[places])

    def _end(self, number: int) -> None:
        """Go on, or not, when the part that is due has nothing left."""
        supply = self._supplies[number]
        if self._stop == "first":
            self._schedule = None
            return
        if self._stop == "never":
            given = self._cursors[number] != supply.begin
            self._empty_passes[number] = 0 if given else self._empty_passes[number] + 1
            if self._empty_passes[number] == EMPTY_PASSES:
                raise ValueError(
                    f"The part {supply.name!r} of the mixture gave nothing in {EMPTY_PASSES} passes over a lane, so to "
                    "begin it again is of no use. It has fewer rows than there are lanes, or a filter that keeps none."
                )
        self._ends[number] += 1
        if self._stop == "all":
            self._items = [0] * len(self._items)
            self._schedule = self._schedule_of(self._ends)
        else:
            self._cursors[number] = supply.begin
            self._salts[number] = self._salt(number)


def _take(runs: list[RowRun], count: int) -> list[RowRun]:
    """Take so many rows from the first of some runs."""
    taken = []
    while count:
        run = runs.pop(0)
        here = min(count, len(run))
        taken.append(run.slice(0, here))
        if here < len(run):
            runs.insert(0, run.slice(here, len(run)))
        count -= here
    return taken
