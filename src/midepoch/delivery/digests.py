"""What the digest of an epoch must be, by arithmetic, and whether what was delivered has it. Nothing is read."""

import numpy as np

from midepoch.checkpoint.digest import WHY_UNKNOWN, RowDigest, added
from midepoch.checkpoint.state import State
from midepoch.delivery.passes import Progress
from midepoch.delivery.plan import Plan
from midepoch.delivery.session import AnySession, Session
from midepoch.errors import DigestMismatchError
from midepoch.stages.counted import CountedItems

AT_ONCE = 1 << 16
"""How many keys are computed at a time."""
NAMED = 8
"""How many lanes that differ are named in an error."""


def predicted_digest(plan: Plan, epoch: int) -> int:
    """The digest of a whole epoch, before anything of it is read."""
    if (reason := plan.why_not_counted()) is not None:
        raise ValueError(f"The digest cannot be predicted: {reason}.")
    session = plan.begin(State(epoch=epoch)).session
    _check_ends(session)
    items = [session.lanes.counted(lane, plan.pipeline.begin) for lane in range(len(session.positions))]
    return sum(_sum_of_first(of_lane, of_lane.total()) for of_lane in items) % (1 << 64)


def digest_of(progress: Progress) -> int:
    """The digest of what was delivered of an epoch."""
    return _digest(progress).total


def check_digest(progress: Progress) -> int:
    """The same, if it is that of the rows that should have been delivered. Raises if not, and names the lanes.

    Compares what all ranks had delivered when the session began, and what this rank delivered since.
    """
    session, digest = progress.session, _digest(progress)
    if not isinstance(session, Session):
        reason = session.pipeline.why_not_counted() or "the state holds what one of several readers delivered"
        raise ValueError(f"The digest cannot be checked: {reason}.")
    _check_ends(session)
    assert session.start.digest is not None
    lanes = range(len(session.positions))
    before = [_sum_before(session, lane) for lane in lanes]
    own = _own_sums(session, progress)
    delivered, due = added(session.start.digest.sums, progress.own_sums), added(tuple(before), tuple(own))
    if delivered == due:
        return digest.total
    wrong = [lane for lane in lanes if delivered[lane] != due[lane]]
    when = "since it resumed" if all(before[lane] == session.start.digest.sums[lane] for lane in wrong) else "in all"
    named = ", ".join(map(str, wrong[:NAMED])) + (" …" if len(wrong) > NAMED else "")
    raise DigestMismatchError(
        f"What rank {progress.reader} delivered of epoch {session.start.epoch} {when} is not what it should be: the "
        f"digests of {len(wrong)} of {len(lanes)} lanes differ (lanes {named}). Rows were lost, repeated or exchanged. "
        "Go back to a checkpoint that passes the check, and report this with your pipeline."
    )


def _digest(progress: Progress) -> RowDigest:
    start = progress.session.start
    if start.digest is None:
        raise ValueError("There is no digest: pass digest=True to the Loader.")
    if start.digest.unknown is not None:
        raise ValueError(
            f"The digest of epoch {start.epoch} is not known, because {WHY_UNKNOWN[start.digest.unknown]}."
        )
    own, ranks = progress.own_sums, progress.session.readers
    return RowDigest(sums=start.digest.sums, own=own, rank=progress.reader, ranks=ranks)


def _check_ends(session: AnySession) -> None:
    if session.is_endless:
        raise ValueError("The digest of an epoch that never ends cannot be known: mix(stop='never') starts over.")


def _sum_before(session: Session, lane: int) -> int:
    """The sum of what a lane had delivered when a session began."""
    position = session.positions[lane]
    units, left = (session.lanes.units(lane, cursor) for cursor in (session.pipeline.begin, position.cursor))
    ahead = np.array(position.delivered_ahead, np.int64)
    of_ahead = int(session.lanes.counted(lane, position.cursor).hashes(ahead).sum(dtype=np.uint64)) if len(ahead) else 0
    return (_sum_of_first(units, units.total() - left.total()) + of_ahead) % (1 << 64)


def _own_sums(session: Session, progress: Progress) -> list[int]:
    """For each lane, the sum of what a reader must have delivered since the session began."""
    sums = [0] * len(session.positions)
    for begin in range(0, progress.turns_taken, AT_ONCE):
        turns = np.arange(begin, min(begin + AT_ONCE, progress.turns_taken))
        lanes, ordinals = session.items_at(progress.reader, turns)
        for lane in np.unique(lanes).tolist():
            own = session.lane_items(lane).hashes(ordinals[lanes == lane]).sum(dtype=np.uint64)
            sums[lane] = (sums[lane] + int(own)) % (1 << 64)
    return sums


def _sum_of_first(items: CountedItems, count: int) -> int:
    """The sum of what the first ``count`` items add to a digest."""
    ranges = (np.arange(begin, min(begin + AT_ONCE, count)) for begin in range(0, count, AT_ONCE))
    return sum(int(items.hashes(numbers).sum(dtype=np.uint64)) for numbers in ranges)
