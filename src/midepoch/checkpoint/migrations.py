"""States of older releases, upgraded one version at a time, so that they can always be loaded.

A change that an older release would misread gets a new ``VERSION`` and the one function that upgrades states of the
version before it. Functions that are there are never changed: released states depend on them.
"""

import copy
import os
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from midepoch.checkpoint.checksum import check_checksum
from midepoch.errors import CheckpointMismatchError

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
