"""A function of each item whose failures may be passed over: always the same ones, so that a resume stays exact."""

import contextlib
import errno
import json
import logging
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import MissingExtraError, StoreError
from midepoch.stages.flow import Context, Emitted, Flow
from midepoch.stages.stage import FunctionStage

log = logging.getLogger("midepoch")

TOLD = 3
# What says that a file is not as it should be. Any other failure of the system may be over the next time, and a sample
# that is left out today and not tomorrow would make other packs.
OF_THE_FILE = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


class SkipLog:
    """Which items were passed over, by any process on this machine: a line each in a temporary file.

    The process that made it removes the file, when nobody has the log any more or at the end. Copies in workers write
    to the same file; one that is unpickled where the file is not, such as on another machine, begins its own.
    """

    def __init__(self) -> None:
        try:
            descriptor, self._path = tempfile.mkstemp(prefix="midepoch-skipped-", suffix=".jsonl")
        except OSError as error:
            raise OSError(
                f"on_error='skip' notes broken samples in a temporary file, which cannot be made: {error}. Set TMPDIR "
                "to a folder that can be written to."
            ) from error
        os.close(descriptor)
        weakref.finalize(self, _remove, self._path, os.getpid())

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._path,)

    def __deepcopy__(self, _: dict[int, Any]) -> "SkipLog":
        return self

    def add(self, epoch: int, where: str, error: Exception) -> None:
        """Note an item. One write in append mode is not torn by others; if it fails, that is no reason to stop."""
        line = json.dumps({"epoch": epoch, "where": where, "error": _told(error)})
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(descriptor, line.encode() + b"\n")
            finally:
                os.close(descriptor)
        except OSError as failed:
            log.warning("A broken sample cannot be noted for metrics(): %s. It is %s: %s", failed, where, _told(error))

    def lines(self) -> list[dict[str, Any]]:
        """What was noted, each item of an epoch once."""
        noted = []
        with contextlib.suppress(FileNotFoundError), open(self._path, encoding="utf-8") as file:
            for line in file:
                with contextlib.suppress(ValueError):  # cut short where the disk was full
                    noted.append(json.loads(line))
        return list({(one["epoch"], one["where"]): one for one in noted}.values())


def _again(path: str) -> SkipLog:
    """The same file, which whoever made it removes; a new one where it is not there."""
    if not os.path.exists(path):
        return SkipLog()
    again = object.__new__(SkipLog)
    again._path = path
    return again


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # and not a process forked from it
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(FunctionStage):
    """One item in, one out, or none where the function fails and ``skips`` is there to note it."""

    skips: SkipLog | None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What a state remembers of the function besides its name."""

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        """Each item's result, computed when it is asked for."""
        return replace(inputs.one_by_one(self._steps(inputs.each(), context)), schema=None)

    def _steps(self, steps: Iterator[Emitted], context: Context) -> Iterator[Emitted]:
        met = skipped = 0
        for item, end, key in steps:
            met += 1
            try:
                result = self.call(item, key, context)
            except Exception as error:
                if self.skips is None or _is_of_the_machine(error):
                    raise
                skipped += 1
                where = context.name_row(self.call.number, key).removeprefix(", at ") or f"item {key}"
                self.skips.add(context.epoch, where, error)
                if skipped <= TOLD:
                    log.warning("A broken sample is left out: %s: %s", where, _told(error))
                continue
            yield result, end, key
        if skipped:
            log.warning(
                "%s of the last %s samples of a lane were broken and left out in epoch %s; metrics() tells which.",
                f"{skipped:,}",
                f"{met:,}",
                context.epoch,
            )

    def count(self, inputs: int) -> int | None:
        return inputs if self.skips is None else None

    def describe(self) -> dict[str, Any] | None:
        """The function, and whether its failures are left out."""
        return self.call.describe(**self.parameters, on_error="skip" if self.skips is not None else None)


def _is_of_the_machine(error: BaseException | None) -> bool:
    """Whether a failure says nothing about the sample: a library, memory or connection that is missing."""
    if error is None:
        return False
    if isinstance(error, MissingExtraError | MemoryError | ConnectionError | TimeoutError | StoreError):
        return True
    if isinstance(error, OSError) and error.errno is not None and error.errno not in OF_THE_FILE:
        return True
    return _is_of_the_machine(error.__cause__)
