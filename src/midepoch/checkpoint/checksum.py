"""A state's checksum, so that a state that was changed after it was saved is refused and not misread.

It covers every key that midepoch reads. Keys that front doors and frameworks add may be changed or dropped. It does not
depend on the order of keys, and not on whether a list is a list, a tuple or an array.
"""

import json
from collections.abc import Mapping, Sequence
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
