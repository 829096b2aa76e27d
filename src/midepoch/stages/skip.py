"""A function of each item whose errors may be skipped: always the same ones, so that a resume stays exact."""

import contextlib
import errno
import json
import logging
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from midepoch._common.checks import check_integer, count
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import MidepochError, MissingExtraError, StoreError, TooManySkippedError
from midepoch.stages.counted import rejected_row
from midepoch.stages.flow import Context, Flow, SingleItem
from midepoch.stages.functions import ChoosingStage

log = logging.getLogger("midepoch")

LOGGED_PER_LANE = 3
FILE_NOTE = "midepoch: the file is "
"""How a note begins that names the file of an error."""
# These say that the file itself is wrong. Any other error of the system may not happen again, and a sample that is
# skipped today and not tomorrow would change the packs.
FILE_ERRORS = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
ALL = 1.0
"""The limit that allows everything."""
LEAST_SAMPLES = 1000
"""A share is judged as one of at least this many samples: of fewer, a few broken ones in a row would exceed it."""


@dataclass(frozen=True, slots=True)
class SkipLimit:
    """A number of samples, a share of them, or None: not all of them."""

    limit: int | float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.limit, float):
            if not 0 <= self.limit <= 1:
                raise ValueError(
                    f"max_skipped is {self.limit}; as a float it is a share of the samples, between 0.0 and 1.0. Pass "
                    "an integer for a number of samples."
                )
        elif self.limit is not None:
            check_integer("max_skipped", self.limit)

    @property
    def allows_all(self) -> bool:
        """True if an epoch may be empty because everything in it is skipped."""
        return isinstance(self.limit, float) and self.limit == ALL

    def is_exceeded(self, skipped: int, tried: int) -> bool:
        """True if ``skipped`` of the ``tried`` samples are too many."""
        if self.limit is None:
            return skipped == tried >= LEAST_SAMPLES
        if isinstance(self.limit, float):
            return skipped > self.limit * max(tried, LEAST_SAMPLES)
        return skipped > self.limit

    def __str__(self) -> str:
        return "" if self.limit is None else f", more than max_skipped={self.limit!r}"


class SkipLog:
    """Which items were skipped, by any process on this machine: one line each in a temporary file.

    Copies in workers write to the same file. A copy that is unpickled where the file does not exist, such as on
    another machine, starts its own. The process that made the file removes it when the log is no longer used.
    """

    def __init__(self) -> None:
        try:
            descriptor, self._path = tempfile.mkstemp(prefix="midepoch-skipped-", suffix=".jsonl")
        except OSError as error:
            raise OSError(
                f"on_error='skip' writes skipped samples to a temporary file, which cannot be created: {error}. Set "
                "TMPDIR to a folder that can be written to."
            ) from error
        os.close(descriptor)
        weakref.finalize(self, _remove, self._path, os.getpid())

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._path,)

    def __deepcopy__(self, _: dict[int, Any]) -> "SkipLog":
        return self

    def add(self, epoch: int, where: str, error: Exception) -> None:
        """Write an item. A failed write is logged and does not stop the run."""
        line = json.dumps({"epoch": epoch, "where": where, "error": _summary(error), "process": os.getpid()})
        try:
            with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_APPEND), "ab", buffering=0) as file:
                file.write(line.encode() + b"\n")  # one write in append mode does not mix with others
        except OSError as failed:
            log.warning(
                "metrics() will miss a skipped sample, which cannot be written down: %s. It is %s: %s",
                failed,
                where,
                _summary(error),
            )

    def lines(self, process: int | None = None) -> list[dict[str, Any]]:
        """What was skipped, by one process or by all, each item of an epoch once and in the order of writing."""
        skipped: list[dict[str, Any]] = []
        with contextlib.suppress(FileNotFoundError), open(self._path, encoding="utf-8") as file:
            for line in file:
                with contextlib.suppress(ValueError):  # a full disk leaves an incomplete line
                    skipped.append(json.loads(line))
        once: dict[tuple[int, str], dict[str, Any]] = {}
        for item in skipped:
            if item.pop("process", None) == process or process is None:
                once[item["epoch"], item["where"]] = item
        return list(once.values())


def _reopen(path: str) -> SkipLog:
    """A log on the same file, which its first owner removes; on a new file where that does not exist."""
    if not os.path.exists(path):
        return SkipLog()
    reopened = object.__new__(SkipLog)
    reopened._path = path
    return reopened


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked process must not remove it
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _summary(error: Exception) -> str:
    """The error, and the file that it is about if a note names one."""
    named = [note.removeprefix("midepoch: ") for note in getattr(error, "__notes__", ()) if note.startswith(FILE_NOTE)]
    return "; ".join([f"{type(error).__name__}: {error}"[:500], *named[-1:]])


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipErrors(ChoosingStage):
    """Call a function on each item. With a ``skip_log``, items on which it fails are left out and logged."""

    skip_log: SkipLog | None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What a state remembers of the function besides its name."""
    limit: SkipLimit = field(default_factory=SkipLimit)
    """How many of the items of a lane may be left out."""

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        outputs = self._outputs(inputs.as_single_items(), context)
        return replace(inputs.with_single_items(outputs), schema=None)

    def _outputs(self, inputs: Iterator[SingleItem], context: Context) -> Iterator[SingleItem]:
        tried = skipped = 0
        first = ""
        for item, cursor, key in inputs:
            tried += 1
            try:
                result = self.call(item, key, context)
            except Exception as error:
                if self.skip_log is None or _is_of_the_machine(error):
                    raise
                if self.checks:
                    raise rejected_row(self.name, context.name(key)) from error
                skipped += 1
                where = context.name_row(self.call.number, key).removeprefix(", at ") or f"item {key}"
                self.skip_log.add(context.epoch, where, error)
                first = first or f"{where}: {_summary(error)}"
                if self.limit.is_exceeded(skipped, tried):
                    raise _too_many(f"{skipped:,} of {count('sample', tried)}{self.limit}", first) from error
                if skipped <= LOGGED_PER_LANE:
                    log.warning("A broken sample is skipped: %s: %s", where, _summary(error))
                continue
            yield result, cursor, key
        if skipped:
            log.warning(
                "Skipped %s, of %s of a lane, in epoch %s; metrics() names them.",
                count("broken sample", skipped),
                count("sample", tried),
                context.epoch,
            )

    @property
    def may_skip(self) -> bool:  # type: ignore[override]
        return self.skip_log is not None

    @property
    def leaves_out(self) -> bool:
        return self.may_skip

    def why_empty(self, epoch: int, process: int | None) -> MidepochError | None:
        if self.skip_log is None or self.limit.allows_all:
            return None
        lines = [line for line in self.skip_log.lines(process) if line["epoch"] == epoch]
        if not lines:
            return None
        skipped = f"{count('sample', len(lines))}, and nothing is left in epoch {epoch}"
        return _too_many(skipped, f"{lines[0]['where']}: {lines[0]['error']}")

    def for_survey(self) -> Self:
        return replace(self, limit=SkipLimit(ALL))  # what is left is counted, so nothing has to be guarded

    def describe(self) -> dict[str, Any] | None:
        # Only a folder is chosen by the row's number, and the folders of files are not part of a checkpoint.
        call = replace(self.call, with_indices=False)
        return call.describe(**self.parameters, on_error="skip" if self.skip_log is not None else None)


def _too_many(skipped: str, first: str) -> TooManySkippedError:
    return TooManySkippedError(
        f"Broken samples were skipped: {skipped}. The first is {first}. Usually something is wrong with all of them: a "
        "folder that is not mounted, a data_folder= that is another one, or the processor. If that many samples may be "
        "left out, pass a larger max_skipped=; 1.0 allows everything."
    )


def _is_of_the_machine(error: BaseException | None) -> bool:
    """True if an error says nothing about the sample: a library, memory or a connection is missing."""
    if error is None:
        return False
    if isinstance(error, MissingExtraError | MemoryError | ConnectionError | TimeoutError | StoreError):
        return True
    if isinstance(error, OSError) and error.errno is not None and error.errno not in FILE_ERRORS:
        return True
    return _is_of_the_machine(error.__cause__)
