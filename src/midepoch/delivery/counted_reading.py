"""How one reader takes its items of a counted session: lane by lane, many at a time."""

from collections.abc import Generator, Iterator, Sequence
from itertools import cycle
from math import gcd
from typing import Any

from midepoch.delivery.counted import CountedSession
from midepoch.delivery.progress import Progress, Turns
from midepoch.delivery.rounds import Rounds
from midepoch.delivery.session import NO_END
from midepoch.pipeline.ledger import Ledgers
from midepoch.stages.flow import Flow


def take_items(
    progress: Progress, session: CountedSession, ledgers: Ledgers, turns: range
) -> Generator[Turns, None, None]:
    """A reader's items at some turns, counted from where its progress is, until the end."""
    rounds, first, step = session.sequence(progress.reader)
    start, stop = (min(first + step * (progress.turns_taken + turn), NO_END) for turn in (turns.start, turns.stop))
    return _items(session, rounds, ledgers, range(start, stop, step * turns.step))


def _items(session: CountedSession, rounds: Rounds, ledgers: Ledgers, numbers: range) -> Generator[Turns, None, None]:
    """The items that have these numbers in the sequence."""
    lanes, step = len(session.positions), numbers.step
    rounds.count_first(rounds.order[numbers.start % lanes])
    opened = session.open_source(lanes // gcd(lanes, step))
    reading: dict[int, ReadLane] = {}
    try:
        while numbers and (segment := rounds.segment(numbers.start)) is not None:
            period = len(segment.lanes) // gcd(len(segment.lanes), step)
            slots = [(numbers.start + step * turn - segment.first) % len(segment.lanes) for turn in range(period)]
            for slot in slots:
                lane = segment.lanes[slot]
                if lane not in reading:
                    reading[lane] = ReadLane(session.read_lane(opened, lane, numbers))
                    ledgers.update(session.lanes.pop_ledgers())
            of_slots = [reading[segment.lanes[slot]] for slot in slots]
            left = len(range(numbers.start, min(segment.end, numbers.stop), step))
            for items in _in_turn(of_slots, left):
                numbers = numbers[len(items) :]
                yield Turns(items, ())
                del items
    finally:
        session.close_source(opened)


def _in_turn(lanes: Sequence["ReadLane"], count: int) -> Iterator[list[Any]]:
    """The next ``count`` items, one of each lane in turn: many at a time, unless they are made singly."""
    if any(lane.is_single for lane in lanes):
        for _, lane in zip(range(count), cycle(lanes), strict=False):
            yield lane.take(1)
        return
    while count >= len(lanes):
        rounds = min(count // len(lanes), *(lane.ready() for lane in lanes))
        items = _round_robin([lane.take(rounds) for lane in lanes])
        count -= len(items)
        yield items
        del items  # so that the next ones are made in their memory, which is still in the CPU cache
    if count:
        yield [item for lane in lanes[:count] for item in lane.take(1)]


def _round_robin(of_lanes: Sequence[list[Any]]) -> list[Any]:
    """The items of lanes that have equally many, one of each lane in turn. Those of a single lane are not copied."""
    if len(of_lanes) == 1:
        return of_lanes[0]
    items: list[Any] = [None] * (len(of_lanes) * len(of_lanes[0]))
    for number, of_lane in enumerate(of_lanes):
        items[number :: len(of_lanes)] = of_lane
    return items


class ReadLane:
    """The items of one lane as they are read, many at a time unless they are made singly."""

    def __init__(self, flow: Flow) -> None:
        runs = flow.as_item_runs()
        self.is_single = runs is None
        self._runs = runs
        self._singles = flow.as_single_items() if runs is None else None
        self._ready: list[Any] = []

    def ready(self) -> int:
        """How many items can be taken at once, at least 1."""
        if self._runs is None:
            return 1
        while not self._ready:
            self._ready = list(next(self._runs).items)
        return len(self._ready)

    def take(self, count: int) -> list[Any]:
        """The next items, of which no more are taken than are ready."""
        if self._singles is not None:
            return [next(self._singles)[0]]
        if count == self.ready():
            taken, self._ready = self._ready, []
        else:
            taken, self._ready = self._ready[:count], self._ready[count:]
        return taken
