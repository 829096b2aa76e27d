"""States of older releases, upgraded one version at a time, so that they load for ever.

A change that an older release would misread gets a new ``VERSION`` and the one function that upgrades states of the
version before it. Functions that are there are never changed: released states depend on them.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from midepoch.errors import CheckpointMismatchError

VERSION = 1
"""The version of the states that this release writes."""

MIGRATIONS: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""For each older version, the function that returns a state of it as one of the next version."""


def upgrade(values: Any) -> dict[str, Any]:
    """The state as one of the present version. The argument is not changed.

    Everything that reads the keys of a state, its fingerprint included, reads them from this.
    """
    if not isinstance(values, Mapping) or "version" not in values:
        raise CheckpointMismatchError(
            f"This is not a midepoch state: expected a dict with the key 'version', got {shortened(values)}. "
            "Pass what state_dict() returned."
        )
    version = values["version"]
    if type(version) is not int or not 1 <= version <= VERSION:
        raise _unreadable(version)
    upgraded = dict(values)
    if version < VERSION:
        upgraded = copy.deepcopy(upgraded)
    for old in range(version, VERSION):
        migrate = MIGRATIONS[old]
        try:
            upgraded = {**migrate(upgraded), "version": old + 1}
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise CheckpointMismatchError(
                f"The state of version {version} is damaged ({type(error).__name__}: {error}). "
                "Load an earlier checkpoint."
            ) from error
    return upgraded


def _unreadable(version: Any) -> CheckpointMismatchError:
    readable = "version 1" if VERSION == 1 else f"versions 1 to {VERSION}"
    if type(version) is int and version > VERSION:
        remedy = "A newer release wrote it: install that release, or a later one."
    else:
        remedy = "There is no such version, so the state is damaged: load an earlier checkpoint."
    return CheckpointMismatchError(
        f"The state has version {shortened(version)}; this midepoch reads {readable}. {remedy}"
    )


def shortened(value: Any) -> str:
    """The value for an error message, at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
