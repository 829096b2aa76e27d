"""Reading: this process takes a reader's turns at its lanes."""

import logging
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from math import gcd
from typing import Any

import numpy as np

from midepoch._common.checks import count, log_once
from midepoch._common.hashing import I64, U64
from midepoch._common.jobs import FUNCTIONS
from midepoch.checkpoint.lanes import Cursor, LaneAssignment, LanePosition
from midepoch.delivery.balanced import STEPS_AT_ONCE, BalancedSession
from midepoch.delivery.progress import EMPTY, AnyProgress, Turns
from midepoch.delivery.rounds import NO_END
from midepoch.delivery.session import Session
from midepoch.delivery.uncounted import ReportedProgress
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.source import OpenSource
from midepoch.stages.counted import hashes_of
from midepoch.stages.flow import Flow, ItemRun, SingleItem
from midepoch.values.row_items import RowItems, RowRounds

log = logging.getLogger("midepoch")


def take_turns(
    progress: AnyProgress, first: int = 0, step: int = 1, *, deferred: bool = False
) -> Generator[Turns, None, None]:
    """A reader's turns from where its progress is, until no lane has anything left.

    If several processes share a reader's turns, each takes the turn ``first`` and then every ``step``-th. Then nothing
    is made for others, if the pipeline is counted. With ``deferred``, items that are rows of files may be ``RowItems``.
    """
    if isinstance(progress, ReportedProgress):
        all_turns = _uncounted_turns(progress, first, step)
    else:
        progress.session.lanes.deferred = deferred and progress.session.pipeline.uniform
        turns = range(progress.turns_taken + first, NO_END, step)
        all_turns = _counted_turns(progress, turns, warns=first == 0)
    return _timed(all_turns, progress)


def _timed(all_turns: Generator[Turns, None, None], progress: AnyProgress) -> Generator[Turns, None, None]:
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


class InTurn:
    """The turns of a reader that go round lanes, and what to ask of each lane."""

    def __init__(self, session: Session, reader: int, turns: range) -> None:
        self._rounds, first, step = session.sequence(reader)
        self._most_at_once = session.most_at_once
        self._all = self._left = range(first + step * turns.start, NO_END, step * turns.step)
        self._rounds.count_first(self._rounds.order[self._left.start % len(self._rounds.order)])

    def next_lanes(self) -> tuple[list[int], int] | None:
        """Lanes, and how many turns go round these next; None if there are none."""
        segment, step = self._rounds.segment(self._left.start), self._left.step
        if segment is None:
            return None
        size = len(segment.lanes)
        slots = [(number - segment.first) % size for number in self._left[: size // gcd(size, step)]]
        turns = len(range(self._left.start, segment.end, step))
        self._left = self._left[turns:]
        return [segment.lanes[slot] for slot in slots], turns

    def wanted(self, lane: int) -> Iterator[I64]:
        """The ordinals of a lane's items."""
        return self._rounds.wanted(lane, self._all, self._most_at_once)


class ByCost:
    """The turns of a reader that gets its share of the costs of each step, and what to ask of each lane."""

    def __init__(self, session: Session, reader: int, turns: range) -> None:
        self._session, self._reader, self._turns = session, reader, iter(turns)
        self._lanes: deque[int] = deque()
        self._ordinals: dict[int, list[int]] = {}
        self._at_once = 1  # so that the first item after a resume comes as soon as possible

    def next_lanes(self) -> tuple[list[int], int] | None:
        """The lane of the next turn; None if there is none."""
        if not self._lanes:
            self._plan()
        return ([self._lanes.popleft()], 1) if self._lanes else None

    def wanted(self, lane: int) -> Iterator[I64]:
        """The ordinals of a lane's items. An empty array says that the next ones are not known yet."""
        ordinals = self._ordinals[lane]
        while True:
            known = np.array(ordinals, np.int64)
            ordinals.clear()
            yield known
            yield np.empty(0, np.int64)
            while not ordinals:
                if not self._plan():
                    return

    def _plan(self) -> bool:
        """Look for the next turns; false if there are none."""
        planned = False
        for turn in islice(self._turns, self._at_once):
            found = self._session.item(self._reader, turn)
            if found is None:
                break
            self._lanes.append(found[0])
            self._ordinals.setdefault(found[0], []).append(found[1])
            planned = True
        self._at_once = min(2 * self._at_once, 4 * STEPS_AT_ONCE)
        return planned


def _counted_turns(progress: AnyProgress, turns: range, *, warns: bool) -> Generator[Turns, None, None]:
    """A reader's turns of a counted session. No item of another reader is made."""
    session = progress.session
    assert isinstance(session, Session)
    is_balanced = isinstance(session, BalancedSession)
    agenda = ByCost(session, progress.reader, turns) if is_balanced else InTurn(session, progress.reader, turns)
    lanes, readers = len(session.positions), session.readers * turns.step
    opened = progress.reading.open(max(1, lanes // gcd(lanes, readers)))
    if warns and session.pipeline.uniform:
        _warn_of_sharing(progress, opened, readers)
    reading: dict[int, ReadLane] = {}
    try:
        while (found := agenda.next_lanes()) is not None:
            for lane in found[0]:
                if lane not in reading:
                    reading[lane] = ReadLane(session.lane_items(lane).flow(opened, agenda.wanted(lane)))
            for items, keys in _in_turn([reading[lane] for lane in found[0]], found[1]):
                yield Turns(items, (), _hashes(session.pipeline, keys))
                del items
    finally:
        progress.reading.close(opened)


def _hashes(pipeline: Pipeline, keys: I64) -> U64 | None:
    """What items with these keys add to a digest, if one is kept."""
    return hashes_of(keys, batched=pipeline.item_spec[1]) if pipeline.digest else None


def _in_turn(lanes: Sequence["ReadLane"], turns: int) -> Iterator[tuple[Any, I64]]:
    """The items of some turns that go round lanes, and their keys: many at a time, unless they are made singly."""
    if any(lane.is_single for lane in lanes):
        for number in range(turns):
            yield lanes[number % len(lanes)].take(1)
        return
    while turns:
        here = lanes[:turns]
        rounds = min(turns // len(here), *(lane.ready() for lane in here))
        taken = [lane.take(rounds) for lane in here]
        turns -= rounds * len(here)
        yield _round_robin([items for items, _ in taken]), _interleaved([keys for _, keys in taken])
        del taken  # so that the next ones are made in their memory, which is still in the CPU cache


def _round_robin(of_lanes: Sequence[Any]) -> Any:
    """The items of lanes that have equally many, one of each lane in turn. Those of a single lane are not copied."""
    if len(of_lanes) == 1:
        return of_lanes[0]
    if all(isinstance(items, RowItems) for items in of_lanes):
        return RowRounds(tuple(of_lanes))
    return list(chain.from_iterable(zip(*of_lanes, strict=True)))


def _interleaved(of_lanes: Sequence[Any]) -> Any:
    return of_lanes[0] if len(of_lanes) == 1 else np.stack(of_lanes, axis=1).ravel()


class ReadLane:
    """The items of one lane as they are read, many at a time unless they are made singly."""

    def __init__(self, flow: Flow) -> None:
        self._runs = flow.as_item_runs()
        self.is_single = self._runs is None
        self._singles = flow.as_single_items() if self._runs is None else None
        self._items: Any = ()
        self._keys: I64 = np.empty(0, np.int64)

    def ready(self) -> int:
        """How many items can be taken at once, at least 1."""
        while not len(self._items) and self._runs is not None:
            run = next(self._runs)
            self._items, self._keys = _sequence(run.items), run.keys
        return max(1, len(self._items))

    def take(self, count: int) -> tuple[Any, I64]:
        """The next items, of which no more are taken than are ready, and their keys."""
        if self._singles is not None:
            item, _, key = next(self._singles)
            return [item], np.array([key], np.int64)
        if count == self.ready():
            taken, self._items = (self._items, self._keys), ()
            return taken
        items, keys = self._items, self._keys
        self._items, self._keys = _cut(items, count, len(items)), keys[count:]
        return _cut(items, 0, count), keys[:count]


def _uncounted_turns(progress: ReportedProgress, first: int, step: int) -> Generator[Turns, None, None]:
    """A reader's turns of a session that is not counted. Items of others who share a lane are made and passed over."""
    assignment = progress.session.assignment
    within = LaneAssignment(lanes=assignment.period, turn=progress.turns_taken, readers=step)
    lanes: list[tuple[int, LanePosition, int]] = []
    for number, slot in enumerate(within.rotation(first)):
        position, skip = progress.position(slot)
        lanes.append((progress.rotation[slot], position, skip + assignment.stride * within.phase(first, number)))
    readers = progress.session.readers * step if first == 0 else None
    return _read_lanes(progress, lanes, assignment.stride * within.stride, readers)


def _read_lanes(
    progress: ReportedProgress, lanes: Sequence[tuple[int, LanePosition, int]], stride: int, readers: int | None
) -> Generator[Turns, None, None]:
    """Turns that go round lanes. Of each lane, from its position on, some items are skipped, then ``stride`` - 1.

    The first of several ``readers`` warns if they share lanes.
    """
    session, reading = progress.session, progress.reading
    opened = reading.open(len(lanes))
    if readers is not None:
        _warn_of_sharing(progress, opened, readers)
    try:
        flows = [session.lanes.open(opened, lane, position, skip, stride) for lane, position, skip in lanes]
        for items, cursors, keys in _going_round(flows):
            hashes = _hashes(session.pipeline, keys)
            if hashes is not None:
                hashes = np.where([item is EMPTY for item in items], np.uint64(0), hashes)
            yield Turns(items, cursors, hashes)
            del items
    finally:
        reading.close(opened)


def _going_round(flows: list[Flow]) -> Iterator[tuple[Any, Any, I64]]:
    """The items, cursors and keys of one turn at each lane after the other, until all have run out.

    Many turns come at a time, unless items are made singly.
    """
    item_runs = [runs for flow in flows if (runs := flow.as_item_runs()) is not None]
    if len(item_runs) == len(flows):
        yield from _going_round_runs(item_runs)
    else:
        yield from _going_round_singly([flow.as_single_items() for flow in flows])


def _going_round_singly(lanes: list[Iterator[SingleItem]]) -> Iterator[tuple[Any, Any, I64]]:
    alive = [True] * len(lanes)
    while True:
        for slot, lane in enumerate(lanes):
            single = next(lane, None)
            if single is not None:
                item, cursor, key = single
                yield (item,), ((cursor,),), np.array([key], np.int64)
                continue
            alive[slot] = False
            if not any(alive):
                return
            yield (EMPTY,), ((),), np.zeros(1, np.int64)


def _going_round_runs(lanes: list[Iterator[ItemRun]]) -> Iterator[tuple[Any, Any, I64]]:
    """As many turns at a time as every lane that has not run out has items ready."""
    nothing = ItemRun((), np.empty((0, 1), np.int64), np.empty(0, np.int64))
    ready = [nothing for _ in lanes]
    while True:
        for slot, lane in enumerate(lanes):
            if not len(ready[slot].keys) and (run := next(lane, None)) is not None:
                ready[slot] = run._replace(items=_sequence(run.items))
                del run
        rounds = min((len(run.keys) for run in ready if len(run.keys)), default=0)
        if rounds == 0:
            return
        items = [run.items[:rounds] if len(run.keys) else [EMPTY] * rounds for run in ready]  # type: ignore[index]
        keys = [run.keys[:rounds] if len(run.keys) else np.zeros(rounds, np.int64) for run in ready]
        cursors = [run.cursors[:rounds] for run in ready]
        ready = [
            ItemRun(run.items[rounds:], run.cursors[rounds:], run.keys[rounds:]) if len(run.keys) else nothing  # type: ignore[index]
            for run in ready
        ]
        yield _round_robin(items), cursors, _interleaved(keys)
        del items


def _cut(items: Any, start: int, stop: int) -> Any:
    return items.slice(start, stop) if isinstance(items, RowItems) else items[start:stop]


def _sequence(items: Iterable[Any]) -> list[Any] | RowItems:
    """The items as a list, which an iterator that is out of date can empty."""
    return items if isinstance(items, list | RowItems) else list(items)


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


def _warn_of_sharing(progress: AnyProgress, opened: OpenSource, readers: int) -> None:
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
