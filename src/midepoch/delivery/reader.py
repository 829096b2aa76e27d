"""Reading: this process takes a reader's turns at its lanes."""

import logging
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import chain
from math import gcd
from typing import Any

from midepoch._common.once import log_once
from midepoch._common.text import count
from midepoch._common.thread_clock import FUNCTIONS
from midepoch.checkpoint.lanes import Cursor, LaneAssignment
from midepoch.delivery.balanced import BalancedSession, take_shares
from midepoch.delivery.counted import CountedSession
from midepoch.delivery.counted_reading import take_items
from midepoch.delivery.progress import EMPTY, Progress, Turns
from midepoch.delivery.rounds import Rounds
from midepoch.delivery.session import NO_END, Session
from midepoch.delivery.sums import ReadSums, Sums
from midepoch.delivery.uniform import UniformSession
from midepoch.pipeline.ledger import LedgerChain, Ledgers
from midepoch.sources.source import OpenSource, RowStride
from midepoch.stages.flow import Flow, ItemRun, SingleItem
from midepoch.values.row_items import RowItems, RowRounds

log = logging.getLogger("midepoch")

ALL_TURNS = range(NO_END)


def take_turns(progress: Progress, turns: range = ALL_TURNS, *, deferred: bool = False) -> Generator[Turns, None, None]:
    """A reader's turns from where its progress is, until no lane has anything left.

    If several processes share a reader's turns, each takes some ``turns``, counted from there. If these end, they must
    go round all lanes equally often. Then nothing is made for others, if the pipeline is counted and no items were
    delivered ahead. With ``deferred``, items that are rows of files may be ``RowItems``.
    """
    sums = ReadSums(progress.session, progress.reader, progress.turns_taken + turns.start, turns.step)
    all_turns = _timed(_turns_of(progress, sums.ledgers, turns, deferred=deferred), progress.session)
    return _with_sums(all_turns, sums) if progress.session.pipeline.digest else all_turns


def _turns_of(progress: Progress, ledgers: Ledgers, turns: range, *, deferred: bool) -> Generator[Turns, None, None]:
    session, reader = progress.session, progress.reader
    if isinstance(session, BalancedSession):
        return take_shares(progress, session, ledgers, turns)
    if isinstance(session, UniformSession) and session.start.positions.in_step:
        return _uniform_turns(progress, session, ledgers, turns, deferred=deferred)
    if isinstance(session, CountedSession):
        return take_items(progress, session, ledgers, turns)
    assignment, first = session.assignment, turns.start
    within = LaneAssignment(lanes=assignment.period, turn=progress.turns_taken, readers=turns.step)
    slots = within.rotation(first)
    opened = session.open_source(len(slots))
    stride = assignment.stride * within.stride
    most = -(-len(turns) // len(slots))
    assert turns.stop == NO_END or len(turns) == most * len(slots), "who has fewer turns would seem to have run out"
    if first == 0:
        _warn_of_sharing(progress, opened, stride, turns.step)
    flows = []
    for number, slot in enumerate(slots):
        lane, phase = progress.rotation[slot], assignment.phase(reader, slot)
        position, end = session.positions[lane], progress.end(slot)
        if end:
            position, skip = position.after(end, progress.cursors[slot]), assignment.stride - 1
        else:
            skip = phase
        skip += assignment.stride * within.phase(first, number)
        flows.append(session.lanes.open(opened, lane, position, skip, stride))
    ledgers.update(session.lanes.pop_ledgers())
    return _closing(_interleaved(flows), session, opened)


def _uniform_turns(
    progress: Progress, session: UniformSession, ledgers: Ledgers, turns: range, *, deferred: bool
) -> Generator[Turns, None, None]:
    """The turns of a reader whose items are rows of files at regular distances: none of another reader is made."""
    rounds, first, step = session.sequence(progress.reader)
    start, stop = (min(first + step * (progress.turns_taken + turn), NO_END) for turn in (turns.start, turns.stop))
    numbers = range(start, stop, step * turns.step)
    lanes = len(rounds.order)
    opened = session.open_source(max(1, lanes // gcd(lanes, numbers.step)))
    if turns.start == 0:
        _warn_of_sharing(progress, opened, numbers.step // gcd(lanes, numbers.step), turns.step)
    return _closing(_turns_of_segments(session, rounds, opened, ledgers, numbers, deferred=deferred), session, opened)


def _turns_of_segments(
    session: UniformSession, rounds: Rounds, opened: OpenSource, ledgers: Ledgers, numbers: range, *, deferred: bool
) -> Iterator[Turns]:
    while numbers and (segment := rounds.segment(numbers.start)) is not None:
        size = len(segment.lanes)
        shared = gcd(size, numbers.step)
        here = len(range(numbers.start, min(segment.end, numbers.stop), numbers.step))
        slots = min(size // shared, here)
        each = here // slots
        flows = []
        for number in numbers[:slots]:
            past, slot = divmod(number - segment.first, size)
            lane = segment.lanes[slot]
            skip = segment.first_round + past - rounds.begin(lane)
            stride = RowStride(session.start.item_rows, skip, numbers.step // shared, each)
            flows.append(session.lanes.flow(opened, lane, session.positions[lane].cursor, stride, deferred=deferred))
            for opened_lane, ledger in session.lanes.pop_ledgers().items():
                before = ledgers.get(opened_lane)
                ledgers[opened_lane] = ledger if before is None else LedgerChain(before, ledger)
        end = numbers[slots * each :]
        for turns in _interleaved(flows):
            numbers = numbers[len(turns.items) :]
            yield turns._replace(cursors=())
            del turns
            if len(numbers) == len(end):
                break


def _timed(all_turns: Generator[Turns, None, None], session: Session) -> Generator[Turns, None, None]:
    """The same turns. The session notes how long functions of the user took for them."""
    with closing(all_turns):
        while True:
            before = FUNCTIONS.seconds
            try:
                turns = next(all_turns)
            except StopIteration:
                return
            finally:
                session.function_seconds += FUNCTIONS.seconds - before
            yield turns
            del turns  # so that the next items are made in their memory, which is still in the cache


def _with_sums(all_turns: Generator[Turns, None, None], sums: Sums) -> Generator[Turns, None, None]:
    with closing(all_turns):
        for turns in all_turns:
            yield turns._replace(sums=sums)
            del turns


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


def _closing(all_turns: Iterator[Turns], session: Session, opened: OpenSource) -> Generator[Turns, None, None]:
    """The same turns. What was opened to read them is closed after the last."""
    try:
        yield from all_turns
    finally:
        session.close_source(opened)


def _interleaved(flows: list[Flow]) -> Iterator[Turns]:
    """One turn at each lane after the other, until all have run out; many at a time unless items are made singly."""
    item_runs = [runs for flow in flows if (runs := flow.as_item_runs()) is not None]
    if len(item_runs) == len(flows):
        yield from _interleaved_runs(item_runs)
    else:
        yield from _interleaved_singly([flow.as_single_items() for flow in flows])


def _interleaved_singly(lanes: list[Iterator[SingleItem]]) -> Iterator[Turns]:
    alive = [True] * len(lanes)
    while True:
        for slot, lane in enumerate(lanes):
            single = next(lane, None)
            if single is not None:
                item, cursor, _ = single
                yield Turns((item,), ((cursor,),))
                continue
            alive[slot] = False
            if not any(alive):
                return
            yield Turns((EMPTY,), ((),))


def _interleaved_runs(lanes: list[Iterator[ItemRun]]) -> Iterator[Turns]:
    """As many turns at a time as every lane that has not run out has items ready."""
    if len(lanes) == 1:
        yield from _runs_of_single_lane(lanes[0])
        return
    ready: list[tuple[Any, Any]] = [((), ()) for _ in lanes]
    while True:
        for slot, lane in enumerate(lanes):
            if not ready[slot][0] and (run := next(lane, None)) is not None:
                ready[slot] = _sequence(run.items), run.cursors
                del run
        rounds = min((len(items) for items, _ in ready if items), default=0)
        if rounds == 0:
            return
        taken = [_cut(items, 0, rounds) if items else [EMPTY] * rounds for items, _ in ready]
        cursors_taken = [cursors[:rounds] for _, cursors in ready]
        ready = [(_cut(items, rounds, len(items)), cursors[rounds:]) for items, cursors in ready]
        if all(isinstance(items, RowItems) for items in taken):
            yield Turns(RowRounds(tuple(taken)), cursors_taken)  # type: ignore[arg-type]
        else:
            yield Turns(list(chain.from_iterable(zip(*taken, strict=True))), cursors_taken)
        del taken


def _runs_of_single_lane(lane: Iterator[ItemRun]) -> Iterator[Turns]:
    """The same for a single lane, where nothing is interleaved."""
    while (run := next(lane, None)) is not None:
        turns = Turns(_sequence(run.items), (run.cursors,))  # type: ignore[arg-type]
        del run
        yield turns
        del turns  # so that the next items are made in the memory of these, which is still in the cache


def _cut(items: Any, start: int, stop: int) -> Any:
    return items.slice(start, stop) if isinstance(items, RowItems) else items[start:stop]


def _sequence(items: Iterable[Any]) -> list[Any] | RowItems:
    """The items as a list, which an iterator that is out of date can empty."""
    return items if isinstance(items, list | RowItems) else list(items)


def _warn_of_sharing(progress: Progress, opened: OpenSource, stride: int, workers: int) -> None:
    """Let the first reader warn that several process the same lanes, where that costs more than skipping rows."""
    pipeline, assignment = progress.session.pipeline, progress.session.assignment
    if stride > 1 and progress.reader == 0 and (opened.decodes or not pipeline.uniform):
        log_once(
            f"{assignment.readers * workers} readers share {count('lane', assignment.lanes)}, so {stride} of them "
            f"process each lane and keep one item in {stride}. To avoid that, let the number of readers (ranks × "
            "workers) divide the number of lanes; .lanes(n) fixes it for the next epoch."
        )
