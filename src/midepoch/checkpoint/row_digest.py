"""The digest of what an epoch has delivered so far: for each lane, a sum of 64-bit hashes that no order changes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from midepoch.checkpoint.migrations import shortened

LaneSums = tuple[int, ...]
"""For each lane, the sum of the hashes of what it has delivered, modulo 2**64."""
NOT_KEPT = "not kept"
ONE_RANK = "one rank"
CHANGED = "changed"
WHY_UNKNOWN = {
    NOT_KEPT: "a state was loaded from a run that did not keep it",
    ONE_RANK: "the state that was loaded holds the digest of one rank of several: save gather_state(loader), or load "
    "merge_states of the states of all ranks",
    CHANGED: "files were appended, or rows were left out of filters or packs, since the epoch began",
}
"""What keeps the digest of an epoch from being known, and what to do. The next epoch has one again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDigest:
    """The digest of an epoch, as a state holds it."""

    sums: LaneSums = ()
    """What all ranks delivered before this session."""
    own: LaneSums = ()
    """What one of several ranks delivered in this session; empty if it delivered nothing, or is the only one."""
    rank: int = 0
    ranks: int = 1
    unknown: str | None = None
    """What keeps it from being known: a key of ``WHY_UNKNOWN``."""

    @classmethod
    def of_session(cls, start: "RowDigest", own: LaneSums, rank: int, ranks: int) -> "RowDigest":
        """The digest after a rank delivered something in a session that began at ``start``."""
        if start.unknown is not None or not any(own):
            return replace(start, own=())
        if ranks == 1:
            return cls(sums=added(start.sums, own))
        return cls(sums=start.sums, own=own, rank=rank, ranks=ranks)

    def at_start(self) -> "RowDigest":
        """The digest where a new session begins."""
        return RowDigest(unknown=ONE_RANK) if self.own else self

    @property
    def total(self) -> int:
        """What this rank delivered; for the first rank also what all delivered before, so that ranks add up."""
        before = sum(self.sums) if self.rank == 0 else 0
        return (before + sum(self.own)) % (1 << 64)

    def write(self) -> dict[str, Any]:
        """Plain values."""
        if self.unknown is not None:
            return {"unknown": self.unknown}
        values: dict[str, Any] = {"sums": [*map(_hex, self.sums)]}
        if self.own:
            values |= {"own": [*map(_hex, self.own)], "rank": self.rank, "ranks": self.ranks}
        return values

    @classmethod
    def read(cls, values: Any, lanes: int | None) -> "RowDigest":
        """Read a digest back. Raises ``ValueError`` if no run can have written it."""
        if not isinstance(values, Mapping):
            raise ValueError(f"expected a digest, got {shortened(values)}")
        if "unknown" in values:
            if values["unknown"] not in WHY_UNKNOWN:
                raise ValueError(f"no digest is unknown because of {shortened(values['unknown'])}")
            return cls(unknown=str(values["unknown"]))
        sums, own = _read_sums(values["sums"], lanes), _read_sums(values.get("own", ()), lanes)
        rank, ranks = values.get("rank", 0), values.get("ranks", 1)
        if type(rank) is not int or type(ranks) is not int or not 0 <= rank < ranks or (own and ranks == 1):
            raise ValueError(f"there is no rank {shortened(rank)} of {shortened(ranks)}")
        return cls(sums=sums, own=own, rank=rank, ranks=ranks)


def added(first: LaneSums, second: LaneSums) -> LaneSums:
    """The sums of both."""
    return tuple((one + other) % (1 << 64) for one, other in zip(first, second, strict=True))


def merge_digests(digests: Sequence[RowDigest | None]) -> RowDigest | None:
    """The digest of all ranks of a session; None if none of them keeps one."""
    if all(digest is None for digest in digests):
        return None
    known = [digest for digest in digests if digest is not None and digest.unknown is None]
    if len(known) < len(digests):
        reasons = [digest.unknown for digest in digests if digest is not None and digest.unknown is not None]
        return RowDigest(unknown=reasons[0] if reasons else NOT_KEPT)
    begun = {digest.rank: digest for digest in known if digest.own}
    if not begun:
        return known[0]
    ranks = next(iter(begun.values())).ranks
    idle = sum(not digest.own for digest in known)
    before = {digest.sums for digest in known if digest.sums}  # a rank that has not begun its epoch has none
    if len(before) > 1 or len(begun) + idle < ranks:
        return RowDigest(unknown=ONE_RANK)
    sums = before.pop()
    for digest in begun.values():
        sums = added(sums, digest.own)
    return RowDigest(sums=sums)


def _hex(value: int) -> str:
    return f"{value:016x}"


def _read_sums(values: Any, lanes: int | None) -> LaneSums:
    if not isinstance(values, list | tuple) or (values and len(values) != lanes):
        raise ValueError(f"expected a sum for each of {lanes} lanes, got {shortened(values)}")
    if any(not isinstance(value, str) or not re.fullmatch("[0-9a-f]{16}", value) for value in values):
        raise ValueError(f"expected sums of 16 hexadecimal digits, got {shortened(values)}")
    return tuple(int(value, 16) for value in values)
