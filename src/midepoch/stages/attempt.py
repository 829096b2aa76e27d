"""A function of each item whose failures may be passed over: always the same ones, so that a resume stays exact."""

import json
import logging
import os
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from midepoch.deal import Cursor
from midepoch.errors import MissingExtraError
from midepoch.stages.flow import Context, Flow, Step
from midepoch.stages.stage import Call

log = logging.getLogger("midepoch")

TOLD = 3


class SkipLog:
    """Which items were passed over, by any process on this machine: a line each in a temporary file."""

    def __init__(self) -> None:
        descriptor, self._path = tempfile.mkstemp(prefix="midepoch-skipped-", suffix=".jsonl")
        os.close(descriptor)
        weakref.finalize(self, _remove, self._path, os.getpid())

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._path,)

    def add(self, epoch: int, where: str, error: Exception) -> None:
        """Note an item; one short write in append mode is not torn by others."""
        line = json.dumps({"epoch": epoch, "where": where, "error": f"{type(error).__name__}: {error}"[:500]})
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode() + b"\n")
        finally:
            os.close(descriptor)

    def lines(self) -> list[dict[str, Any]]:
        """What was noted, each item of an epoch once."""
        try:
            with open(self._path) as file:
                noted = [json.loads(line) for line in file]
        except FileNotFoundError:
            return []
        return list({(one["epoch"], one["where"]): one for one in noted}.values())


def _again(path: str) -> SkipLog:
    """The same file, in another process, which does not remove it."""
    again = object.__new__(SkipLog)
    again._path = path
    return again


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner and os.path.exists(path):
        os.unlink(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One item in, one out, or none where the function fails and ``skips`` is there to note it."""

    call: Call
    skips: SkipLog | None
    splits: ClassVar[bool] = False

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        """Each item's result, computed when it is asked for."""
        return inputs.one_by_one(self._steps(inputs.steps(), context))

    def _steps(self, steps: Iterator[Step], context: Context) -> Iterator[Step]:
        met = skipped = 0
        for item, end, key in steps:
            met += 1
            try:
                result = self.call(item, key, context)
            except (MissingExtraError, MemoryError):
                raise
            except Exception as error:
                if self.skips is None:
                    raise
                skipped += 1
                where = context.name_row(self.call.number, key).removeprefix(", at ") or f"item {key}"
                self.skips.add(context.epoch, where, error)
                if skipped <= TOLD:
                    log.warning("A broken sample is left out: %s: %s: %s", where, type(error).__name__, error)
                continue
            yield result, end, key
        if skipped:
            log.warning("%s of %s samples were broken and left out in epoch %s.", skipped, met, context.epoch)

    def count(self, inputs: int) -> int | None:
        """As many, unless some may be left out."""
        return inputs if self.skips is None else None

    def describe(self) -> dict[str, Any] | None:
        """The function, and whether its failures are left out."""
        return self.call.describe(on_error="skip" if self.skips is not None else None)
