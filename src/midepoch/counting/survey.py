"""Surveying the rows of files: the stages that count run once over all rows, and what they make of each row is kept.

The rows are divided into *units* of whole blocks. Which rows a unit has depends on the data alone, so a survey that was
killed continues with the units that are not finished, also on another machine. Caches are made in units too.
"""

import errno
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from midepoch._common.checks import Version
from midepoch._common.files import (
    exclusive_lock,
    explained,
    read_trusted,
    remove_folder,
    temporary_name,
    write_privately,
)
from midepoch._common.hashing import I64, digest
from midepoch._common.jobs import ProgressBar, check_started, run_all
from midepoch._common.world import torch_worker, usable_cores
from midepoch.counting.survey_file import MAX_LENGTH, Survey, UnitRows, write_survey
from midepoch.errors import MidepochError
from midepoch.index.saved import trusted_index_folder
from midepoch.order.orders import Slice
from midepoch.sources.ahead import OpenFiles
from midepoch.sources.files import FileRows
from midepoch.sources.source import EpochCut
from midepoch.stages.flow import Context, Flow, RowRun
from midepoch.stages.stage import Stage, why_no_survey
from midepoch.values.rows import Rows

log = logging.getLogger("midepoch")
Made = TypeVar("Made")

FORMAT = 3
"""Part of the key of a survey; raise it when surveys of older releases must not be used."""
UNITS = 512
"""Units are made smaller, down to the smallest size, until there are about this many."""
SMALLEST_UNIT, LARGEST_UNIT = 1 << 20, 64 << 20
UNIT_ROWS = 1 << 20
COLUMN_BYTES = 1 << 30
"""The size of units that need only some columns, in bytes of all columns."""
KEYS_AT_ONCE = 4096
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


class Unit(NamedTuple):
    """The rows from ``begin`` to ``end``: those of some whole blocks."""

    number: int
    begin: int
    end: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.end - self.begin


def cut_units(block_starts: I64, block_bytes: Any, size: int | None = None) -> list[Unit]:
    """Units of about ``size`` bytes, by default so many that work can be shared, and of about ``UNIT_ROWS`` at most.

    There is at least one. A larger block is a unit, or the last of one.
    """
    if size is None:
        size = min(LARGEST_UNIT, max(SMALLEST_UNIT, int(block_bytes.sum()) // UNITS))
    weights = np.maximum(block_bytes / size, np.diff(block_starts) / UNIT_ROWS)
    numbers = np.floor(np.cumsum(weights) - weights)
    first_blocks = np.flatnonzero(np.diff(numbers, prepend=-1.0))
    bounds = np.unique(np.append(block_starts[first_blocks], block_starts[-1])).tolist()
    return [Unit(number, *bound) for number, bound in enumerate(pairwise(bounds))] or [Unit(0, 0, 0)]


def run_units(
    title: str,
    make: Callable[[Unit], Made],
    units: list[Unit],
    missing: list[Unit],
    executor: Executor | None,
    *,
    threads: int = 0,
    keep: Callable[[Unit, Made], None] = lambda unit, made: None,
) -> None:
    """Make the units that are missing, and show a progress bar. ``keep`` gets each in this process.

    Without an executor, they are made in ``threads`` of this process; in processes if that is 0.
    """
    done = units[-1].end - sum(unit.rows for unit in missing)
    with ExitStack() as stack:
        if executor is None and threads and len(missing) > 1:
            executor = stack.enter_context(ThreadPoolExecutor(threads))
        bar = stack.enter_context(ProgressBar(title, unit="rows", total=units[-1].end))
        for unit, made in run_all(make, missing, executor, bar.tick):
            keep(unit, made)
            done += unit.rows
            bar.update(done)


def counting_stages(stages: Sequence[Stage]) -> int:
    """The number of stages up to the last one that needs a survey. Raises if one of them cannot be surveyed."""
    if (reason := why_no_survey(stages)) is not None:
        raise ValueError(f"survey: the items cannot be counted, because {reason}.")
    return max((number for number, stage in enumerate(stages, start=1) if stage.needs_survey), default=0)


@dataclass(frozen=True, kw_only=True)
class SurveyPass:
    """What a survey runs: the rows of files in file order, through the stages up to the last counting one."""

    source: FileRows
    stages: tuple[Stage, ...]
    """Those before ``pack``. All of them keep rows, so the keys of their outputs are row numbers."""
    pack: Stage | None
    """The last stage, if it packs rows. Only the lengths of its inputs are needed."""
    covered: int
    """The number of stages that need a survey."""

    @classmethod
    def of(cls, source: FileRows, stages: Sequence[Stage]) -> "SurveyPass | None":
        """What must be run to count the items of these stages; None if they are counted already."""
        run = tuple(stage.checking(False).for_survey() for stage in stages[: counting_stages(stages)])
        if not run and source.uniform:
            return None
        pack = run[-1] if run and run[-1].length_column is not None else None
        covered = sum(stage.needs_survey for stage in run)
        made = cls(
            source=replace(source, steps=()), stages=run if pack is None else run[:-1], pack=pack, covered=covered
        )
        nothing = Flow(row_runs=iter(()), form="python", schema=source.schema)
        if made.calls_nothing and made._through(nothing).schema is not None:  # the values are those of the files
            columns = () if made.column is None else (made.column,)
            made = replace(made, source=replace(made.source, columns=columns), stages=())
        return made

    @property
    def column(self) -> str | None:
        """The column of tokens, if rows are packed."""
        return None if self.pack is None else self.pack.length_column

    @property
    def has_kept(self) -> bool:
        """True if rows may be left out."""
        return self.source.where is not None or any(stage.needs_survey for stage in self.stages)

    @property
    def reads_offsets(self) -> bool:
        """True if only the offsets of the lists of one column are needed, of files on this machine."""
        plain = not self.stages and not self.has_kept and self.source.index.store is None
        return plain and self.column is not None and self.source.columns == (self.column,)

    @property
    def calls_nothing(self) -> bool:
        """True if no user function is called."""
        return not any(stage.functions for stage in self.stages)

    @property
    def context(self) -> Context:
        """What the stages may know. All of them get single rows, which errors can name."""
        return self.source.context(0, rows_until=1 << 30)

    def key(self, version: Version) -> str:
        """A digest of all that a survey depends on."""
        stages = [stage.describe() for stage in self.stages]
        parts = [FORMAT, self.source.index.view.identity, self.source.describe(), stages, self.column, version]
        return digest(json.dumps(parts, sort_keys=True).encode(), size=16).hex()

    def survey(
        self,
        executor: Executor | None = None,
        version: Version = None,
        folder: Path | None = None,
        *,
        trust_shared: bool = False,
    ) -> Survey:
        """The survey that is saved under the key, or a new one. Of several processes, one makes it and others wait.

        It is saved in the folder, by default beside the index.
        """
        saved_at, key = self.source.index.view.saved_at, self.key(version)
        index = Path(saved_at) if folder is None and saved_at is not None else None
        parent = trusted_index_folder(folder if index is None else index.parent, trust_shared)
        path = parent / f"{key if index is None else f'{index.stem}-{key}'}.survey"
        if (survey := self._load(path)) is not None:
            return survey
        if executor is not None or not self.calls_nothing:  # else no process is started
            check_started("survey()")
        with exclusive_lock(parent / f"{key}.lock"):
            return self._load(path) or self._make(path, executor)

    def _load(self, path: Path) -> Survey | None:
        try:
            return Survey.load(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError) as error:
            log.warning("The survey %s cannot be used (%s); it is made again.", path, error)
            return None

    def _make(self, path: Path, executor: Executor | None) -> Survey:
        """Survey the units that are not finished yet, and join all."""
        _clear(path)
        units, work = self.units(), path.with_name(f"{path.name}-work")
        finished = partial(_finished, work)
        missing = [unit for unit in units if finished(unit) is None]
        # Threads are enough if all work is Arrow's, which lets other threads run.
        threads = usable_cores() if self.calls_nothing else int(self.source.is_in_memory)

        def keep(unit: Unit, content: bytes) -> None:
            with explained("The survey", path.parent):
                write_privately(_unit_path(work, unit), content)

        run_units("survey", self.survey_unit, units, missing, executor, threads=threads, keep=keep)
        try:
            with explained("The survey", path.parent):
                survey = write_survey(path, map(finished, units), rows=units[-1].end, covered=self.covered, work=work)
        except OSError:
            saved = self._load(path)  # another process may have finished it first, and removed the units
            if saved is None:
                raise
            survey = saved
        remove_folder(work)
        return survey

    def units(self) -> list[Unit]:
        """The units of all rows. There is at least one."""
        view, where = self.source.index.view, self.source.where
        read = view.block_lengths if where is None else view.block_lengths * where.blocks
        return cut_units(view.block_starts, read, COLUMN_BYTES if self.calls_nothing else None)

    def survey_unit(self, unit: Unit) -> bytes:
        """What is known of each row of a unit, as bytes to keep."""
        kept, lengths = np.zeros(unit.rows, bool), np.zeros(unit.rows, np.int64)
        with closing(self.source.open(1)) as opened:
            flow = Flow(row_runs=self._stored(unit)) if self.reads_offsets else self.flow(opened, unit)
            for keys, of_rows in self._lengths(flow):
                kept[keys - unit.begin] = True
                lengths[keys - unit.begin] = of_rows
        assert self.has_kept or kept.all(), "without a filter every row passes"
        if len(lengths) and lengths.max() > MAX_LENGTH:
            name, row = self.source.locate(unit.begin + int(lengths.argmax()))
            raise ValueError(
                f"survey: row {row:,} of {name} has {lengths.max():,} tokens; at most {MAX_LENGTH:,} are possible. "
                "Divide it into several rows, or leave it out with a filter."
            )
        stored = None if self.pack is None else lengths.astype(np.uint32)
        return UnitRows(kept if self.has_kept else None, stored).to_bytes()

    def _lengths(self, flow: Flow) -> Iterator[tuple[I64, I64 | int]]:
        """The keys of the rows that pass all stages, and their lengths, or 0 if no rows are packed."""
        if self.pack is not None:
            return self.pack.document_lengths(flow, self.context)
        return ((keys, 0) for keys in _keys(flow))

    def flow(self, opened: OpenFiles, unit: Unit) -> Flow:
        """What the stages make of a unit's rows."""
        begin, end = self._positions(unit)
        rows = replace(self.source, steps=(Slice(start=begin, stop=end),))
        return self._through(rows.cut(EpochCut(epoch=0, lanes=1)).flow(opened, 0, rows.begin))

    def _through(self, flow: Flow) -> Flow:
        for stage in self.stages:
            flow = stage.flow(flow, self.source.begin, self.context)
        return flow

    def _positions(self, unit: Unit) -> tuple[int, int]:
        """Where the rows of a unit begin and end in the order of files, which has no blocks that a filter rules out."""
        where, view = self.source.where, self.source.index.view
        if where is None:
            return unit.begin, unit.end
        starts = np.concatenate([[0], np.cumsum(view.block_rows * where.blocks)])
        begin, end = np.searchsorted(view.block_starts, [unit.begin, unit.end])
        return int(starts[begin]), int(starts[end])

    def _stored(self, unit: Unit) -> Iterator[RowRun]:
        """The rows of a unit as they are in the files: of mapped files only what is looked at is read.

        This does less for each block than reading rows in an order.
        """
        index, view, begin = self.source.index, self.source.index.view, unit.begin
        blocks = range(*np.searchsorted(view.block_starts, [unit.begin, unit.end]).tolist())
        for file, of_file in groupby(blocks, view.file_of):
            reader = index.open(file, self.source.schema)
            for number in of_file:
                data = reader.read(view.block(number)[1])
                for batch in [data] if isinstance(data, pa.RecordBatch) else data.to_batches():
                    keys = np.arange(begin, begin + len(batch))
                    begin += len(batch)
                    yield RowRun(Rows(batch), keys[:, None], keys)
            index.check(file)


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
    """What is known of a unit's rows, unless that is missing or damaged."""
    try:
        result = UnitRows.from_bytes(read_trusted(_unit_path(work, unit)))
    except (OSError, ValueError):
        return None
    return result if result.rows == unit.rows else None


class OwnLengths:
    """A survey that ``pack`` makes by itself, when it is first asked for: of lists in local, uncompressed Arrow files.

    Only the offsets of the lists are read, which is cheap enough to do without being asked. All other surveys are made
    when the user asks for them. The pipelines and copies that share this agree whether there is a survey: a pickle
    holds what came of it. If it cannot be made, there is none, and the reason is logged.
    """

    def __init__(self, survey_pass: SurveyPass) -> None:
        self._pass = survey_pass
        self.is_known = False
        self._survey: Survey | None = None

    @classmethod
    def of(cls, source: FileRows, stages: Sequence[Stage]) -> "OwnLengths | None":
        """The lengths for the last stage, a pack; None if they are not found by offsets alone."""
        if not all(source.index.view.divisible) or not all(
            stage.one_to_one and not stage.functions for stage in stages[:-1]
        ):
            return None
        survey_pass = SurveyPass.of(source, stages)
        return cls(survey_pass) if survey_pass is not None and survey_pass.reads_offsets else None

    def survey(self) -> Survey | None:
        """The survey; None if it cannot be made."""
        if self.is_known:
            return self._survey
        try:
            self._survey = self._pass.survey()
        except (MidepochError, OSError, ValueError, pa.ArrowException) as error:
            if torch_worker() is not None and getattr(error, "errno", None) not in READ_ONLY:
                raise  # other workers may succeed, and then would take other items
            log.warning(
                "%s: packs and tokens are not counted, because the lengths of the rows cannot be kept (%s). To choose "
                "another folder, call .survey(folder=...) after pack.",
                self._pass.source.label,
                error,
            )
        self.is_known = True
        return self._survey
