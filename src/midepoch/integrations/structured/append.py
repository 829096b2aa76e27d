"""A checkpoint of some files, made one of the same files and others that were added since."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from midepoch._common.types import I64
from midepoch.checkpoint.fingerprint import FileFacts, data_fingerprint
from midepoch.checkpoint.lanes import LanePosition, lane_cuts
from midepoch.checkpoint.migrations import upgrade
from midepoch.checkpoint.state import LanePositions, State
from midepoch.errors import CheckpointMismatchError
from midepoch.order.orders import Shuffle
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.appended import generations, ranges_of
from midepoch.sources.files import FileRows

MOST_PARTS = 16


def appended(values: Mapping[str, Any], pipeline: Pipeline) -> Mapping[str, Any]:
    """The state, as one of the files that are here, if all of its files are among them unchanged.

    If they are not, or there are no others, it stays as it is, and loading it says what differs.
    """
    values = upgrade(values)
    state, rows = State.from_dict(values), pipeline.source
    then = values.get("fingerprint")
    if not isinstance(rows, FileRows) or not isinstance(then, Mapping) or not isinstance(then.get("data"), Mapping):
        return values
    data = then["data"]
    if data.get("digest") == rows.fingerprint["digest"]:
        return values
    kept = _kept(data, rows.index.view.facts)
    if kept is None:
        return values
    fingerprint = {"data": rows.fingerprint, "pipeline": then.get("pipeline")}
    if state.lanes is None:
        return state.to_dict(fingerprint)
    _check(state, rows, pipeline)
    parts = [kept[part] for part in generations(state.appended, len(kept))]
    if len(parts) > MOST_PARTS:
        raise CheckpointMismatchError(
            f"Files were added {MOST_PARTS} times in this epoch already. Finish it with the files it has, and read the "
            "new ones from the next epoch on."
        )
    appended = replace(state, appended=tuple(ranges_of(part) for part in parts), positions=_within(state, data["rows"]))
    return appended.to_dict(fingerprint)


def _kept(then: Mapping[str, Any], files: Sequence[FileFacts]) -> I64 | None:
    """The numbers that the files of a state have here, if all are here unchanged and in their order; else None.

    A state of a few files lists them. Of many it has a digest, which tells them from others where those come last.
    """
    if "list" in then:
        names = {name for name, _, _ in then["list"]}
        numbers = [number for number, (name, _, _) in enumerate(files) if name in names]
    else:
        numbers = list(range(min(len(files), int(then.get("files", 0)))))
    same = data_fingerprint([files[number] for number in numbers])["digest"] == then.get("digest")
    return np.array(numbers, np.int64) if same and len(numbers) < len(files) else None


def _check(state: State, rows: FileRows, pipeline: Pipeline) -> None:
    """Raise where it is not known which rows the order of the epoch under way had."""
    why = None
    if rows.where is not None:
        why = "filters leave out other blocks when there are other files"
    elif state.mode != "example":
        why = "the epoch was dealt by shard(mode='file')"
    elif not all(isinstance(step, Shuffle) for step in rows.steps):
        why = "the rows are cut by take, skip or a selection"
    elif len(pipeline.begin) > 1:
        why = "a stage makes groups of rows, such as a batched map or pack"
    elif state.reader_progress is not None or not state.positions.in_step:
        why = "the checkpoint holds what one of several readers delivered, or some were ahead of others"
    if why is not None:
        raise CheckpointMismatchError(
            f"new_files='append' is not possible: {why}. Finish the epoch with the files it had, and add the new ones "
            "then."
        )


def _within(state: State, rows: int) -> LanePositions:
    """Where lanes of so many rows stand; a short last batch counts as a whole one, but only its rows are delivered."""
    assert state.lanes is not None
    sizes = [end - begin for begin, end in pairwise(lane_cuts(rows, state.lanes))]
    return LanePositions.pack(
        (1, LanePosition((min(position.cursor[0], sizes[lane]),)))
        for lane, position in enumerate(state.positions.expand())
    )
