"""Accepting a checkpoint: is it of this pipeline or mixture, and which of its positions must be moved?"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from midepoch._common.checks import count
from midepoch.checkpoint.fingerprint import pipeline_difference, rows_of
from midepoch.checkpoint.lanes import Cursor, LanePosition
from midepoch.checkpoint.state import (
    Edits,
    LanePositions,
    ReaderProgress,
    State,
    check_scale,
    edits_of_part,
    join_edits,
)
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.draws import PartPosition, join_positions, split_cursor
from midepoch.pipeline.edits import with_edits
from midepoch.pipeline.pipeline import Pipeline
from midepoch.pipeline.schedule import weight_in_words
from midepoch.sources.source import AdoptedCheckpoint, MoveCursor
from midepoch.stages.stage import cursor_numbers

if TYPE_CHECKING:
    from midepoch.pipeline.mixture import Mixture

log = logging.getLogger("midepoch")


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
        raise CheckpointMismatchError(
            f"The state is damaged: its cursors do not have {count('number', width)}. Load an earlier checkpoint."
        )
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
        raise CheckpointMismatchError(
            "The state is damaged: what its reader delivered is counted as in another kind of pipeline. Load an "
            "earlier checkpoint."
        )


def adoption(pipeline: Pipeline, then: Any) -> AdoptedCheckpoint:
    """Accept a checkpoint with the fingerprint ``then``, or raise CheckpointMismatchError and say what differs."""
    if not isinstance(then, Mapping) or not {"data", "pipeline"} <= set(then):
        raise CheckpointMismatchError("The state is damaged: it has no fingerprint. Load an earlier checkpoint.")
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
    _check_kind(mixture, description)
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
    return AdoptedCheckpoint(move, [*mixture.describe(), *stages], tuple(changes), edits, move_edits)


def _check_kind(mixture: "Mixture", description: Mapping[str, Any]) -> None:
    """Raise if the parts were joined in another way."""
    if bool(description.get("in_turn")) != mixture.in_turn:
        words = "mix", "concat"
        raise CheckpointMismatchError(
            f"The datasets were joined by {words[not mixture.in_turn]}, and are joined by {words[mixture.in_turn]} "
            "now. Build them as they were, or start over without the state."
        )
    if description["stop"] != mixture.stop:
        raise CheckpointMismatchError(
            f"The mixture had stop={description['stop']!r} and has stop={mixture.stop!r}, so it would end elsewhere. "
            "Build it as it was, or start over without the state."
        )


def _saved_parts(description: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, SavedPart]:
    """The parts of a checkpoint's mixture by name; ``ValueError`` if its description and data do not fit together."""
    names, *lists = [*(description[key] for key in ("names", "weights", "widths", "parts")), data["parts"]]
    if any(len(one) != len(names) for one in lists):
        raise ValueError("its lists of parts have different lengths")
    if any(type(width) is not int or width < 1 for width in description["widths"]):
        raise ValueError(f"the widths of cursors are {description['widths']}")
    return {name: SavedPart(*part) for name, *part in zip(names, *lists, strict=True)}


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
    for name, weight in zip(mixture.names, mixture.described_weights, strict=True):
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
        raise CheckpointMismatchError(
            f"The state is damaged: a cursor has {len(cursor)} numbers, which do not fit the parts "
            f"{', '.join(saved)}. Load an earlier checkpoint."
        )
    positions = {name: PartPosition(0, 0, part.begin) for name, part in parts.items()}
    for name, (drawn, times_ended, own) in zip(saved, split_cursor(cursor, widths), strict=True):
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
