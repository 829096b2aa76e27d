"""Changes between a checkpoint and a resume: another mixture, and rows that are left out of a run.

Accepting a checkpoint says whether it is of this pipeline or mixture, and which of its positions must be moved. From
the next epoch on an edit is a step of the order. The epoch under way keeps its order, lanes and cursors: the rows are
passed over when they are due. Packs keep their layout, and the rows' places in them stay empty.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from midepoch._common.checks import count
from midepoch._common.hashing import hash_keys
from midepoch.checkpoint.digest import CHANGED, WORD, RowDigest
from midepoch.checkpoint.fingerprint import pipeline_difference, rows_of
from midepoch.checkpoint.lanes import Cursor, LanePosition
from midepoch.checkpoint.state import (
    Edits,
    LanePositions,
    ReaderProgress,
    State,
    add_edits,
    check_scale,
    edits_of_part,
    join_edits,
)
from midepoch.errors import CheckpointMismatchError
from midepoch.order.selection import Without
from midepoch.pipeline.draws import PartPosition, join_positions, split_positions
from midepoch.pipeline.pipeline import Pipeline, cut_of
from midepoch.pipeline.schedule import weight_in_words
from midepoch.sources.files import FileRows, named_rows, without_rows
from midepoch.sources.source import AdoptedCheckpoint, MoveCursor
from midepoch.stages.stage import cursor_numbers

if TYPE_CHECKING:
    from midepoch.pipeline.mixture import Mixture

log = logging.getLogger("midepoch")
Row = tuple[Any, ...]
"""The part that has a row, if it is named, with the parts inside it after a slash; the file; the row in that."""


def adopt(pipeline: Pipeline, state: State, then: Any) -> State:
    """A state with the fingerprint ``then``, as a state of ``pipeline``. Raises if it is of another."""
    move, _, changes, edits, move_edits = adoption(pipeline, then)
    check_scale(state, rows_of(pipeline.fingerprint["data"]))
    width = len(pipeline.begin)
    if move is not None:
        if state.reader_progress is not None:
            raise CheckpointMismatchError(
                "The checkpoint holds what one of several readers delivered. To change a mixture, first join the "
                "states of all ranks with merge_states, or those of a StatefulDataLoader's workers with "
                "from_stateful_dataloader. Then load the result into the mixture as it was, and save its state."
            )
        later = tuple(_with_moved_cursors(one, move, move_edits) for one in state.later)
        state = replace(_with_moved_cursors(state, move, move_edits), earlier=(), later=later)
    epochs = (*state.earlier, state, *state.later)
    cursors = [position.cursor for one in epochs for _, position in one.positions.runs]
    for progress in (one.reader_progress for one in epochs if one.reader_progress is not None):
        _check_countable(pipeline, progress)
        cursors += [cursor for _, _, cursor in progress.deliveries]
    if any(len(cursor) != width for cursor in cursors):
        raise CheckpointMismatchError.damaged(f"its cursors do not have {count('number', width)}")
    if edits:
        state = with_edits(pipeline, state, edits)
        log.warning("The run was edited since the checkpoint: %s. All others come exactly once.", "; ".join(changes))
    elif changes:
        log.warning("The mixture resumes with changes: %s.", "; ".join(changes))
    return state


def _check_countable(pipeline: Pipeline, progress: ReaderProgress) -> None:
    """Raise if a reader's progress is counted in a way that the pipeline cannot follow."""
    if progress.reader is None and not pipeline.counted:
        raise CheckpointMismatchError(
            f"The state counts the items that a worker delivered, and now the pipeline is not counted: "
            f"{pipeline.why_not_counted()}. If it was surveyed when the state was saved, survey it again."
        )
    if progress.reader is not None and pipeline.uniform:
        raise CheckpointMismatchError.damaged("what its reader delivered is counted as in another kind of pipeline")


def adoption(pipeline: Pipeline, then: Any) -> AdoptedCheckpoint:
    """Accept a checkpoint with the fingerprint ``then``, or raise CheckpointMismatchError and say what differs."""
    if not isinstance(then, Mapping) or not {"data", "pipeline"} <= set(then):
        raise CheckpointMismatchError.damaged("it has no fingerprint")
    try:
        move, described, changes, edits, move_edits = pipeline.source.adopt(then)
        difference = pipeline_difference(described, pipeline.fingerprint["pipeline"])
    except CheckpointMismatchError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise CheckpointMismatchError(
            f"The state's fingerprint is damaged ({type(error).__name__}: {error}). Load an earlier checkpoint."
        ) from error
    if difference is not None:
        raise CheckpointMismatchError(
            f"The pipeline is not the one of the checkpoint: {difference}. "
            "Build it as it was, or start over without the state."
        )
    move = None if move is None else partial(_moved, pipeline, move)
    return AdoptedCheckpoint(move, described, changes, edits, move_edits)


def _moved(pipeline: Pipeline, move: MoveCursor, cursor: Cursor) -> Cursor:
    """A cursor whose source was moved. Raises if a stage is inside a group of the source's items."""
    groups = sum(cursor_numbers(pipeline.stages))
    of_source, of_groups = cursor[: len(cursor) - groups], cursor[len(cursor) - groups :]
    if any(of_groups):
        raise CheckpointMismatchError(
            "The checkpoint was taken inside a group that a stage after the mixture makes, such as a window of "
            "packs, and a changed mixture would make another group. Resume with the mixture as it was, or use "
            "that stage on each part before mixing them."
        )
    return (*move(of_source), *of_groups)


def _with_moved_cursors(state: State, move: MoveCursor, move_edits: Callable[[Edits], Edits] | None) -> State:
    """A complete state of a mixture that has changed."""
    if not state.positions.in_step:
        raise CheckpointMismatchError(
            "In the checkpoint some readers of a lane were ahead of others, so the mixture cannot be changed "
            "there. Resume with the mixture as it was, and change it at a later checkpoint."
        )
    moved = ((lanes, LanePosition(move(position.cursor))) for lanes, position in state.positions.runs)
    if move_edits is not None:
        state = replace(state, edits=move_edits(state.edits))
    return replace(state, positions=LanePositions.pack(moved), history=())


class SavedPart(NamedTuple):
    """What a checkpoint says of a part of its mixture."""

    weight: Any
    width: int
    """How many numbers the part's cursor has."""
    pipeline: Any
    data: Any


def adopt_mixture(mixture: "Mixture", then: Mapping[str, Any]) -> AdoptedCheckpoint:
    """Accept a checkpoint of a mixture. Each part that it knows keeps its own position."""
    description, *stages = then["pipeline"] or [{}]
    if description.get("op") != "mix" or "parts" not in then["data"]:
        raise CheckpointMismatchError(
            "The checkpoint is not of a mixture. Load it into the dataset that it was taken of."
        )
    if bool(description.get("in_turn")) != mixture.in_turn:
        words = "mix", "concat"
        raise CheckpointMismatchError(
            f"The datasets were joined by {words[not mixture.in_turn]}, and are joined by {words[mixture.in_turn]} "
            "now. Build them as they were, or start over without the state."
        )
    saved = _saved_parts(description, then["data"])
    _check_known(mixture, [*saved])
    parts = dict(zip(mixture.names, mixture.parts, strict=True))
    known = {name: _adopted(part, name, saved[name]) for name, part in parts.items() if name in saved}
    changes = _changes(mixture, saved, description["seed"])
    has_moved = changes or any(part.move for part in known.values())
    move = partial(_moved_parts, parts, saved, known, bool(changes)) if has_moved else None
    changes += [f"in {name}, {change}" for name, part in known.items() for change in part.changes]
    edits = join_edits([known[name].edits if name in known else 0 for name in parts])
    move_edits = partial(_moved_edits, [*parts], [*saved], known)
    described = [mixture.describe()[0] | {"stop": description["stop"]}, *stages]
    return AdoptedCheckpoint(move, described, tuple(changes), edits, move_edits)


def _saved_parts(description: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, SavedPart]:
    """The parts of a checkpoint's mixture by name; ``ValueError`` if its description and data do not fit together."""
    lists = [*(description[key] for key in ("names", "weights", "widths", "parts")), data["parts"]]
    if any(type(width) is not int or width < 1 for width in description["widths"]):
        raise ValueError(f"the widths of cursors are {description['widths']}")
    return {name: SavedPart(*part) for name, *part in zip(*lists, strict=True)}


def _check_known(mixture: "Mixture", saved_names: Sequence[str]) -> None:
    """Raise if an unknown part may be new or a changed old one."""
    new = [name for name in mixture.names if name not in saved_names]
    gone = [name for name in saved_names if name not in mixture.names]
    if len(new) == len(mixture.names) or (new and gone and not mixture.named):
        raise CheckpointMismatchError(
            f"The mixture had the parts {', '.join(saved_names)} and has {', '.join(mixture.names)}. Whether "
            f"{new[0]} is new or a changed old part is unknown. Build the parts as they were, or name them by "
            "passing a dict to mix, both before and after the change."
        )


def _adopted(part: Pipeline, name: str, saved: SavedPart) -> AdoptedCheckpoint:
    """Accept the checkpoint's part of the same name, or raise if it has changed."""
    try:
        return adoption(part, {"data": saved.data, "pipeline": saved.pipeline})
    except CheckpointMismatchError as error:
        raise CheckpointMismatchError(
            f"The part {name!r} of the mixture is not the one of the checkpoint. {error} "
            "To replace it by another part, give that another name."
        ) from error


def _changes(mixture: "Mixture", saved: Mapping[str, SavedPart], saved_seed: int) -> list[str]:
    """How the schedule differs from the checkpoint's, in words."""
    changes = []
    for name, weight in zip(mixture.names, mixture.weights.described, strict=True):
        now = weight_in_words(weight)
        if name not in saved:
            changes.append(f"{name} is new and starts from its beginning, with weight {now}")
        elif saved[name].weight != weight:
            changes.append(f"{name} has weight {now} instead of {weight_in_words(saved[name].weight)}")
    changes += [f"{name} was removed" for name in saved if name not in mixture.names]
    if saved_seed != mixture.seed:
        changes.append(f"its seed is {mixture.seed} instead of {saved_seed}")
    if not changes and [*mixture.names] != [*saved]:
        changes.append("its parts are in another order")
    return changes


def _moved_parts(
    parts: Mapping[str, Pipeline],
    saved: Mapping[str, SavedPart],
    known: Mapping[str, AdoptedCheckpoint],
    new_schedule: bool,
    cursor: Cursor,
) -> Cursor:
    """A cursor of the checkpoint as one of this mixture. Known parts keep their position, new ones begin.

    A new schedule begins too: it has drawn nothing yet.
    """
    widths = [part.width for part in saved.values()]
    if len(cursor) != sum(widths) + 2 * len(widths):
        fits = f"which do not fit the parts {', '.join(saved)}"
        raise CheckpointMismatchError.damaged(f"a cursor has {len(cursor)} numbers, {fits}")
    positions = {name: PartPosition(0, 0, part.begin) for name, part in parts.items()}
    for name, (drawn, times_ended, own) in zip(saved, split_positions(cursor, widths), strict=True):
        if name in known:
            move = known[name].move
            moved = own if move is None else move(own)
            positions[name] = PartPosition(0 if new_schedule else drawn, times_ended, moved)
    return join_positions(positions.values())


def _moved_edits(
    names: Sequence[str], saved_names: Sequence[str], known: Mapping[str, AdoptedCheckpoint], edits: Edits
) -> Edits:
    """The edits of the parts of a checkpoint as those of the present parts."""
    moved: list[Edits] = []
    for name in names:
        own = edits_of_part(edits, saved_names.index(name)) if name in known else 0
        move = known[name].move_edits if name in known else None
        moved.append(own if move is None else move(own))
    return join_edits(moved)


def without(pipeline: Pipeline, named: Any) -> Pipeline:
    """The pipeline without rows, named by file and row, and in a mixture by part where several have such a file."""
    source: Any = pipeline.source
    if not pipeline.parts:
        return replace(pipeline, source=without_rows(source, named))
    rows_of: list[list[Row]] = [[] for _ in pipeline.parts]
    for row in named_rows(named, "part", "file", "row"):
        number, inner = _part_of(source, row)
        rows_of[number].append(inner)
    parts = zip(pipeline.parts, rows_of, strict=True)
    source = replace(source, parts=tuple(without(part, rows) if rows else part for part, rows in parts))
    return replace(pipeline, source=source)


def _part_of(mixture: "Mixture", row: Row) -> tuple[int, Row]:
    """The number of the part that has a row, and the row as one of that part."""
    *named, file, number = row
    for part in filter(None, named):
        for index, name in enumerate(mixture.names):
            if part == name:
                return index, (file, number)
            if part.startswith(f"{name}/"):
                return index, (part[len(name) + 1 :], file, number)
        raise ValueError(
            f"without names the part {part!r}, which the mixture does not have: {', '.join(mixture.names)}."
        )
    have = [index for index, one in enumerate(mixture.parts) if any(file in of.index.view.names for of in one.files)]
    if not have:
        raise ValueError(f"without names the file {file!r}, which no part of the mixture has.")
    if len(have) > 1:
        names = ", ".join(mixture.names[index] for index in have)
        raise ValueError(
            f"without names the file {file!r}, which several parts of the mixture have: {names}. Name the part too: "
            f"({mixture.names[have[0]]!r}, {file!r}, {number}), and a row for each part that should lose it."
        )
    return have[0], (file, number)


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
    if pipeline.uniform and state.digest is not None and state.digest.unknown is None:
        digest = replace(state.digest, before=(state.digest.before - _lost(pipeline, state, edits)) % WORD)
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


def _lost(pipeline: Pipeline, state: State, edits: Edits) -> int:
    """What the digest of a uniform pipeline loses: the rows that were delivered and are left out now."""
    source = pipeline.source
    assert isinstance(source, FileRows)
    assert isinstance(edits, int)
    lanes = replace(source, steps=source.steps[:-edits]).cut(cut_of(state))
    rows = [step.rows for step in source.steps[-edits:] if isinstance(step, Without)]
    lost = 0
    for lane, position in enumerate(state.positions.expand()):
        order = lanes.order(lane)
        gone = order.positions(np.unique(np.concatenate(rows)))
        delivered = gone[gone < position.cursor[0]]
        lost += int(hash_keys(order.rows(delivered)).sum(dtype=np.uint64))
    return lost
