"""A checkpoint of some files, turned into one of the same files and others that were added since."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from midepoch._common.hashing import I64
from midepoch.checkpoint.fingerprint import FileFacts, data_fingerprint
from midepoch.checkpoint.lanes import LanePosition, lane_cuts
from midepoch.checkpoint.state import MOST_APPENDED, LanePositions, State, check_scale, checked_state
from midepoch.errors import CheckpointMismatchError
from midepoch.order.orders import Shuffle
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.appended import generations, ranges_of
from midepoch.sources.files import FileRows


def with_appended_files(values: Mapping[str, Any], pipeline: Pipeline) -> Mapping[str, Any]:
    """The state as one of the pipeline's files, if all files of the state are among them unchanged.

    Otherwise, or if no file was added, the state is returned unchanged, and loading it says what differs.
    """
    values = checked_state(values)
    state, rows = State.from_dict(values), pipeline.source
    saved = values.get("fingerprint")
    if not isinstance(rows, FileRows) or not isinstance(saved, Mapping) or not isinstance(saved.get("data"), Mapping):
        return values
    saved_data = saved["data"]
    if saved_data.get("digest") == rows.fingerprint["digest"]:
        return values
    check_scale(state, rows.index.view.rows)
    try:
        saved_files = _numbers_now(saved_data, rows.index.view.facts)
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointMismatchError(
            f"The state's list of files is damaged ({type(error).__name__}: {error}). Load an earlier checkpoint."
        ) from error
    if saved_files is None:
        return values
    fingerprint = {"data": rows.fingerprint, "pipeline": saved.get("pipeline")}
    if state.lanes is None and not state.later:
        return replace(state, earlier=()).to_dict(fingerprint)
    _check(state, rows, pipeline)
    files_now = [saved_files[files] for files in generations(state.appended, len(saved_files))]
    if len(files_now) > MOST_APPENDED:
        raise CheckpointMismatchError(
            f"Files were added {MOST_APPENDED} times in this epoch already. Finish it with the files it has, and "
            "read the new ones from the next epoch on."
        )
    saved_rows = int(np.diff(rows.index.view.file_starts)[saved_files].sum())
    appended = tuple(ranges_of(files) for files in files_now)
    return replace(state, appended=appended, positions=_clipped(state, saved_rows)).to_dict(fingerprint)


def _numbers_now(saved: Mapping[str, Any], files: Sequence[FileFacts]) -> I64 | None:
    """The present numbers of the files of a state, if all are unchanged and in their order, and others exist.

    A state of a few files lists them. A state of many has only a digest, so new files must come last in the order.
    """
    if "list" in saved:
        names = {name for name, _, _ in saved["list"]}
        numbers = [number for number, (name, _, _) in enumerate(files) if name in names]
    else:
        numbers = list(range(min(len(files), int(saved.get("files", 0)))))
    same = data_fingerprint([files[number] for number in numbers])["digest"] == saved.get("digest")
    return np.array(numbers, np.int64) if same and len(numbers) < len(files) else None


def _check(state: State, rows: FileRows, pipeline: Pipeline) -> None:
    """Raise if the order of the epoch under way cannot be rebuilt from its files alone."""
    why = None
    if rows.where is not None:
        why = "filters leave out other blocks when there are other files"
    elif state.mode != "example":
        why = "the epoch was sharded with shard(mode='file')"
    elif not all(isinstance(step, Shuffle) for step in rows.steps):
        why = "the rows are cut by take, skip, a survey or a selection"
    elif len(pipeline.begin) > 1:
        why = "a stage makes groups of rows, such as a batched map or pack"
    elif state.reader_progress is not None or not state.positions.in_step:
        why = "the checkpoint holds what one of several readers delivered, or some were ahead of others"
    elif state.later:
        why = "some ranks had begun the next epoch"
    if why is not None:
        raise CheckpointMismatchError(
            f"new_files='append' is not possible: {why}. Finish the epoch with the files it had, and add the new ones "
            "then."
        )


def _clipped(state: State, rows: int) -> LanePositions:
    """The lane positions in an epoch of ``rows`` rows, none past the end of its lane.

    A short last batch counts as a full one, but only its rows are delivered.
    """
    sizes = [end - begin for begin, end in pairwise(lane_cuts(rows, len(state.positions)))]
    return LanePositions.pack(
        (1, LanePosition((min(position.cursor[0], sizes[lane]),)))
        for lane, position in enumerate(state.positions.expand())
    )
