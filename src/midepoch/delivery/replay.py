"""Which rows came at a step, and when a row came, where that is only known by reading.

The run is read again from where its ranks last started together, which a checkpoint that is loaded says. What is noted
of rows is kept for a part of the run only, so memory does not grow with the number of steps.
"""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice
from math import prod
from typing import NamedTuple

import numpy as np

from midepoch._common.text import count
from midepoch.checkpoint.state import ReaderProgress
from midepoch.delivery.passes import Pass
from midepoch.delivery.progress import Progress, Turns
from midepoch.delivery.reader import take_turns
from midepoch.delivery.resume import session_from
from midepoch.delivery.session import Session
from midepoch.delivery.sums import ReadSums
from midepoch.pipeline.ledger import Ledgers
from midepoch.pipeline.mixture import Mixture
from midepoch.pipeline.pipeline import Pipeline
from midepoch.stages.traced import TracedRows

MOST_NOTED = 1 << 17
"""After this many rows the lanes are opened again, so that what was noted of them is forgotten."""


class ReplayedItem(NamedTuple):
    """An item that a rank got."""

    step: int
    """Counted from where the ranks last started together."""
    rank: int
    rows: TracedRows


def replay_step(run: Pass, step: int) -> list[ReplayedItem]:
    """The items of a step on all ranks. Raises if no rank has one."""
    session = run.progress().session
    found, most = [], 0
    for rank in range(session.assignment.readers):
        progress = Progress(_again(session, traced=False), rank)
        most = max(most, _deliver(progress, step))
        with closing(_traced(session, rank, progress.reader_progress())) as rows:
            found += [ReplayedItem(step, rank, one) for one in islice(rows, 1)]
    if not found:
        raise IndexError(
            f"Epoch {session.start.epoch} has no step {step:,} from where the run started: it has "
            f"{count('step', most)}, counted from 0."
        )
    return found


def replay_all(run: Pass) -> Iterator[ReplayedItem]:
    """All items from where the ranks last started together to the end of the epoch. Raises if it has no end."""
    session = run.progress().session
    if not _ends(session.pipeline):
        raise ValueError(
            "The mixture never ends, and when its rows come is only known by reading: "
            f"{session.pipeline.why_not_counted()}. Ask for the rows of single steps with trace(step)."
        )
    for rank in range(session.assignment.readers):
        yield from (ReplayedItem(step, rank, rows) for step, rows in enumerate(_traced(session, rank, None)))


def _again(session: Session, *, traced: bool) -> Session:
    """The session from its start. If it is traced, it is noted which rows its items are made of."""
    pipeline = replace(session.pipeline, digest=traced)
    again = session_from(pipeline, replace(session.start, digest=None), session.assignment.readers)
    if traced:
        again.lanes.note_origins(pipeline.unit_stages)
    return again


def _deliver(progress: Progress, items: int) -> int:
    """Deliver up to this many items of a reader, and return how many it had."""
    delivered = 0
    if items:
        with closing(take_turns(progress)) as turns:
            for _ in chain.from_iterable(progress.follow(turns)):
                delivered += 1
                if delivered == items:
                    break
    return delivered


def _traced(session: Session, rank: int, delivered: ReaderProgress | None) -> Generator[TracedRows, None, None]:
    """The rows of the items that a reader has left, after what it has delivered. The places are those in an item.

    From time to time the lanes are opened again, where they are, to forget what was noted before.
    """
    before = session.pipeline.stages[: session.pipeline.unit_stages]
    members = prod(stage.group_size for stage in before if not stage.many_outputs)
    while True:
        progress = Progress(_again(session, traced=True), rank, delivered=delivered)
        noted = 0
        for rows in _traced_items(progress):
            yield rows.with_columns(places=rows.items * members + rows.places)
            noted += len(rows.rows)
            if noted >= MOST_NOTED:
                break
        else:
            return
        delivered = progress.reader_progress()


def _traced_items(progress: Progress) -> Iterator[TracedRows]:
    """The rows of each item that a reader delivers."""
    session, ledgers = progress.session, Ledgers()
    with closing(take_turns(progress)) as all_turns:
        for _ in chain.from_iterable(progress.follow(_collect_ledgers(all_turns, ledgers))):
            [lane], _ = session.items_at(progress.reader, np.array([progress.turns_taken - 1]))
            [keys] = ledgers[int(lane)].take_keys(1)
            yield session.lanes.origins[int(lane)].trace(keys)


def _collect_ledgers(all_turns: Iterator[Turns], ledgers: Ledgers) -> Iterator[Turns]:
    """The same turns without sums, for which the ledgers would be used up."""
    for turns in all_turns:
        assert isinstance(turns.sums, ReadSums), "it is noted what items are made of"
        ledgers.update(turns.sums.ledgers)
        yield turns._replace(sums=None)


def _ends(pipeline: Pipeline) -> bool:
    """False if an epoch has no end, as with ``mix(stop="never")``."""
    source = pipeline.source
    if not isinstance(source, Mixture):
        return True
    ends = [_ends(part) for part in source.parts]
    return source.stop != "never" and (any(ends) if source.stop == "first" else all(ends))
