"""Surveying a pipeline: its counting stages run once over all rows, and what they make of each row is kept."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from midepoch._common.executors import check_executor, check_started, run_all
from midepoch._common.files import exclusive_lock, remove_folder, temporary_name, write_privately
from midepoch._common.hashing import digest
from midepoch._common.progress_bar import ProgressBar
from midepoch._common.text import count
from midepoch._common.trust import read_trusted
from midepoch._common.types import I64
from midepoch._common.world import usable_cores
from midepoch.index.saved import trusted_index_folder
from midepoch.index.survey import MAX_LENGTH, Mask, Survey, UnitRows, write_survey
from midepoch.pipeline.mixture import Mixture
from midepoch.pipeline.pipeline import Pipeline
from midepoch.pipeline.units import RowPass, Unit, Version, data_identity, list_lengths, write_error
from midepoch.sources.files import FileRows
from midepoch.stages.flow import Flow
from midepoch.stages.stage import Stage

log = logging.getLogger("midepoch")

FORMAT = 2
"""Part of the key of a survey; raise it when surveys of older releases must not be used."""
KEYS_AT_ONCE = 4096
COLUMN_BYTES = 1 << 30
"""The size of units that need only some columns, in bytes of all columns."""


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
        return with_parts(pipeline, source, lambda part: _survey_part(part, pipeline.stages, survey))
    counting = Counting.of(pipeline)
    if counting is None:
        return pipeline
    return replace(pipeline, survey=counting.survey(executor, version, folder, trust_shared=trust_shared))


def with_parts(pipeline: Pipeline, mixture: Mixture, change: Callable[[Pipeline], Pipeline]) -> Pipeline:
    """The pipeline of a mixture with its parts changed; the same if no part changes."""
    parts = tuple(map(change, mixture.parts))
    if all(new is old for new, old in zip(parts, mixture.parts, strict=True)):
        return pipeline
    return replace(pipeline, source=replace(mixture, parts=parts))


def packed_part(part: Pipeline, stages: Sequence[Stage]) -> Pipeline | None:
    """A part of a mixture with the stages after the mixture up to the one that packs rows; None if none packs.

    A survey of it knows the lengths that the rows of this part have when they are packed.
    """
    for number, stage in enumerate(stages, start=1):
        if stage.length_column is not None:
            return replace(part, stages=(*part.stages, *stages[:number]), survey=None, own_lengths=None)
        if stage.needs_survey:
            raise ValueError(
                f"survey: {stage.name} after a mixture cannot be surveyed, because its rows have no numbers. Use "
                f"{stage.name} on each of the datasets before mixing them."
            )
    return None


def _survey_part(part: Pipeline, stages: Sequence[Stage], survey: Callable[[Pipeline], Pipeline]) -> Pipeline:
    packed = packed_part(part, stages)
    if packed is None:
        return survey(part)
    surveyed = survey(packed)
    return replace(part, source=surveyed.source, survey=surveyed.survey)


def counting_stages(pipeline: Pipeline) -> int:
    """The number of stages up to the last one that needs a survey. Raises if one of them cannot be surveyed."""
    last, grouping, random = 0, None, None
    for number, stage in enumerate(pipeline.stages, start=1):
        random = stage.name if stage.uses_rng else random
        if stage.needs_survey:
            if random is not None:
                raise ValueError(
                    f"survey: {random} with with_rng=True makes other rows in every epoch, so what {stage.name} makes "
                    f"of them cannot be known. Put {stage.name} before it, or leave out with_rng."
                )
            if grouping is not None:
                raise ValueError(
                    f"survey: {stage.name} after {grouping} gets no single rows, so it cannot be surveyed. Put "
                    f"{stage.name} before {grouping}."
                )
            last = number
        elif stage.count(stage.group_size) is None:
            raise ValueError(
                f"survey: the items cannot be counted, because {stage.why_not_counted}. Or use cache() after stage "
                f"{number}, which keeps the rows."
            )
        grouping = grouping if stage.keeps_rows else stage.name
    return last


@dataclass(frozen=True, kw_only=True)
class Counting(RowPass):
    """What a survey runs: the rows of files in file order, through the stages up to the last counting one."""

    pack: Stage | None
    """The last stage, if it packs rows. Only the lengths of its inputs are needed."""
    covered: int
    """The number of stages that need a survey."""

    @classmethod
    def of(cls, pipeline: Pipeline) -> "Counting | None":
        """What must be run to count the items of a pipeline; None if they are counted already."""
        stages = tuple(stage.checking(False).for_survey() for stage in pipeline.stages[: counting_stages(pipeline)])
        source = pipeline.source
        if not isinstance(source, FileRows):
            raise TypeError(f"survey: the rows must be those of files, got {type(source).__name__}.")
        if not stages and source.uniform:
            return None
        pack = stages[-1] if stages and stages[-1].length_column is not None else None
        covered = sum(stage.needs_survey for stage in stages)
        stages = stages[:-1] if pack is not None else stages
        rows = Pipeline(source=replace(source, steps=()), stages=stages)
        if rows.schema is not None and not rows.functions:  # the values are those of the files: a column is enough
            columns = () if pack is None or pack.length_column is None else (pack.length_column,)
            rows = Pipeline(source=replace(source, steps=(), columns=columns))
        return cls(pipeline=rows, pack=pack, covered=covered)

    @property
    def has_kept(self) -> bool:
        """True if rows may be left out."""
        return self.source.where is not None or any(stage.needs_survey for stage in self.pipeline.stages)

    @property
    def is_one_column(self) -> bool:
        """True if only the column of tokens is read, and no stage comes before the pack."""
        column = None if self.pack is None else self.pack.length_column
        return column is not None and not self.pipeline.stages and self.source.columns == (column,)

    @property
    def calls_nothing(self) -> bool:
        """True if no user function is called."""
        return not self.pipeline.functions

    def key(self, version: Version) -> str:
        """A digest of all that a survey depends on."""
        stages = [stage.describe() for stage in self.pipeline.stages]
        lengths = None if self.pack is None else self.pack.length_column
        parts = [FORMAT, data_identity(self.source.index.view), self.source.describe(), stages, lengths, version]
        return digest(json.dumps(parts, sort_keys=True).encode(), size=16).hex()

    def survey(
        self, executor: Executor | None, version: Version, folder: Path | None, *, trust_shared: bool = False
    ) -> Survey:
        """The survey that is saved under the key, or a new one. Of several processes, one makes it and others wait."""
        saved_at, key = self.source.index.view.saved_at, self.key(version)
        beside = folder is None and saved_at is not None
        parent = trusted_index_folder(
            Path(saved_at).parent if beside and saved_at is not None else folder, trust_shared
        )
        name = f"{Path(saved_at).stem}-{key}" if beside and saved_at is not None else key
        path, work = parent / f"{name}.survey", parent / f"{name}.survey-work"
        survey = self._load(path)
        if survey is None:
            if executor is not None or not self.calls_nothing:  # else no process is started
                check_started("survey()")
            with exclusive_lock(parent / f"{key}.lock"):
                survey = self._load(path)
                if survey is None:
                    _clear(path)
                    survey = self._make(path, work, executor)
                    remove_folder(work)
        return survey

    def _load(self, path: Path) -> Survey | None:
        try:
            survey = Survey.load(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError) as error:
            log.warning("The survey %s cannot be used (%s); it is made again.", path, error)
            return None
        return survey if survey.rows == self.source.index.view.rows else None

    def _make(self, path: Path, work: Path, executor: Executor | None) -> Survey:
        """Survey the units that are not finished yet, and join all."""
        units = self.units(COLUMN_BYTES if self.calls_nothing else None)
        missing = [unit for unit in units if _finished(work, unit) is None]
        rows = units[-1].end
        done = rows - sum(unit.end - unit.begin for unit in missing)
        with ExitStack() as stack:
            # Threads are enough if all work is Arrow's, which lets other threads run.
            if executor is None and len(missing) > 1 and (self.calls_nothing or self.source.is_in_memory):
                executor = stack.enter_context(ThreadPoolExecutor(usable_cores()))
            bar = stack.enter_context(ProgressBar("survey", unit="rows", total=rows))
            for unit, content in run_all(self.survey_unit, missing, executor, bar.tick):
                _write(_unit_path(work, unit), content, path)
                done += unit.end - unit.begin
                bar.update(done)
        try:
            return write_survey(path, _all_finished(work, units), rows=rows, covered=self.covered, work=work)
        except OSError as error:
            survey = self._load(path)  # another process may have finished it first, and removed the units
            if survey is not None:
                return survey
            raise write_error(error, path.parent, "The survey") from error

    def survey_unit(self, unit: Unit) -> bytes:
        """What is known of each row of a unit, as bytes to keep."""
        lengths = None
        if self.is_one_column and not self.has_kept and self.source.index.store is None:
            lengths = list_lengths(self.source, unit)
        kept = np.ones(unit.end - unit.begin, bool)
        if lengths is None:
            kept, lengths = self._read(unit)
        if len(lengths) and lengths.max() > MAX_LENGTH:
            name, row = self.source.locate(unit.begin + int(lengths.argmax()))
            raise ValueError(
                f"survey: row {row:,} of {name} has {lengths.max():,} tokens; at most {MAX_LENGTH:,} are possible. "
                "Divide it into several rows, or leave it out with a filter."
            )
        stored = None if self.pack is None else lengths.astype(np.uint32)
        return UnitRows(kept if self.has_kept else None, stored).to_bytes()

    def _read(self, unit: Unit) -> tuple[Mask, I64]:
        """Whether each row of a unit passes all stages, and its length."""
        kept, lengths = np.zeros(unit.end - unit.begin, bool), np.zeros(unit.end - unit.begin, np.int64)
        with closing(self.source.open(1)) as opened:
            flow = self.flow(opened, unit)
            if self.pack is None:
                for keys in _keys(flow):
                    kept[keys - unit.begin] = True
            else:
                for keys, of_rows in self.pack.document_lengths(flow, self.context):
                    kept[keys - unit.begin] = True
                    lengths[keys - unit.begin] = of_rows
        assert self.has_kept or kept.all(), "without a filter every row passes"
        return kept, lengths


def _keys(flow: Flow) -> Iterator[I64]:
    """The keys of the rows that pass all stages. Values that no stage needed are not converted."""
    runs: Iterator[Any] | None = flow.row_runs if flow.row_runs is not None else flow.item_runs
    if runs is not None:
        for run in runs:
            yield run.keys
        return
    single_items = flow.as_single_items()
    while keys := [key for _, _, key in islice(single_items, KEYS_AT_ONCE)]:
        yield np.array(keys, np.int64)


def _clear(path: Path) -> None:
    """Remove a survey that cannot be used: it may be damaged. That of another user is moved out of the way."""
    remove_folder(path)
    with suppress(OSError):
        path.rename(temporary_name(path))


def _unit_path(work: Path, unit: Unit) -> Path:
    return work / f"unit-{unit.number:06}"


def _finished(work: Path, unit: Unit) -> UnitRows | None:
    """The result of a unit, unless it is missing or damaged."""
    try:
        result = UnitRows.from_bytes(read_trusted(_unit_path(work, unit)))
    except (OSError, ValueError):
        return None
    rows = next(len(array) for array in result if array is not None)
    return result if rows == unit.end - unit.begin else None


def _all_finished(work: Path, units: list[Unit]) -> Iterator[UnitRows]:
    for unit in units:
        result = _finished(work, unit)
        if result is None:
            raise FileNotFoundError(
                f"{_unit_path(work, unit)} is missing or damaged ({count('row', unit.end - unit.begin)})"
            )
        yield result


def _write(path: Path, content: bytes, survey: Path) -> None:
    try:
        write_privately(path, content)
    except OSError as error:
        raise write_error(error, survey.parent, "The survey") from error
