"""Edits of an epoch whose windows of packs are under way: the rows are left out of packs, and the layout stays."""

from collections.abc import Iterator, Sequence
from typing import Any

from midepoch.checkpoint.edits import Edits, edits_of_part, join_edits
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.pipeline import Pipeline


def masked_edits(pipeline: Pipeline, cursors: Sequence[Cursor], edits: Edits, before: Edits) -> Edits:
    """Which of the new ``edits`` leave rows out of packs alone: where one of the cursors is inside a window of packs.

    If edits ``before`` did so in this epoch, new ones do too. Raises if a cursor is inside a group that is no window.
    """
    if not edits:
        return 0
    width = len(pipeline.source.begin)
    in_group = any(any(cursor[width:]) for cursor in cursors)
    if in_group and not _packs_rows(pipeline):
        raise CheckpointMismatchError(
            "Rows cannot be left out of the run from this checkpoint on, because it was taken inside a group of rows "
            "that map(batched=True) makes, which would change: resume without the edit, and edit at the next "
            "checkpoint that is between two groups, or in the next epoch."
        )
    if in_group or (before and any(stage.length_column is not None for stage in pipeline.stages)):
        return edits
    mixture: Any = pipeline.source
    if not (parts := _parts(pipeline)):
        return 0
    positions = [mixture.part_positions(cursor[:width]) for cursor in cursors]
    return join_edits(
        [
            masked_edits(
                part,
                [of_lane[number].cursor for of_lane in positions],
                edits_of_part(edits, number),
                edits_of_part(before, number),
            )
            for number, part in enumerate(parts)
        ]
    )


def _packs_rows(pipeline: Pipeline) -> bool:
    """True if the only groups are those of ``pack``, which then knows rows by their keys."""
    own = all(stage.length_column is not None for stage in pipeline.stages if stage.many_outputs)
    return own and not any(stage.many_outputs for part in _all_parts(pipeline) for stage in part.stages)


def _parts(pipeline: Pipeline) -> Sequence[Pipeline]:
    """The parts of a mixture; none of another source."""
    return getattr(pipeline.source, "parts", ())


def _all_parts(pipeline: Pipeline) -> Iterator[Pipeline]:
    for part in _parts(pipeline):
        yield part
        yield from _all_parts(part)
