"""Versions of states and their checksum: a state of an older release is upgraded, a changed one is refused.

The checksum covers every key that midepoch reads. Keys that front doors and frameworks add may be changed or dropped.
It does not depend on the order of keys, and not on whether a list is a list, a tuple or an array.

A change that an older release would misread gets a new ``VERSION`` and the one function that upgrades states of the
version before it. Functions that are there are never changed: released states depend on them.
"""

import copy
import json
import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from midepoch._common.hashing import digest
from midepoch.errors import CheckpointMismatchError

COVERED = (
    "version",
    "epoch",
    "lanes",
    "mode",
    "turn",
    "item_rows",
    "cursors",
    "part",
    "grown",
    "earlier",
    "later",
    "edits",
    "history",
    "digest",
)
"""The keys that the checksum covers, besides the fingerprint."""
MOST_LEVELS = 100
"""A value that is nested deeper is damaged. Each mixture inside a mixture takes five levels."""

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def signed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The state with the checksum of its present content."""
    covered = {key: _plain(values[key]) for key in COVERED if key in values}
    return {**values, "checksum": checksum(covered, fingerprint_digest(values.get("fingerprint")))}


def checksum(covered: Mapping[str, Any], of_fingerprint: bytes) -> str:
    """The checksum of plain values and the digest of a fingerprint."""
    return digest(_encode(covered).encode(), of_fingerprint).hex()


def fingerprint_digest(fingerprint: Any) -> bytes:
    """What a checksum needs of a fingerprint. A pipeline computes it once."""
    return digest(_encode(_plain(fingerprint)).encode())


def check_checksum(values: Mapping[str, Any]) -> None:
    """Raise if a state is not the one that was saved. One without a checksum, made by hand, passes."""
    try:
        present = signed(values)["checksum"]
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointMismatchError(f"The state is damaged: {error}. Load an earlier checkpoint.") from error
    if "checksum" in values and values["checksum"] != present:
        raise CheckpointMismatchError(
            "The state was changed or damaged after it was saved: its checksum does not fit its content. Load the "
            "state as state_dict() returned it, or an earlier checkpoint."
        )


def _plain(value: Any, level: int = 0) -> Any:
    """The value as JSON has it. Numbers that JSON writers may write in two ways, such as 2 and 2.0, become equal."""
    if level > MOST_LEVELS:
        raise ValueError(f"its values are nested more than {MOST_LEVELS} levels deep")
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {_key(key): _plain(value[key], level + 1) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(one, level + 1) for one in value]
    if hasattr(value, "tolist"):  # scalars and arrays of NumPy and torch
        return _plain(value.tolist(), level + 1)
    raise ValueError(f"it has a value of type {type(value).__name__}")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError(f"it has a key of type {type(key).__name__}")
    return key


VERSION = 1
"""The version of the states that this release writes."""

MIGRATIONS: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""For each older version, the function that returns a state of it as one of the next version."""


def _instead(values: Any) -> str:
    """What to pass instead of something that is not a state."""
    if isinstance(values, str | os.PathLike):
        return "Load the file first: load_state_dict(torch.load(path, weights_only=True))."
    if isinstance(values, list | tuple) and values and all(map(_is_state, values)):
        return "These are states of several ranks: load_state_dict(midepoch.merge_states(states))."
    return "Pass what state_dict() returned."


def upgrade(values: Any) -> dict[str, Any]:
    """The state as one of the present version, if it is as it was saved. The argument is not changed.

    Everything that reads the keys of a state, its fingerprint included, reads them from this.
    """
    if not isinstance(values, Mapping) or "version" not in values:
        inside = [key for key, value in values.items() if _is_state(value)] if isinstance(values, Mapping) else []
        if inside:
            raise CheckpointMismatchError(
                f"This is not a midepoch state, but a dict that holds one under the key {inside[0]!r}. Pass that "
                f"value: load_state_dict(checkpoint[{inside[0]!r}])."
            )
        raise CheckpointMismatchError(
            f"This is not a midepoch state: expected a dict with the key 'version', got {shortened(values)}. "
            + _instead(values)
        )
    version = values["version"]
    if type(version) is not int or not 1 <= version <= VERSION:
        raise _unreadable(version)
    check_checksum(values)
    upgraded = dict(values)
    if version < VERSION:
        upgraded.pop("checksum", None)  # it is that of the old keys
        try:
            upgraded = copy.deepcopy(upgraded)
            for old in range(version, VERSION):
                upgraded = {**MIGRATIONS[old](upgraded), "version": old + 1}
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
            raise CheckpointMismatchError(
                f"The state of version {version} is damaged ({type(error).__name__}: {error}). "
                "Load an earlier checkpoint."
            ) from error
    return upgraded


def _is_state(value: Any) -> bool:
    return isinstance(value, Mapping) and {"version", "fingerprint", "cursors"} <= value.keys()


def _unreadable(version: Any) -> CheckpointMismatchError:
    readable = "version 1" if VERSION == 1 else f"versions 1 to {VERSION}"
    if type(version) is int and version > VERSION:
        remedy = "A newer release wrote it: install that release, or a later one."
    else:
        remedy = "There is no such version, so the state is damaged: load an earlier checkpoint."
    return CheckpointMismatchError(
        f"The state has version {shortened(version)}; this midepoch reads {readable}. {remedy}"
    )


def shortened(value: Any, most: int = 80) -> str:
    """The value for an error message, at most ``most`` characters, however large or deeply nested it is."""
    try:
        text = _short.repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python writes
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= most else text[: most - 3] + "..."


_short = reprlib.Repr()
_short.maxlevel, _short.maxother, _short.maxstring, _short.maxlong = 6, 300, 300, 80
_short.maxdict = _short.maxlist = _short.maxtuple = 20
