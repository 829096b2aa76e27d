"""Reading: this process takes a reader's turns at its lanes."""

from collections import defaultdict, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from math import gcd
from typing import Any

import numpy as np

from midepoch._common.checks import count, log_once
from midepoch._common.hashing import I64, U64
from midepoch._common.jobs import FUNCTIONS
from midepoch.checkpoint.lanes import Cursor, LaneAssignment, LanePosition
from midepoch.delivery.passes import EMPTY, Progress, Turns
from midepoch.delivery.rounds import NO_END, Run
from midepoch.delivery.uncounted import ReportedProgress
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.source import OpenSource
from midepoch.stages.counted import hashes_of
from midepoch.stages.flow import Flow, ItemRun
from midepoch.values.rows import RowItems, RowRounds


def take_turns(
    progress: Progress, first: int = 0, step: int = 1, *, deferred: bool = False
) -> Generator[Turns, None, None]:
    """A reader's turns from where its progress is, until no lane has anything left.

    If several processes share a reader's turns, each takes the turn ``first`` and then every ``step``-th. Then nothing
    is made for others, if the pipeline is counted. With ``deferred``, items that are rows of files may be ``RowItems``.
    """
    if isinstance(progress, ReportedProgress):
        return _timed(
            _uncounted_turns(progress, _places(progress, first, step), readers=step, warns=first == 0), progress
        )
    progress.session.lanes.deferred = deferred and progress.session.pipeline.uniform
    turns = range(progress.turns_taken + first, NO_END, step)
    return _timed(_counted_turns(progress, turns, warns=first == 0), progress)


def _timed(all_turns: Generator[Turns, None, None], progress: Progress) -> Generator[Turns, None, None]:
    """The same turns. It is noted how long functions of the user took for them."""
    with closing(all_turns):
        while True:
            before = FUNCTIONS.seconds
            try:
                turns = next(all_turns)
            except StopIteration:
                return
            finally:
                progress.reading.function_seconds += FUNCTIONS.seconds - before
            yield turns
            del turns  # so that the next items are made in their memory, which is still in the cache


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


def _counted_turns(progress: Progress, turns: range, *, warns: bool) -> Generator[Turns, None, None]:
    """A reader's turns of a counted session. No item of another reader is made."""
    session, reading = progress.session, progress.reading
    agenda = Agenda(session.runs(progress.reader, turns), plans_ahead=session.plans_ahead)
    lanes, readers = len(session.positions), session.readers * turns.step
    opened = reading.open(max(1, lanes // gcd(lanes, readers)))
    if warns and session.pipeline.uniform:
        _warn_of_sharing(progress, opened, readers)
    read: dict[int, ReadLane] = {}
    try:
        while (found := agenda.next_turns()) is not None:
            for lane in found[0]:
                if lane not in read:
                    read[lane] = ReadLane(session.lane_items(lane).flow(opened, agenda.wanted(lane)))
            for items, _, keys in _in_turn([read[lane] for lane in found[0]], found[1]):
                yield Turns(items, (), _hashes(session.pipeline, items, keys))
                del items
    finally:
        reading.close(opened)


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
    progress: ReportedProgress, places: list[Place], *, readers: int, warns: bool
) -> Generator[Turns, None, None]:
    """A reader's turns of a session that is not counted. Items of others who share a lane are made and passed over."""
    session, reading = progress.session, progress.reading
    opened = reading.open(len(places))
    if warns:
        _warn_of_sharing(progress, opened, session.readers * readers)
    try:
        lanes = [ReadLane(session.lanes.open(opened, *place)) for place in places]
        for items, cursors, keys in _in_turn(lanes, NO_END):
            yield Turns(items, cursors, _hashes(session.pipeline, items, keys))
            del items
    finally:
        reading.close(opened)


def _hashes(pipeline: Pipeline, items: Sequence[Any], keys: I64) -> U64 | None:
    """What items with these keys add to a digest, if one is kept."""
    if not pipeline.digest:
        return None
    hashes = hashes_of(keys, batched=pipeline.item_spec[1])
    return hashes if keys.all() else np.where([item is EMPTY for item in items], np.uint64(0), hashes)


def _in_turn(lanes: Sequence["ReadLane"], turns: int) -> Iterator[tuple[Any, Sequence[Any], I64]]:
    """The items of turns that go round lanes, the cursors after those of each lane, and their keys, until all run out.

    Many turns come at a time, unless items are made singly.
    """
    if any(lane.is_single for lane in lanes):
        for number in range(turns):
            lane = lanes[number % len(lanes)]
            items, cursors, keys = lane.take(1)
            if lane.has_ended and all(other.has_ended for other in lanes):
                return
            yield items, (cursors,), keys
        return
    while turns:
        here = lanes[:turns]
        ready = [most for lane in here if (most := lane.ready())]
        if not ready:
            return
        rounds = min(turns // len(here), *ready)
        runs = [lane.take(rounds) for lane in here]
        turns -= rounds * len(here)
        yield _round_robin(runs), [run.cursors for run in runs], _interleaved(runs)
        del runs  # so that the next ones are made in their memory, which is still in the CPU cache


def _round_robin(runs: Sequence[ItemRun]) -> Any:
    """The items of lanes that have equally many, one of each lane in turn. Those of a single lane are not copied."""
    of_lanes: list[Any] = [run.items for run in runs]
    if len(of_lanes) == 1:
        return of_lanes[0]
    if all(isinstance(items, RowItems) for items in of_lanes):
        return RowRounds(tuple(of_lanes))
    return list(chain.from_iterable(zip(*of_lanes, strict=True)))


def _interleaved(runs: Sequence[ItemRun]) -> I64:
    return runs[0].keys if len(runs) == 1 else np.stack([run.keys for run in runs], axis=1).ravel()


class ReadLane:
    """The items of one lane as they are read, many at a time unless they are made singly."""

    def __init__(self, flow: Flow) -> None:
        runs = flow.as_item_runs()
        self.is_single = runs is None
        self._runs = _runs_of_one(flow) if runs is None else runs
        self._run = NOTHING
        self.has_ended = False
        """True if it is known that the lane has run out."""

    def ready(self) -> int:
        """How many items can be taken at once; 0 if the lane has run out."""
        while not len(self._run.keys) and not self.has_ended:
            run = next(self._runs, None)
            self.has_ended = run is None
            if run is not None:
                # a list can be emptied by an iterator that is out of date
                self._run = run if isinstance(run.items, list | RowItems) else run._replace(items=list(run.items))
        return len(self._run.keys)

    def take(self, count: int) -> ItemRun:
        """The next items, of which no more are taken than are ready. A lane that has run out has empty turns."""
        if not self.ready():
            return ItemRun([EMPTY] * count, NOTHING.cursors, np.zeros(count, np.int64))
        run, self._run = self._run, NOTHING
        if count < len(run.keys):
            self._run = _cut(run, count, len(run.keys))
        return run if count == len(run.keys) else _cut(run, 0, count)


def _runs_of_one(flow: Flow) -> Iterator[ItemRun]:
    """Items that are made singly."""
    for item, cursor, key in flow.as_single_items():
        yield ItemRun([item], (cursor,), np.array([key], np.int64))  # type: ignore[arg-type]


NOTHING = ItemRun((), np.empty((0, 1), np.int64), np.empty(0, np.int64))


def _cut(run: ItemRun, start: int, stop: int) -> ItemRun:
    items: Any = run.items
    items = items.slice(start, stop) if isinstance(items, RowItems) else items[start:stop]
    return ItemRun(items, run.cursors[start:stop], run.keys[start:stop])


def turn_by_turn(all_turns: Iterator[Turns]) -> Iterator[tuple[Cursor | None, Any]]:
    """The cursor and the item of each turn; None if the turn is empty, and no numbers if cursors follow from counts."""
    for items, cursors, _ in all_turns:
        for number, item in enumerate(items):
            if item is EMPTY:
                yield None, None
            elif not cursors:
                yield (), item
            else:
                yield tuple(map(int, cursors[number % len(cursors)][number // len(cursors)])), item


def one_by_one(all_turns: Iterable[Turns]) -> Iterator[Turns]:
    """The same turns, each for itself."""
    for turns in all_turns:
        for number, (cursor, item) in enumerate(turn_by_turn(iter((turns,)))):
            hashes = None if turns.hashes is None else turns.hashes[number : number + 1]
            yield Turns((EMPTY,), ((),), hashes) if cursor is None else Turns([item], ((cursor,),), hashes)


def _warn_of_sharing(progress: Progress, opened: OpenSource, readers: int) -> None:
    """Let the first reader warn that several process the same lanes, where that costs more than skipping rows."""
    session = progress.session
    lanes = len(session.positions)
    stride = readers // gcd(lanes, readers)
    if stride > 1 and progress.reader == 0 and (opened.decodes or not session.pipeline.uniform):
        log_once(
            f"{readers} readers share {count('lane', lanes)}, so {stride} of them process each lane and keep one item "
            f"in {stride}. To avoid that, let the number of readers (ranks × workers) divide the number of lanes; "
            ".lanes(n) fixes it for the next epoch."
        )
