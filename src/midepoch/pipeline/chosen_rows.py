"""Surveyed filters in the order: the rows that they keep become the rows that later order steps act on.

The stages stay and run when rows are read. But each filter now gets only rows that it keeps, which it checks: it makes
one output of each input. So the pipeline is like one without filters.
"""

from dataclasses import replace

from midepoch.order.surveyed import Surveyed, first_scattering
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.files import FileRows


def choose_kept_rows(pipeline: Pipeline) -> Pipeline:
    """The pipeline with only the rows that its filters keep in its order.

    It is unchanged if there are no filters, if a survey does not cover them all, or if an earlier step of the order has
    scattered the rows.
    """
    source, survey = pipeline.source, pipeline.survey
    if pipeline.uniform or survey is None or not isinstance(source, FileRows) or not can_choose_rows(pipeline):
        return pipeline
    if not pipeline.counted or first_scattering(source.steps) is not None:
        return pipeline
    stages = tuple(stage.checking(True) for stage in pipeline.stages)
    step = Surveyed.of(survey, source.order(0), sum(stage.needs_survey for stage in pipeline.stages))
    return replace(pipeline, source=replace(source, steps=(*source.steps, step)), stages=stages)


def can_choose_rows(pipeline: Pipeline) -> bool:
    """True if a survey can tell which rows pass all stages."""
    return all(stage.keeps_rows and (stage.needs_survey or stage.one_to_one) for stage in pipeline.stages)


def remedy(pipeline: Pipeline, name: str) -> str:
    """What to do if the order step ``name`` cannot follow the stages of a pipeline."""
    source = pipeline.source
    if not isinstance(source, FileRows) or not can_choose_rows(pipeline):
        return f"Put {name} first."
    scattering = first_scattering(source.steps)
    if scattering is not None:
        return (
            f"Put {name} first, or use all filters, and .survey() after them, before {scattering}; or .cache(folder) "
            "the rows before."
        )
    return f"Put {name} first, or call .survey() once, directly before {name}."
