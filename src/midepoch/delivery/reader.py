"""Reading: the process that takes a reader's turns at its lanes."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any

from midepoch.checkpoint.lanes import Cursor, LaneAssignment
from midepoch.delivery.progress import EMPTY, Progress, Turns
from midepoch.sources.source import OpenSource
from midepoch.stages.flow import Emitted, Flow, Items

log = logging.getLogger("midepoch")


def take_turns(progress: Progress, worker: int = 0, workers: int = 1) -> Iterator[Turns]:
    """A reader's turns from where it stands.

    Where several processes do a reader's work, each takes the turns of one worker: the first, the second …
    Ends when no lane has anything left.
    """
    session, reader = progress.session, progress.reader
    inner = LaneAssignment(lanes=session.assignment.period, turn=progress.turns, readers=workers)
    slots = inner.rotation(worker)
    reading = session.pipeline.source.open(len(slots))
    stride = session.assignment.stride * inner.stride
    if worker == 0:
        _warn_of_sharing(progress, reading, stride, workers)
    flows = []
    for number, slot in enumerate(slots):
        lane, phase = progress.rotation[slot], session.assignment.phase(reader, slot)
        position, end = session.positions[lane], progress.end(slot)
        if session.pipeline.uniform:
            skip = phase + session.assignment.stride * session.assignment.taken(progress.turns, slot)
        elif end:
            position, skip = position.after(end, progress.cursors[slot]), session.assignment.stride - 1
        else:
            skip = phase
        skip += session.assignment.stride * inner.phase(worker, number)
        flows.append(session.lanes.open(reading, lane, position, skip, stride))
    return _in_turn(flows, reading)


def turn_by_turn(turns_in_order: Iterator[Turns]) -> Iterator[tuple[Cursor | None, Any]]:
    """The cursor and the item of each turn; no cursor where the lane has run out."""
    for items, cursors in turns_in_order:
        for number, item in enumerate(items):
            if item is EMPTY:
                yield None, None
            else:
                yield tuple(map(int, cursors[number % len(cursors)][number // len(cursors)])), item


def _in_turn(flows: list[Flow], reading: OpenSource) -> Iterator[Turns]:
    """The lanes in turn, until all have run out: many items at a time where they are not made one by one anyway."""
    try:
        lots = [many for flow in flows if (many := flow.in_bulk()) is not None]
        yield from _lots_in_turn(lots) if len(lots) == len(flows) else _steps_in_turn([flow.each() for flow in flows])
    finally:
        reading.close()


def _steps_in_turn(lanes: list[Iterator[Emitted]]) -> Iterator[Turns]:
    alive = [True] * len(lanes)
    while True:
        for slot, lane in enumerate(lanes):
            step = next(lane, None)
            if step is not None:
                yield Turns((step[0],), ((step[1],),))
                continue
            alive[slot] = False
            if not any(alive):
                return
            yield Turns((EMPTY,), ((),))


def _lots_in_turn(lanes: list[Iterator[Items]]) -> Iterator[Turns]:
    """As many turns at a time as every lane that has not run out has items at hand."""
    if len(lanes) == 1:
        yield from _lots_of_one(lanes[0])
        return
    at_hand: list[tuple[Sequence[Any], Sequence[Sequence[int]]]] = [((), ()) for _ in lanes]
    while True:
        for slot, lane in enumerate(lanes):
            if not at_hand[slot][0] and (lot := next(lane, None)) is not None:
                at_hand[slot] = _sequence(lot.items), lot.ends  # type: ignore[assignment]
                del lot
        count = min((len(items) for items, _ in at_hand if items), default=0)
        if count == 0:
            return
        taken = [some[:count] if some else [EMPTY] * count for some, _ in at_hand]
        behind = [ends[:count] for _, ends in at_hand]
        at_hand = [(some[count:], ends[count:]) for some, ends in at_hand]
        yield Turns(list(chain.from_iterable(zip(*taken, strict=True))), behind)
        del taken


def _lots_of_one(lane: Iterator[Items]) -> Iterator[Turns]:
    """The same of a single lane, where nothing needs to be interleaved."""
    while (lot := next(lane, None)) is not None:
        turns = Turns(_sequence(lot.items), (lot.ends,))  # type: ignore[arg-type]
        del lot
        yield turns
        del turns  # so that the next items are made in the memory of these, which is still in the cache


def _sequence(items: Iterable[Any]) -> Sequence[Any]:
    return items if isinstance(items, list | tuple) else list(items)


def _warn_of_sharing(progress: Progress, reading: OpenSource, stride: int, workers: int) -> None:
    """Have the first reader say that several work through the same lanes, where that costs more than skipping."""
    pipeline, assignment = progress.session.pipeline, progress.session.assignment
    if stride > 1 and progress.reader == 0 and (reading.decodes or not pipeline.uniform):
        _warn_once(
            f"{assignment.lanes} lanes are read by {assignment.readers * workers} readers, so {stride} of them work "
            f"through each lane and keep one item in {stride}. To avoid that, let the number of readers (ranks × "
            "workers) divide the number of lanes; .lanes(n) fixes it for the next epoch."
        )


@cache
def _warn_once(message: str) -> None:
    log.warning(message)
