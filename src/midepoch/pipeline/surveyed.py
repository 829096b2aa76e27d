"""Pipelines with surveys: who surveys which part of a mixture, and what a pipeline does with what is known of its rows.

Surveyed filters become a step of the order: the rows that they keep are those that later order steps act on. The stages
stay and run when rows are read. But each filter now gets only rows that it keeps, which it checks: it makes one output
of each input. So the pipeline is like one without filters.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from midepoch._common.checks import Version
from midepoch._common.jobs import ProgressBar, check_executor, run_all
from midepoch.checkpoint.lanes import Cursor
from midepoch.counting.survey import OwnLengths, SurveyPass
from midepoch.errors import SchemaMismatchError
from midepoch.order.selection import Surveyed, first_scattering
from midepoch.pipeline.mixture import Mixture, MixtureLanes
from midepoch.pipeline.pipeline import Pipeline, PipelineLanes
from midepoch.sources.files import FileRows
from midepoch.sources.source import EpochCut
from midepoch.stages.batch import Batch
from midepoch.stages.pack.documents import TOKENS, PackSpec
from midepoch.stages.pack.windows import PackWindows
from midepoch.stages.stage import Stage

IN_PARALLEL = 20_000_000
"""With more documents than this left to count, processes are started."""
JOB_DOCUMENTS = 1 << 18


def survey_pipeline(
    pipeline: Pipeline,
    *,
    executor: Executor | None = None,
    version: Version = None,
    folder: Path | None = None,
    trust_shared: bool = False,
) -> Pipeline:
    """The pipeline with a survey of its rows, which is found or made; unchanged if nothing needs one.

    Of a mixture, every part is surveyed.
    """
    check_executor(executor)
    source = pipeline.source
    if isinstance(source, Mixture):
        survey = partial(survey_pipeline, executor=executor, version=version, folder=folder, trust_shared=trust_shared)
        parts = [_changed_part(part, pipeline.stages, survey) for part in source.parts]
        is_same = all(new is old for new, old in zip(parts, source.parts, strict=True))
        return pipeline if is_same else replace(pipeline, source=replace(source, parts=tuple(parts)))
    assert isinstance(source, FileRows)
    survey_pass = SurveyPass.of(source, pipeline.stages)
    if survey_pass is None:
        return pipeline
    return replace(pipeline, survey=survey_pass.survey(executor, version, folder, trust_shared=trust_shared))


def _changed_part(part: Pipeline, stages: Sequence[Stage], change: Callable[[Pipeline], Pipeline]) -> Pipeline:
    """A part of a mixture with another survey. ``stages`` come after the mixture.

    If one of these packs rows, the survey is of the part with the stages up to that one: so it knows the lengths that
    the rows of this part have when they are packed.
    """
    for number, stage in enumerate(stages, start=1):
        if stage.length_column is not None:
            packed = replace(part, stages=(*part.stages, *stages[:number]), survey=None, own_lengths=None)
            new = change(packed)
            if new is packed:
                return part
            return replace(part, source=new.source, survey=new.survey or part.survey, own_lengths=new.own_lengths)
        if stage.needs_survey:
            raise ValueError(
                f"survey: {stage.name} after a mixture cannot be surveyed, because its rows have no numbers. Use "
                f"{stage.name} on each of the datasets before mixing them."
            )
    return change(part)


def with_own_lengths(pipeline: Pipeline) -> Pipeline:
    """The pipeline, whose last stage is a pack, with the survey that it makes when its items are first counted.

    It is unchanged if the lengths are not those of lists in local, uncompressed Arrow files. In a mixture they must be
    so in every part, and functions after the mixture make other lengths.
    """
    source = pipeline.source
    if not isinstance(source, Mixture):
        assert isinstance(source, FileRows)
        own_lengths = OwnLengths.of(source, pipeline.stages)
        return pipeline if own_lengths is None else replace(pipeline, own_lengths=own_lengths)
    if any(stage.needs_survey for stage in pipeline.stages[:-1]):
        return pipeline
    parts = [_changed_part(part, pipeline.stages, with_own_lengths) for part in source.parts]
    is_known = all(new is not old for new, old in zip(parts, source.parts, strict=True))
    return replace(pipeline, source=replace(source, parts=tuple(parts))) if is_known else pipeline


def mean_tokens(name: str, part: Pipeline, column: str) -> Fraction:
    """The mean number of tokens of the items of a part, in its first epoch and one lane. Raises if it is not known."""
    part = with_row_lengths(part, column)
    reason = part.why_not_counted() or (
        None if is_packed(part) or part.knows_lengths else f"no survey knows the lengths of the rows in {column!r}"
    )
    lanes = PipelineLanes(part, EpochCut(epoch=0, lanes=1))
    items = None if reason else lanes.counted(0, part.begin)
    if items is None or items.is_endless:
        raise ValueError(
            f"mix(by='tokens') needs the mean length of the items of {name!r}, and {reason or 'it never ends'}. Use "
            "pack or batch_by_tokens on each dataset, and .survey() after it; or mix rows whose tokens lie in local "
            "Arrow files, as .cache() makes them."
        )
    total = items.total()
    tokens = items.passed(items.cursor(total))[""].tokens
    if not tokens:
        raise ValueError(f"mix(by='tokens'): {name!r} has no tokens. Leave it out.")
    return Fraction(tokens, total)


def with_row_lengths(pipeline: Pipeline, column: str | None = None) -> Pipeline:
    """The pipeline with the lengths of the lists in a column, for items that are rows, or batches of rows.

    By default it is the column that the mixture names. The pipeline is unchanged where it packs, or where lengths are
    not found by offsets alone, as ``with_own_lengths`` finds them.
    """
    source = pipeline.source
    stages = tuple(takewhile(lambda stage: not isinstance(stage, Batch), pipeline.stages))
    if is_packed(pipeline) or any(stage.functions for stage in stages):
        return pipeline
    if isinstance(source, Mixture):
        parts = tuple(with_row_lengths(part, column or source.tokens_in) for part in source.parts)
        return replace(pipeline, source=replace(source, parts=parts))
    spec = PackSpec(length=1, column=column or TOKENS, overlong="cut", eos=None, pad=None, labels=None, number=1)
    rows = replace(pipeline, stages=stages)
    try:
        spec.check_schema(rows.schema or pa.schema([]))
    except SchemaMismatchError:
        return pipeline
    packed = with_own_lengths(rows.with_stages(PackWindows(spec=spec, window=1)))
    return replace(pipeline, own_lengths=packed.own_lengths)


def is_packed(pipeline: Pipeline) -> bool:
    """True if the items are packs or padded batches, or batches of these."""
    if any(stage.length_column is not None for stage in pipeline.stages):
        return True
    return isinstance(pipeline.source, Mixture) and all(map(is_packed, pipeline.source.parts))


def count_ahead(lanes: PipelineLanes) -> None:
    """Count the packs of all lanes in parallel, if so many are unknown that one process would take long."""
    if isinstance(lanes.source, MixtureLanes):
        for part in lanes.source.first_passes():
            count_ahead(part)
        return
    jobs = [
        Job(lane, *some)
        for lane in range(lanes.cut.lanes)
        if (windows := lanes.windows(lane, lanes.pipeline.begin)) is not None
        for some in windows.unknown(JOB_DOCUMENTS)
    ]
    documents, counted = sum(job.documents for job in jobs), 0
    if documents <= IN_PARALLEL:
        return
    with ProgressBar("packs are counted", unit="documents", total=documents) as bar:
        for job, counts in run_all(partial(count_windows, lanes), jobs, None):
            for start, outputs in counts:
                lanes.output_counts(job.lane).put(start, outputs)
            counted += job.documents
            bar.update(counted)


class Job(NamedTuple):
    """Some consecutive windows of a lane."""

    lane: int
    cursor: Cursor
    """The cursor at the start of the first window."""
    windows: int
    documents: int


def count_windows(lanes: PipelineLanes, job: Job) -> list[tuple[int, int]]:
    """The position of each window's first row in its lane, and its number of packs, in any process."""
    windows = lanes.windows(job.lane, job.cursor)
    assert windows is not None
    return windows.outputs(job.windows)


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
