"""What the digest of an epoch must be, by arithmetic, and whether what was delivered has it. Nothing is read."""

from collections.abc import Iterator

import numpy as np

from midepoch._common.hashing import hash_keys
from midepoch._common.types import I64
from midepoch.checkpoint.row_digest import WHY_UNKNOWN, RowDigest, added
from midepoch.checkpoint.state import State
from midepoch.delivery.plan import Plan
from midepoch.delivery.progress import Progress
from midepoch.delivery.session import Session
from midepoch.errors import DigestMismatchError
from midepoch.pipeline.lanes import PipelineLanes
from midepoch.pipeline.ledger import units_in_items, units_of_item
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
    total, groupings = 0, plan.pipeline.groupings
    for lane in range(len(session.positions)):
        units = session.lanes.units(lane, plan.pipeline.begin)
        total += _sum_of_first(units, units_in_items(units.total(), groupings))
    return total % (1 << 64)


def digest_of(progress: Progress) -> int:
    """The digest of what was delivered of an epoch."""
    return _digest(progress).total


def check_digest(progress: Progress) -> int:
    """The same, if it is that of the rows that should have been delivered. Raises if not, and names the lanes.

    Compares what all ranks had delivered when the session began, and what this rank delivered since.
    """
    session, digest = progress.session, _digest(progress)
    if not session.counted:
        reason = session.pipeline.why_not_counted() or "the state holds what one of several readers delivered"
        raise ValueError(f"The digest cannot be checked: {reason}.")
    _check_ends(session)
    assert session.start.digest is not None
    lanes = range(len(session.positions))
    before = [_sum_before(session, lane) for lane in lanes]
    own = _own_sums(progress)
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
    own, ranks = progress.own_sums, progress.session.assignment.readers
    return RowDigest(sums=start.digest.sums, own=own, rank=progress.reader, ranks=ranks)


def _check_ends(session: Session) -> None:
    if session.is_endless:
        raise ValueError("The digest of an epoch that never ends cannot be known: mix(stop='never') starts over.")


def _sum_before(session: Session, lane: int) -> int:
    """The sum of what a lane had delivered when a session began."""
    position = session.positions[lane]
    units, left = (session.lanes.units(lane, cursor) for cursor in (session.pipeline.begin, position.cursor))
    ahead = np.array(position.delivered_ahead, np.int64)
    return (_sum_of_first(units, units.total() - left.total()) + _sum_of_items(session.lanes, left, ahead)) % (1 << 64)


def _own_sums(progress: Progress) -> list[int]:
    """For each lane, the sum of what a reader must have delivered since the session began."""
    session = progress.session
    sums = [0] * len(session.positions)
    for begin in range(0, progress.turns_taken, AT_ONCE):
        turns = np.arange(begin, min(begin + AT_ONCE, progress.turns_taken))
        lanes, ordinals = session.items_at(progress.reader, turns)
        for lane in np.unique(lanes).tolist():
            position = session.positions[lane]
            items = ordinals[lanes == lane]
            if position.delivered_ahead:
                items = np.array([*map(position.offset, items.tolist())], np.int64)
            units = session.lanes.units(lane, position.cursor)
            sums[lane] = (sums[lane] + _sum_of_items(session.lanes, units, items)) % (1 << 64)
    return sums


def _sum_of_items(lanes: PipelineLanes, units: CountedItems, items: I64) -> int:
    """The sum of items, given by their rising numbers."""
    each, total = units_of_item(lanes.pipeline.groupings), 0
    for begin in range(0, len(items), max(1, AT_ONCE // each)):
        here = items[begin : begin + max(1, AT_ONCE // each)]
        numbers = (here[:, None] * each + np.arange(each)).ravel()
        if not units.has(int(numbers[-1])):
            numbers = numbers[numbers < units.total()]
        total += _sum(units, numbers)
    return total


def _sum_of_first(units: CountedItems, count: int) -> int:
    return sum(_sum(units, numbers) for numbers in _ranges(count))


def _ranges(count: int) -> Iterator[I64]:
    for begin in range(0, count, AT_ONCE):
        yield np.arange(begin, min(begin + AT_ONCE, count))


def _sum(units: CountedItems, numbers: I64) -> int:
    return int(hash_keys(units.keys(numbers)).sum(dtype=np.uint64)) if len(numbers) else 0
