"""Reading: this process takes a reader's turns at its lanes."""

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from math import gcd
from typing import Any

import numpy as np

from midepoch._common.checks import count, log_once
from midepoch._common.hashing import I64
from midepoch._common.jobs import FUNCTIONS
from midepoch.checkpoint.lanes import LaneAssignment, LanePosition
from midepoch.delivery.passes import Progress
from midepoch.delivery.rounds import NO_END, Run
from midepoch.delivery.session import AnySession
from midepoch.delivery.turns import NO_TURNS, Turns, round_robin
from midepoch.delivery.uncounted import ReportedProgress, UncountedSession
from midepoch.sources.source import OpenSource
from midepoch.stages.counted import hashes_of
from midepoch.stages.flow import Flow
from midepoch.values.rows import RowItems


def take_turns(
    progress: Progress, first: int = 0, step: int = 1, *, deferred: bool = False
) -> Generator[Turns, None, None]:
    """A reader's turns from where its progress is, until no lane has anything left.

    If several processes share a reader's turns, each takes the turn ``first`` and then every ``step``-th. Then nothing
    is made for others, if the pipeline is counted. With ``deferred``, items that are rows of files may be ``RowItems``.
    """
    session = progress.session
    if isinstance(progress, ReportedProgress):
        make = partial(_uncounted_turns, session, _places(progress, first, step))
    else:
        session.lanes.deferred = deferred and session.pipeline.uniform
        make = partial(_counted_turns, progress, range(progress.turns_taken + first, NO_END, step))
    return _read(progress, make, readers=session.readers * step, warns=first == 0)


def _read(
    progress: Progress, make: Callable[[OpenSource], Generator[Turns, None, None]], *, readers: int, warns: bool
) -> Generator[Turns, None, None]:
    """The turns that are made of what is opened here. It is noted how long functions of the user took for them."""
    reading, lanes = progress.reading, len(progress.session.positions)
    opened = reading.open(max(1, lanes // gcd(lanes, readers)))
    if warns:
        _warn_of_sharing(progress, opened, readers)
    try:
        with closing(make(opened)) as all_turns:
            while True:
                before = FUNCTIONS.seconds
                try:
                    turns = next(all_turns)
                except StopIteration:
                    return
                finally:
                    reading.function_seconds += FUNCTIONS.seconds - before
                yield turns
                del turns  # so that the next items are made in their memory, which is still in the cache
    finally:
        reading.close(opened)


class Agenda:
    """The turns that a reader takes next, and what to ask of each lane for these. Both are planned together."""

    def __init__(self, runs: Iterator[Run], *, plans_ahead: bool) -> None:
        """If it costs much to plan, a lane is told that it should first make what it was asked for."""
        self._runs, self._plans_ahead = runs, plans_ahead
        self._next: deque[tuple[list[int], int]] = deque()
        self._wanted: dict[int, deque[range]] = defaultdict(deque)

    def _plan(self) -> bool:
        """Plan further turns; false if there are none."""
        run = next(self._runs, None)
        if run is None:
            return False
        for lane, ordinals in run.ordinals_of_lanes():
            self._wanted[lane].append(ordinals)
        if self._next and self._next[-1][0] == run.lanes:
            self._next[-1] = run.lanes, self._next[-1][1] + run.turns
        else:
            self._next.append((run.lanes, run.turns))
        return True

    def next_turns(self) -> tuple[list[int], int] | None:
        """Lanes, and how many turns go round these next; None if there are none."""
        return self._next.popleft() if self._next or self._plan() else None

    def wanted(self, lane: int) -> Iterator[I64]:
        """The ordinals of a lane's items. An empty array says that the next ones are not known yet."""
        waiting = self._wanted[lane]
        while True:
            while not waiting:
                if not self._plan():
                    return
            known = [waiting.popleft() for _ in range(1 if self._plans_ahead else len(waiting))]
            yield np.concatenate([np.arange(one.start, one.stop, one.step) for one in known])
            if not self._plans_ahead:
                yield np.empty(0, np.int64)


def _counted_turns(progress: Progress, turns: range, opened: OpenSource) -> Generator[Turns, None, None]:
    """A reader's turns of a counted session. No item of another reader is made."""
    session = progress.session
    agenda = Agenda(session.runs(progress.reader, turns), plans_ahead=session.plans_ahead)
    read: dict[int, ReadLane] = {}
    while (found := agenda.next_turns()) is not None:
        lanes, number = found
        for lane in lanes:
            if lane not in read:
                read[lane] = ReadLane(session, session.lane_items(lane).flow(opened, agenda.wanted(lane)))
        yield from _in_turn([read[lane] for lane in lanes], number)


Place = tuple[int, LanePosition, int, int]
"""A lane, the position where it is opened, how many items are passed over there, and how far apart the next are."""


def _places(progress: ReportedProgress, first: int, step: int) -> list[Place]:
    """Where the lanes are read, for the turn ``first`` of a reader and then every ``step``-th."""
    assignment = progress.session.assignment
    within = LaneAssignment(lanes=assignment.period, turn=progress.turns_taken, readers=step)
    places = []
    for number, slot in enumerate(within.rotation(first)):
        position, skip = progress.position(slot)
        skip += assignment.stride * within.phase(first, number)
        places.append((progress.rotation[slot], position, skip, assignment.stride * within.stride))
    return places


def _uncounted_turns(
    session: UncountedSession, places: list[Place], opened: OpenSource
) -> Generator[Turns, None, None]:
    """A reader's turns of a session that is not counted. Items of others who share a lane are made and passed over."""
    return _in_turn([ReadLane(session, session.lanes.open(opened, *place)) for place in places], NO_END)


def _in_turn(lanes: Sequence["ReadLane"], turns: int) -> Generator[Turns, None, None]:
    """Turns that go round lanes, until all have run out. Many come at a time, unless items are made singly."""
    if any(lane.is_single for lane in lanes):
        for number in range(turns):
            taken = lanes[number % len(lanes)].take(1)
            if taken.empty and all(lane.has_ended for lane in lanes):
                return
            yield taken
            del taken
        return
    while turns:
        here = lanes[:turns]
        ready = [most for lane in here if (most := lane.ready())]
        if not ready:
            return
        rounds = min(turns // len(here), *ready)
        taken = round_robin([lane.take(rounds) for lane in here])
        turns -= taken.number
        yield taken
        del taken  # so that the next ones are made in their memory, which is still in the CPU cache


class ReadLane:
    """The items of one lane as they are read, many at a time unless they are made singly."""

    def __init__(self, session: AnySession, flow: Flow) -> None:
        runs = flow.as_item_runs()
        self.is_single = runs is None
        self._runs: Iterator[Any] = flow.as_single_items() if runs is None else runs
        self._counted, self._pipeline = session.counted, session.pipeline
        self._waiting = NO_TURNS
        self.has_ended = False
        """True if it is known that the lane has run out."""

    def ready(self) -> int:
        """How many items can be taken at once; 0 if the lane has run out."""
        while not self._waiting.number and not self.has_ended:
            run = next(self._runs, None)
            self.has_ended = run is None
            if run is not None:
                self._waiting = self._turns(*run)
        return self._waiting.number

    def _turns(self, items: Any, cursors: Any, keys: Any) -> Turns:
        """A run of items, or a single one, as turns."""
        if self.is_single:
            items, cursors, keys = [items], [cursors], np.array([keys], np.int64)
        elif not isinstance(items, list | RowItems):  # a list can be emptied by an iterator that is out of date
            items = list(items)
        hashes = hashes_of(keys, batched=self._pipeline.item_spec[1]) if self._pipeline.digest else None
        return Turns(items, () if self._counted else cursors, hashes)

    def take(self, count: int) -> Turns:
        """The next turns, of which no more are taken than are ready. A lane that has run out has empty turns."""
        if not self.ready():
            return Turns((), empty=count)
        waiting, self._waiting = self._waiting, NO_TURNS
        if count < waiting.number:
            self._waiting = waiting.cut(count, waiting.number)
        return waiting.cut(0, count)


def _warn_of_sharing(progress: Progress, opened: OpenSource, readers: int) -> None:
    """Let the first reader warn that several process the same lanes, where that costs more than skipping rows."""
    session = progress.session
    lanes = len(session.positions)
    stride = readers // gcd(lanes, readers)
    costs = opened.decodes if session.pipeline.uniform else not session.counted
    if stride > 1 and progress.reader == 0 and costs:
        does = "decode each block" if session.counted else f"process each lane and keep one item in {stride}"
        log_once(
            f"{readers} readers share {count('lane', lanes)}, so {stride} of them {does}. To avoid that, "
            "let the number of readers (ranks × workers) divide the number of lanes; .lanes(n) fixes it for the next "
            "epoch."
        )
