"""Which rows came at a step, where that is only known by reading: the run is read again, from where it last started."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pyarrow as pa

from midepoch._common.text import count
from midepoch._common.types import I64
from midepoch.delivery.passes import Pass
from midepoch.delivery.progress import EMPTY, Progress
from midepoch.delivery.reader import take_turns
from midepoch.delivery.resume import session_from
from midepoch.delivery.session import Session
from midepoch.delivery.sums import ReadSums
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.files import FileRowsLanes


def can_replay(pipeline: Pipeline) -> bool:
    """True if each item is made of whole rows of files, which are known where they are read: filters, no packs."""
    before = pipeline.stages[: pipeline.unit_stages]
    rows = all(stage.group_size == 1 and not stage.many_outputs for stage in before)
    return pipeline.source.has_rows and rows


def replay(run: Pass, step: int, schema: pa.Schema) -> pa.Table:
    """The rows of a step on all ranks. Steps count from where the ranks last started together."""
    session = run.progress().session
    pipeline, readers = replace(session.pipeline, digest=True), session.assignment.readers
    lines, most = [], 0
    for rank in range(readers):
        again = session_from(pipeline, replace(session.start, digest=None), readers)
        keys, items = _keys_of_item(Progress(again, rank), step)
        most = max(most, items)
        if keys is not None:
            lines.append(_lines(again, step, rank, keys, schema))
    if not lines:
        raise IndexError(
            f"Epoch {session.start.epoch} has no step {step:,} from where the run started: it has "
            f"{count('step', most)}, counted from 0."
        )
    return pa.concat_tables(lines)


def _keys_of_item(progress: Progress, step: int) -> tuple[I64 | None, int]:
    """The keys of the rows of a reader's item; None if it has no more, and how many items it has until then."""
    session, reader = progress.session, progress.reader
    items, turn = 0, 0
    of_lanes = np.zeros(len(session.positions), np.int64)
    with closing(take_turns(progress)) as all_turns:
        for turns in all_turns:
            lanes, _ = session.items_at(reader, np.arange(turn, turn + len(turns.items)))
            for lane, item in zip(lanes.tolist(), turns.items, strict=True):
                if item is EMPTY:
                    continue
                if items == step:
                    assert isinstance(turns.sums, ReadSums)
                    return turns.sums.ledgers[lane].take_keys(int(of_lanes[lane]) + 1)[-1], items
                items += 1
                of_lanes[lane] += 1
            turn += len(turns.items)
            del turns
    return None, items


def _lines(session: Session, step: int, rank: int, keys: I64, schema: pa.Schema) -> pa.Table:
    lanes = session.lanes.source
    assert isinstance(lanes, FileRowsLanes)
    rows = lanes.trace(keys)
    number = len(keys)
    known = {
        "epoch": np.full(number, session.start.epoch),
        "step": np.full(number, step),
        "rank": np.full(number, rank),
        "place": np.arange(number),
        "file": pa.array(rows.files.tolist(), pa.string()),
        "row": rows.rows,
    }
    columns = [known.get(field.name, pa.nulls(number, field.type)) for field in schema]
    return pa.table(columns, schema=schema)
