"""Leaving rows out of a run: which rows a user names, and the state before an edit as a state after it.

From the next epoch on an edit is a step of the order. The epoch under way keeps its order, lanes and cursors: the rows
are passed over when they are due. Packs keep their layout, and the rows' places in them stay empty.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from midepoch._common.hashing import hash_keys
from midepoch.checkpoint.lanes import Cursor
from midepoch.checkpoint.row_digest import CHANGED, RowDigest, added
from midepoch.checkpoint.state import Edits, State, add_edits, edits_of_part
from midepoch.errors import CheckpointMismatchError
from midepoch.order.selection import Without
from midepoch.pipeline.lanes import cut_of
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.edits import without_rows
from midepoch.sources.files import FileRows

if TYPE_CHECKING:
    from midepoch.pipeline.mixture import Mixture

Row = tuple[str | None, str, int]
"""The part that has a row, if it is named, with the parts inside it after a slash; the file; the row in that."""


def without(pipeline: Pipeline, named: Any) -> Pipeline:
    """The pipeline without rows, named by file and row, and in a mixture by part where several have such a file."""
    source: Any = pipeline.source
    if pipeline.parts:
        return _of_mixture(pipeline, source, list(_rows(named)))
    assert isinstance(source, FileRows), "a source is of files or a mixture"
    return replace(pipeline, source=without_rows(source, named))


def _of_mixture(pipeline: Pipeline, mixture: "Mixture", rows: Sequence[Row]) -> Pipeline:
    of_parts: list[list[Row]] = [[] for _ in mixture.parts]
    for row in rows:
        number, inner = _part_of(mixture, row)
        of_parts[number].append(inner)
    parts = [_of_part(part, of_part) for part, of_part in zip(mixture.parts, of_parts, strict=True)]
    return replace(pipeline, source=replace(mixture, parts=tuple(parts)))


def _of_part(part: Pipeline, rows: list[Row]) -> Pipeline:
    if not rows:
        return part
    if part.parts:
        mixture: Any = part.source
        return _of_mixture(part, mixture, rows)
    return without(part, [(file, row) for _, file, row in rows])


def _part_of(mixture: "Mixture", row: Row) -> tuple[int, Row]:
    """The number of the part that has a row, and the row as one of that part."""
    part, file, number = row
    if part is not None:
        for index, name in enumerate(mixture.names):
            if part == name or part.startswith(f"{name}/"):
                return index, (part[len(name) + 1 :] or None, file, number)
        raise ValueError(
            f"without names the part {part!r}, which the mixture does not have: {', '.join(mixture.names)}."
        )
    have = [index for index, one in enumerate(mixture.parts) if file in _file_names(one)]
    if not have:
        raise ValueError(f"without names the file {file!r}, which no part of the mixture has.")
    if len(have) > 1:
        names = ", ".join(mixture.names[index] for index in have)
        raise ValueError(
            f"without names the file {file!r}, which several parts of the mixture have: {names}. Name the part too: "
            f"({mixture.names[have[0]]!r}, {file!r}, {number}), and a row for each part that should lose it."
        )
    return have[0], row


def _file_names(pipeline: Pipeline) -> set[str]:
    if pipeline.parts:
        return set[str]().union(*map(_file_names, pipeline.parts))
    source = pipeline.source
    return set(source.index.view.names) if isinstance(source, FileRows) else set()


def _rows(named: Any) -> Iterator[Row]:
    if isinstance(named, pa.Table):
        columns = [named[name].to_pylist() for name in ("part", "file", "row")]
        return zip(*columns, strict=True)
    rows = list(named) if isinstance(named, Iterable) and not isinstance(named, str | dict) else None
    if rows is None or any(isinstance(row, str) or len(row) not in (2, 3) for row in rows):
        raise TypeError(
            "rows of a mixture must be pairs of a file and a row, or a part, a file and a row, such as "
            "[('web', 'part-0007.parquet', 1234)], or the table that Loader.trace or Loader.find returned."
        )
    return ((None, *row) if len(row) == 2 else tuple(row) for row in rows)


def with_edits(pipeline: Pipeline, state: State, edits: Edits) -> State:
    """A state of the pipeline before its last ``edits`` edits, as one of the edited pipeline."""
    later = tuple(_edited_epoch(pipeline, one, edits) for one in state.later)
    return replace(_edited_epoch(pipeline, state, edits), later=later, history=())


def _edited_epoch(pipeline: Pipeline, state: State, edits: Edits) -> State:
    if state.lanes is None:
        return state
    reason = None
    if state.reader_progress is not None or state.earlier:
        reason = "it holds what one of several readers delivered: merge the states of all ranks with merge_states"
    elif not state.positions.in_step:
        reason = "some readers of a lane were ahead of others: resume without the edit, and edit at a later checkpoint"
    elif state.appended:
        reason = "files were appended to its epoch: edit in the next epoch"
    if reason is not None:
        raise CheckpointMismatchError(f"Rows cannot be left out of the run from this checkpoint on, because {reason}.")
    _check_no_group(pipeline, [position.cursor for _, position in state.positions.runs], edits)
    digest = state.digest and RowDigest(unknown=CHANGED)
    if pipeline.uniform and state.digest is not None and state.digest.unknown is None and state.digest.sums:
        digest = replace(state.digest, sums=added(state.digest.sums, _lost(pipeline, state, edits)))
    return replace(state, edits=add_edits(state.edits, edits), digest=digest)


def _check_no_group(pipeline: Pipeline, cursors: Sequence[Cursor], edits: Edits) -> None:
    """Raise if a cursor is inside a group of rows that would be another one without the rows."""
    width = len(pipeline.source.begin)
    if edits and any(any(cursor[width:]) for cursor in cursors) and not pipeline.masks(edits):
        raise CheckpointMismatchError(
            "Rows cannot be left out of the run from this checkpoint on, because it was taken inside a group of rows "
            "that map(batched=True) makes, which would change: resume without the edit, and edit at the next "
            "checkpoint that is between two groups, or in the next epoch."
        )
    mixture: Any = pipeline.source
    for number, part in enumerate(pipeline.parts):
        of_part = [mixture.part_positions(cursor[:width])[number].cursor for cursor in cursors]
        _check_no_group(part, of_part, edits_of_part(edits, number))


def _lost(pipeline: Pipeline, state: State, edits: Edits) -> tuple[int, ...]:
    """For each lane of a uniform pipeline, what its digest loses: the rows that were delivered and are left out now."""
    source = pipeline.source
    assert isinstance(source, FileRows)
    assert isinstance(edits, int)
    lanes = replace(source, steps=source.steps[:-edits]).cut(cut_of(state))
    rows = [step.rows for step in source.steps[-edits:] if isinstance(step, Without)]
    lost = []
    for lane, position in enumerate(state.positions.expand()):
        order = lanes.order(lane)
        gone = order.positions(np.unique(np.concatenate(rows)))
        delivered = gone[gone < position.cursor[0]]
        lost.append(-int(hash_keys(order.rows(delivered)).sum(dtype=np.uint64)))
    return tuple(lost)
