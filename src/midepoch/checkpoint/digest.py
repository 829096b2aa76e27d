"""The digest of what an epoch has delivered so far: for each lane, a sum of 64-bit hashes that no order changes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from midepoch._common.checks import shortened

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


UNKNOWN = "unknown:"
WRITTEN = re.compile(
    r"(?P<sums>([0-9a-f]{16}(,[0-9a-f]{16})*)?)"
    r"(\+(?P<own>[0-9a-f]{16}(,[0-9a-f]{16})*)/(?P<rank>[0-9]{1,9})/(?P<ranks>[0-9]{1,9}))?"
)


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

    def write(self) -> str:
        """One value, so that a checkpoint that restores only the keys it knows restores all of it or nothing.

        Sums are hexadecimal, one for each lane: "0f…,91…" for all ranks; "0f…,91…+07…,a2…/1/4" with what rank 1 of 4
        delivered since; "unknown:one rank" if it is not known.
        """
        if self.unknown is not None:
            return f"{UNKNOWN}{self.unknown}"
        sums = _write_sums(self.sums)
        return f"{sums}+{_write_sums(self.own)}/{self.rank}/{self.ranks}" if self.own else sums

    @classmethod
    def read(cls, text: Any, lanes: int | None) -> "RowDigest":
        """Read a digest back. Raises ``ValueError`` if no run can have written it."""
        for reason in WHY_UNKNOWN:
            if text == f"{UNKNOWN}{reason}":
                return cls(unknown=reason)
        parts = WRITTEN.fullmatch(text) if isinstance(text, str) else None
        if parts is None:
            raise ValueError(f"expected a digest, got {shortened(text)}")
        sums, own = _read_sums(parts["sums"], lanes), _read_sums(parts["own"] or "", lanes)
        rank, ranks = int(parts["rank"] or 0), int(parts["ranks"] or 1)
        if rank >= ranks or (own and ranks == 1):
            raise ValueError(f"there is no rank {rank} of {ranks}")
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


def _write_sums(sums: LaneSums) -> str:
    return ",".join(f"{value:016x}" for value in sums)


def _read_sums(text: str, lanes: int | None) -> LaneSums:
    sums = tuple(int(value, 16) for value in text.split(",")) if text else ()
    if sums and len(sums) != lanes:
        raise ValueError(f"expected a sum for each of {lanes} lanes, got {len(sums)}")
    return sums
