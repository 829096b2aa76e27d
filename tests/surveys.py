"""Surveys made by reading, for tests of what is done with them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from midepoch.dataset import plan_of, with_plan
from midepoch.pipeline.pipeline import PipelineLanes
from midepoch.sources.source import EpochCut


@dataclass(frozen=True)
class KnownRows:
    """What a pass over all rows found: the same interface as a survey on disk."""

    mask: Any
    row_lengths: Any
    covered: int
    has_kept = True
    has_lengths = True
    folder = None

    def kept(self, rows):
        return self.mask[rows]

    def lengths(self, rows):
        return self.row_lengths[rows]


def surveyed(dataset):
    """The dataset with a survey of its filters and of the lengths for its pack."""
    pipeline = plan_of(dataset).pipeline
    counting = [number for number, stage in enumerate(pipeline.stages) if stage.needs_survey]
    if pipeline.source.where is None and not counting:
        return dataset
    last = counting[-1] + 1 if counting else 0
    column = getattr(getattr(pipeline.stages[last - 1], "spec", None), "column", None) if last else None
    before = pipeline.stages[: last - 1] if column else pipeline.stages[:last]
    prefix = replace(pipeline, source=replace(pipeline.source, steps=()), stages=before)
    lanes = PipelineLanes(prefix, EpochCut(epoch=0, lanes=1))
    rows = prefix.source.index.view.rows
    mask, lengths = np.zeros(rows, bool), np.zeros(rows, np.int64)
    opened = prefix.source.open(1)
    # Stages that make groups give their outputs other keys, so rows are known by their column "id".
    for item, _, _ in lanes.flow(opened, 0, prefix.begin).as_single_items():
        mask[item["id"]] = True
        lengths[item["id"]] = len(item[column]) if column else 0
    opened.close()
    survey = KnownRows(mask, lengths, len(counting))
    return with_plan(dataset, replace(plan_of(dataset), pipeline=replace(pipeline, survey=survey)))


def without_survey(dataset):
    """The dataset without any survey, also without the one that packs make by themselves."""
    pipeline = replace(plan_of(dataset).pipeline, survey=None, own_lengths=None)
    return with_plan(dataset, replace(plan_of(dataset), pipeline=pipeline))
