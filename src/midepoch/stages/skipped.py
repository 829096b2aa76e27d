"""A check that a resume forms the group under way from the same inputs, where a stage before it may skip some.

A group of inputs is formed again at a resume. If an input failed and was skipped before the checkpoint and works now,
or the other way round, the group would be another one, and outputs would be repeated or lost. So the last number of a
cursor inside a group holds, above the outputs delivered, a check of the inputs that were skipped in the group. A state
without a check, from an older version, is resumed without it.
"""

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np

from midepoch._common.hashing import key_of
from midepoch._common.types import I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from midepoch.stages.flow import Context, Flow, SingleItem

log = logging.getLogger("midepoch")

CHECK_SHIFT = 32
MODULUS = (1 << 30) - 1
NAMED = 3


def delivered_of(number: int) -> int:
    """The outputs delivered, from the last number of a group's cursor."""
    return number & ((1 << CHECK_SHIFT) - 1)


class SkippedInputs:
    """The keys of the inputs that a stage skipped since they were last taken, once somebody asks for them."""

    def __init__(self) -> None:
        self._keys: list[int] = []
        self.is_watched = False

    def add(self, key: int) -> None:
        if self.is_watched:
            self._keys.append(key)

    def take(self) -> list[int]:
        """The keys, which are then forgotten."""
        keys, self._keys = self._keys, []
        return keys


class GroupChecks:
    """For one stage that makes groups: what was skipped before each of its inputs."""

    def __init__(self, skipped: SkippedInputs | None) -> None:
        self._skipped = skipped
        self._before: deque[list[int]] = deque()
        """Of each input that is read and in no group yet, the keys skipped just before it."""
        self._left: list[int] = []
        """Keys that are skipped after the last input that was read."""
        if skipped is not None:
            skipped.is_watched = True

    def watch(self, inputs: "Iterator[SingleItem]") -> "Iterator[SingleItem]":
        """The same inputs."""
        for single in inputs:
            self._before.append(self._take_left())
            yield single

    def mark(self, cursors: I64, inputs: int, size: int) -> None:
        """Add the check to the cursors after the outputs of the next group of ``inputs`` inputs."""
        if self._skipped is not None:
            keys = list(chain.from_iterable(self._before.popleft() for _ in range(inputs)))
            if inputs < size:  # the last group of a lane ends where the lane does
                keys += self._take_left()
            cursors[:-1, -1] += _check_of(keys) << CHECK_SHIFT

    def of_each(self, inputs: int) -> I64:
        """What the check adds to a cursor inside each of the next inputs."""
        if self._skipped is None:
            return np.zeros(inputs, np.int64)
        return np.array([_check_of(self._before.popleft()) << CHECK_SHIFT for _ in range(inputs)], np.int64)

    def resume(self, inputs: "Iterator[SingleItem]", check: int, size: int) -> "tuple[list[SingleItem], int | None]":
        """The inputs of the first group, and the key of one that works now but was skipped then, if there is one.

        Raises ``LookupError`` if the group cannot be the one of the check.
        """
        first = list(islice(inputs, size))
        if _check_of(self._seen(len(first) < size)) == check:
            return first, None
        first += islice(inputs, 1)
        # One more input was skipped then. Without it, and with the one after the group, the check must be right.
        missing = (check - _check_of(self._seen(len(first) <= size))) % MODULUS
        for number, (_, _, key) in enumerate(first):
            if _hash_of(key) == missing:
                self._skip(number, key)
                return first[:number] + first[number + 1 :], key
        raise LookupError

    def skipped_so_far(self) -> list[int]:
        """The keys skipped before, among and after the inputs that are in no group yet."""
        return self._seen(at_end=True)

    def _seen(self, at_end: bool) -> list[int]:
        if at_end:
            self._left = self._take_left()
        return [*chain.from_iterable(self._before), *(self._left if at_end else ())]

    def _skip(self, number: int, key: int) -> None:
        """Count an input that was read as skipped."""
        keys = [*self._before[number], key]
        del self._before[number]
        if number < len(self._before):
            self._before[number][:0] = keys
        else:
            self._left[:0] = keys

    def _take_left(self) -> list[int]:
        keys = self._left + (self._skipped.take() if self._skipped is not None else [])
        self._left = []
        return keys


def check_groups(
    inputs: "Flow", cursor: Cursor, size: int, stage: int, context: "Context"
) -> "tuple[Flow, Cursor, GroupChecks]":
    """The inputs of a stage from a cursor on, the cursor without its check, and the checks of the groups to come.

    The first group has the inputs that it had when the cursor was saved. If one of them was skipped then and works now,
    it stays skipped. Any other difference raises CheckpointMismatchError. ``stage`` is the number of the stage.
    """
    checks = GroupChecks(inputs.skipped)
    if inputs.skipped is None:
        return inputs, cursor, checks
    watched = checks.watch(inputs.as_single_items())
    check, plain = cursor[-1] >> CHECK_SHIFT, (*cursor[:-1], delivered_of(cursor[-1]))
    if check:
        try:
            first, recovered = checks.resume(watched, check, size)
        except LookupError:
            raise _other_group(checks.skipped_so_far(), stage, context) from None
        if recovered is not None:
            log.warning(
                "A sample that failed before the checkpoint works now: %s. It stays skipped in this epoch, because the "
                "checkpoint is inside a group that was made without it.",
                _name(recovered, stage, context),
            )
        watched = chain(first, watched)
    return replace(inputs.with_single_items(watched), skipped=None), plain, checks


def _other_group(keys: list[int], stage: int, context: "Context") -> CheckpointMismatchError:
    names = ", ".join(_name(key, stage, context) for key in keys[:NAMED]) or "none"
    more = f" and {len(keys) - NAMED:,} more" if len(keys) > NAMED else ""
    return CheckpointMismatchError(
        "The checkpoint is inside a group of samples, such as a window of packs, and now other samples are skipped as "
        f"broken than when that group was made. Skipped now: {names}{more}. Resuming would repeat or lose samples. If "
        "these samples were readable then, make them readable again (a missing file, library or mount). Else resume "
        "from another checkpoint, or start the epoch over without the state."
    )


def _name(key: int, stage: int, context: "Context") -> str:
    return context.name_row(stage, key, single=True).removeprefix(", at ") or f"item {key}"


def _hash_of(key: int) -> int:
    return key_of("skipped", key) % MODULUS


def _check_of(keys: list[int]) -> int:
    """A sum, so that one key that is missing from it can be found. Never 0, which means that there is no check."""
    return 1 + sum(map(_hash_of, keys)) % MODULUS
