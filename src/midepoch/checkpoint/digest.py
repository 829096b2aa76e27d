"""The digest of what an epoch has delivered so far: the sum of 64-bit hashes, which does not depend on their order."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from midepoch._common.checks import shortened

WORD = 1 << 64
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
WRITTEN = re.compile(r"(?P<before>[0-9a-f]{16})(\+(?P<own>[0-9a-f]{16})/(?P<rank>[0-9]{1,9})/(?P<ranks>[0-9]{1,9}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDigest:
    """The digest of an epoch, as a state holds it. Sums are modulo 2**64."""

    before: int = 0
    """The sum of what all ranks delivered before this session."""
    own: int = 0
    """What one of several ranks delivered in this session; 0 if it delivered nothing, or is the only one."""
    rank: int = 0
    ranks: int = 1
    unknown: str | None = None
    """What keeps it from being known: a key of ``WHY_UNKNOWN``."""

    def after(self, own: int, rank: int, ranks: int) -> "RowDigest":
        """The digest after a rank delivered something in a session that began at this one."""
        if self.unknown is not None or own == 0:
            return self
        if ranks == 1:
            return RowDigest(before=(self.before + own) % WORD)
        return replace(self, own=own, rank=rank, ranks=ranks)

    def at_start(self) -> "RowDigest":
        """The digest where a new session begins."""
        return RowDigest(unknown=ONE_RANK) if self.own else self

    @property
    def total(self) -> int:
        """What this rank delivered; for the first rank also what all delivered before, so that ranks add up."""
        return (self.own + (self.before if self.rank == 0 else 0)) % WORD

    def write(self) -> str:
        """One value, so that a checkpoint that restores only the keys it knows restores all of it or nothing.

        Sums are hexadecimal: "0f…" for all ranks; "0f…+07…/1/4" with what rank 1 of 4 delivered since;
        "unknown:one rank" if it is not known.
        """
        if self.unknown is not None:
            return f"{UNKNOWN}{self.unknown}"
        return f"{self.before:016x}" + (f"+{self.own:016x}/{self.rank}/{self.ranks}" if self.own else "")

    @classmethod
    def read(cls, text: Any) -> "RowDigest":
        """Read a digest back. Raises ``ValueError`` if no run can have written it."""
        for reason in WHY_UNKNOWN:
            if text == f"{UNKNOWN}{reason}":
                return cls(unknown=reason)
        parts = WRITTEN.fullmatch(text) if isinstance(text, str) else None
        if parts is None:
            raise ValueError(f"expected a digest, got {shortened(text)}")
        rank, ranks = int(parts["rank"] or 0), int(parts["ranks"] or 1)
        if rank >= ranks or (parts["own"] and ranks == 1):
            raise ValueError(f"there is no rank {rank} of {ranks}")
        return cls(before=int(parts["before"], 16), own=int(parts["own"] or "0", 16), rank=rank, ranks=ranks)


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
    before = {digest.before for digest in known}
    if len(before) > 1 or len(begun) + idle < ranks:
        return RowDigest(unknown=ONE_RANK)
    return RowDigest(before=(before.pop() + sum(digest.own for digest in begun.values())) % WORD)
