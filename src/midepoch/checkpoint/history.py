"""What a state remembers of the sessions before it: how many ranks read from which turn on, and with which batch size.

Nothing of it is needed to resume. It says which rank got which item at which step, also of earlier parts of a run, and
which ranks had finished an epoch when states are merged.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from midepoch._common.checks import shortened

MOST_SESSIONS = 64
"""How many sessions a state remembers. Only those that differ from the one before are listed."""
MOST_RANKS = 1 << 20
"""More ranks, readers or lanes than any cluster has; a state that names more is damaged."""
MODES = ("example", "file")


class SessionRecord(NamedTuple):
    """A session, and those after it that had as many ranks, the same lanes and the same batch size."""

    epoch: int
    lanes: int
    turn: int
    """The turn of the epoch at which it started."""
    ranks: int
    item_rows: int
    mode: Literal["example", "file"] = "example"
    balanced: int = 0
    """The number of items of a global step whose costs ranks shared evenly; 0 if they took turns."""

    def write(self) -> list[int]:
        """Plain values."""
        return [*self[:5], MODES.index(self.mode), *([self.balanced] if self.balanced else [])]

    def starts_like(self, other: "SessionRecord") -> bool:
        """True if only the epoch and the turn differ."""
        return self._replace(epoch=0, turn=0) == other._replace(epoch=0, turn=0)


History = tuple[SessionRecord, ...]


def read_history(value: Any) -> History:
    """Read a history back. Raises ``ValueError`` if no run can have written it."""
    if not isinstance(value, list | tuple) or len(value) > MOST_SESSIONS:
        raise ValueError(f"expected at most {MOST_SESSIONS} sessions")
    records = []
    for entry in value:
        numbers = list(entry)
        if len(numbers) not in (6, 7) or any(type(one) is not int or not 0 <= one < 1 << 62 for one in numbers):
            raise ValueError(f"expected six or seven numbers for a session, got {shortened(entry)}")
        epoch, lanes, turn, ranks, item_rows, mode, *steps = numbers
        possible = min(lanes, ranks, item_rows, *steps) >= 1 and max(lanes, ranks) <= MOST_RANKS and mode < len(MODES)
        if not possible or any(step % ranks for step in steps):
            raise ValueError(f"no session is like {numbers}")
        records.append(SessionRecord(epoch, lanes, turn, ranks, item_rows, "file" if mode else "example", *steps))
    starts = [(record.epoch, record.turn) for record in records]
    if starts != sorted(set(starts)):
        raise ValueError("its sessions are not in order")
    return tuple(records)


def remember(history: Sequence[SessionRecord], record: SessionRecord) -> History:
    """The history once a session has started. It is empty if the beginning of the epoch is not known.

    A session continues the one before it if it has the same ranks, unless they share costs: then steps begin with it.
    """
    earlier = [one for one in history if (one.epoch, one.turn) < (record.epoch, record.turn)]
    if record.turn == 0:
        return tuple(earlier) if earlier and earlier[-1].starts_like(record) else (*earlier, record)[-MOST_SESSIONS:]
    if not earlier or (earlier[0].epoch == record.epoch and earlier[0].turn > 0):
        return ()
    last = earlier[-1]
    if (last.lanes, last.mode) != (record.lanes, record.mode):
        return ()
    if last.starts_like(record) and not record.balanced:
        return tuple(earlier)
    return (*earlier, record)[-MOST_SESSIONS:]


def sessions_of(history: Sequence[SessionRecord], epoch: int) -> list[SessionRecord] | None:
    """The sessions of an epoch, the first from its beginning; None if the history does not have its beginning."""
    own = [record for record in history if record.epoch == epoch]
    if own and own[0].turn == 0:
        return own
    before = [record for record in history if record.epoch < epoch]
    return [before[-1]._replace(epoch=epoch, turn=0), *own] if before else None
