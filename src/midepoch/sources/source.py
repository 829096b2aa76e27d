"""What every source of items must offer: files are one, a mixture of pipelines is another."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch._common.hashing import I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.checkpoint.state import AppendedFiles, Edits
from midepoch.stages.counted import CountedItems
from midepoch.stages.flow import Context, Flow, RowRun
from midepoch.values.columns import Form

Mode = Literal["file", "example"]
"""How an epoch is cut into lanes: at whole files, or evenly."""


@dataclass(frozen=True, kw_only=True)
class EpochCut:
    """Which epoch is cut into lanes, and how. Lanes of the same source with the same cut are the same."""

    epoch: int
    lanes: int
    mode: Mode = "example"
    appended: AppendedFiles = ()
    """The files that the epoch had before others were appended."""
    edits: Edits = 0
    """How many of the last edits came after the epoch was cut: lanes keep their rows, and pass over those of edits."""
    masks: bool = False
    """True if the rows that edits leave out come nevertheless, and are noted: packs leave their places empty."""


ItemSpec = tuple[Form, bool]
"""The form of the items, and whether they are batches."""

MoveCursor = Callable[[Cursor], Cursor]
"""Turns a cursor of a checkpoint into a cursor of the present source."""


class AdoptedCheckpoint(NamedTuple):
    """A checkpoint that a source can resume from, though it may have been taken of a slightly different source."""

    move: MoveCursor | None
    """How to move its cursors; None if they are valid unchanged."""
    pipeline: Any
    """Its description of the pipeline, as the present source would write it."""
    changes: tuple[str, ...] = ()
    """What has changed since the checkpoint, in words."""
    edits: Edits = 0
    """How many edits of the source are new since the checkpoint."""
    move_edits: Callable[[Edits], Edits] | None = None
    """Turns the edits of a checkpoint into those of the present source; None if they are valid unchanged."""


@dataclass(slots=True)
class ReadCounts:
    """Counts of one reader."""

    seconds: float = 0.0
    """In which rows were fetched and decoded, while the reader waited for them."""
    fetched: float = 0.0
    """Seconds of requests to a store, in all threads: they can be more than the reader waited."""
    decoded: float = 0.0
    """Seconds in which blocks were decoded, in all threads."""
    rows: float = 0.0
    cache_hits: float = 0.0
    cache_misses: float = 0.0
    retries: float = 0.0

    def timed(self, runs: Iterator[RowRun], clock: Callable[[], float] = time.perf_counter) -> Iterator[RowRun]:
        """The same runs. It costs two looks at the clock a run."""
        begun = clock()
        for run in runs:
            self.seconds += clock() - begun
            self.rows += len(run)
            yield run
            del run  # so that the next one is made in its memory, which is still in the CPU cache
            begun = clock()


_values = attrgetter(*(field.name for field in fields(ReadCounts)))


def sum_counts(counts: Iterable[ReadCounts]) -> ReadCounts:
    """All counts as one. A worker sends them with each message, so this must not take long."""
    return ReadCounts(*map(sum, zip(_values(ReadCounts()), *map(_values, counts), strict=True)))


class OpenSource(Protocol):
    """What one reader of a source holds open: files, threads. Belongs to the process that created it."""

    @property
    def decodes(self) -> bool:
        """True if skipping the rows of other readers is not free, because whole blocks are decoded."""

    def counts(self) -> ReadCounts:
        """What reading through it has taken so far."""

    def close(self) -> None:
        """Release everything."""


class Lanes(Protocol):
    """The lanes of one epoch: of files, of a mixture, or of a pipeline."""

    def size(self, lane: int) -> int:
        """The number of rows of a lane, for sources that know it."""

    def reaches(self, lane: int, cursor: Cursor, margin: int) -> bool:
        """True if a run can have reached this cursor. Its last group may extend past the end by ``margin`` rows."""

    def flow(self, opened: Any, lane: int, cursor: Cursor) -> Flow:
        """The items of a lane from a cursor on, read through what ``Source.open`` returned."""

    def counted(self, lane: int, cursor: Cursor) -> CountedItems:
        """The same items, counted without reading. Only of what is counted."""


class RowFacts(Protocol):
    """What a survey knows of rows, by their numbers, without reading them."""

    @property
    def has_lengths(self) -> bool:
        """True if the lengths are known."""

    def kept(self, rows: I64) -> npt.NDArray[np.bool_]:
        """For each of these rows, whether the filters keep it."""

    def lengths(self, rows: I64) -> I64:
        """The number of tokens of each of these rows."""


FindSurvey = Callable[[], RowFacts | None]
"""Gives the survey of a source's rows, if there is one. It may be made only now."""


def no_survey() -> RowFacts | None:
    """Says that there is no survey."""
    return None


class Source(Protocol):
    """Where the items of a pipeline come from: an immutable value that holds everything that changes them."""

    @property
    def uniform(self) -> bool:
        """True if a lane's cursor follows from the number of items it has delivered."""

    def why_not_counted(self, survey: RowFacts | None) -> str | None:
        """Why the number of items is known only by reading, and what to do; None if it is known."""

    @property
    def begin(self) -> Cursor:
        """The cursor at the start of a lane."""

    @property
    def label(self) -> str:
        """A short name for messages."""

    @property
    def item_spec(self) -> ItemSpec:
        """The form of the items, and whether they are batches."""

    @property
    def schema(self) -> pa.Schema | None:
        """The schema of the items if they are unchanged rows of files, else None."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What a state records about the data."""

    def describe(self) -> list[dict[str, Any]]:
        """What a state records about how items are made from the data."""

    def context(self, epoch: int, rows_until: int) -> Context:
        """What stages may know in an epoch. ``rows_until`` is the number of the first stage that makes groups."""

    def cut(self, cut: EpochCut, survey: FindSurvey = no_survey) -> Lanes:
        """The lanes of an epoch. They are counted with the survey of the source's rows."""

    def open(self, lanes: int) -> OpenSource:
        """What a reader of ``lanes`` lanes holds open."""

    def adopt(self, then: Mapping[str, Any]) -> AdoptedCheckpoint:
        """Accept a checkpoint with the fingerprint ``then``, or raise CheckpointMismatchError and say what differs."""
