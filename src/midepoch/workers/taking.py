"""What a worker makes: the turns that it claims. They are all its own, unless workers steal from each other."""

import time
from collections.abc import Generator, Iterator
from itertools import islice
from math import gcd
from typing import Protocol

from midepoch.delivery.progress import EMPTY, Progress, Turns
from midepoch.delivery.reader import take_turns, turn_by_turn
from midepoch.delivery.session import NO_END

COSTLY_SECONDS = 0.002
"""Turns that take less are not stolen: to open their rows may take longer than to make them."""
OPENING_PART = 1 / 8
"""Nothing is stolen while opening rows elsewhere has taken more than this part of the time of the recent turns."""
CLAIM_SECONDS = 0.02
"""Turns are claimed for about this time."""
GROUPS_SECONDS = 0.2
"""The same for turns that are made together: their rows are opened for each claim."""
RECENT_TURNS = 64
"""The seconds of a turn are an average over about this many."""
MOST_TOGETHER = 1 << 32
"""As good as all: a function may get a whole lane at once, and the table of claims has numbers of 64 bits."""
MOST_OPEN = 2
"""How many rows a worker has open at once: its own, and those of another."""


class Claims(Protocol):
    """Says which turns a worker is to make."""

    def claim(self, count: int, *, steal: bool) -> range | None:
        """Claim ``count`` turns, or more; None if there are none."""

    def extend(self, claim: range, more: int) -> bool:
        """Claim the turns that follow a claim too; False if this worker must not have them."""

    def end(self, turn: int) -> None:
        """Note that there is no such turn, nor a later one that belongs to the same worker."""


class OwnTurns:
    """All turns of one worker, and no others. It is a ``Claims``."""

    def __init__(self, worker: int, workers: int) -> None:
        self._left = [range(worker, NO_END, workers)]

    def claim(self, count: int, *, steal: bool) -> range | None:
        """All turns, the first time."""
        return self._left.pop() if self._left else None

    def extend(self, claim: range, more: int) -> bool:
        """There are no others who have them."""
        return True

    def end(self, turn: int) -> None:
        """There is nobody to whom it matters."""


class TurnTaker:
    """Makes the turns that a worker claims in a round.

    A worker goes on where it has rows open, and rows may be read further than was claimed. But if functions or windows
    take the rows of many turns at once, those of each claim are opened for themselves: so nothing is made that another
    worker makes too. Such claims have whole groups, so that functions get as many rows at once as without stealing.
    """

    def __init__(self, progress: Progress, claims: Claims, workers: int) -> None:
        self._progress, self._claims, self._workers = progress, claims, workers
        self._open: dict[int, Generator[Turns, None, None]] = {}  # by the turn that each makes next
        self._seconds, self._made, self._together = 0.0, 0.0, 1
        self._opening = 0.0  # what opening rows elsewhere took, or making items again that one needs to begin there
        session = progress.session
        lanes = len(session.positions)
        lanes_in_turn = lanes // gcd(lanes, session.assignment.readers * workers)
        self._group = min(session.pipeline.items_together, MOST_TOGETHER) * lanes_in_turn
        """How many turns are made together; 0 if each is made on its own."""

    def claim(self) -> range | None:
        """Claim the turns to make next; None if there are none."""
        return self._claims.claim(self._wanted(), steal=self._may_steal())

    def _wanted(self) -> int:
        """How many turns to claim: what takes a while, and no fewer than are made together."""
        seconds = GROUPS_SECONDS if self._group else CLAIM_SECONDS
        in_time = int(seconds * self._made / self._seconds) if self._seconds else 1
        if self._group:
            return max(1, in_time // self._group) * self._group
        return max(self._together, in_time)

    def _may_steal(self) -> bool:
        """True if turns take long, and rows have not been opened too often for that."""
        is_costly = self._seconds >= COSTLY_SECONDS * max(1, self._made)
        return is_costly and self._opening <= OPENING_PART * self._seconds

    def make(self, claim: range) -> Generator[Turns | None, None, None]:
        """The turns of a claim, or some more, many at a time unless they are made singly; None if there are no more."""
        return self._make_groups(claim) if self._group else self._make_each(claim)

    def _make_groups(self, claim: range) -> Generator[Turns | None, None, None]:
        """The turns of a claim, of which some take long and others nothing, so all count together."""
        turn, seconds, begun = claim.start, 0.0, time.perf_counter()
        stream = self._open[turn] = take_turns(self._progress, claim, deferred=True)
        while turn < claim.stop and (turns := next(stream, None)) is not None:
            turn += self._workers * len(turns.items)
            seconds += time.perf_counter() - begun
            yield turns
            del turns  # so that the next items are made in their memory, which is still in the CPU cache
            begun = time.perf_counter()
        self._open.pop(claim.start).close()
        self._note(seconds, len(range(claim.start, turn, self._workers)), is_opened=False)
        if turn < claim.stop:
            self._claims.end(turn)
            yield None

    def _make_each(self, claim: range) -> Generator[Turns | None, None, None]:
        turn = claim.start
        while turn < claim.stop:
            turns = self._next_turns(turn)
            if turns is None:
                self._claims.end(turn)
                yield None
                return
            count, left = len(turns.items), len(range(turn, claim.stop, self._workers))
            if count > left and not self._claims.extend(claim, count - left):
                yield from _first(turns, left)
                return
            turn += self._workers * count
            yield turns
            del turns  # so that the next items are made in their memory, which is still in the CPU cache

    def close(self) -> None:
        """Close everything that is read."""
        for stream in self._open.values():
            stream.close()

    def _next_turns(self, turn: int) -> Turns | None:
        """The turns from ``turn`` on, of what has made those before or is opened there; None if there are none."""
        begun = time.perf_counter()
        going_on = self._open.pop(turn, None)
        stream = going_on or self._opened(turn)
        turns = next(stream, None)
        if turns is None:
            return None
        self._together = len(turns.items)
        self._note(time.perf_counter() - begun, self._together, is_opened=going_on is None)
        self._open[turn + self._workers * self._together] = stream
        return turns

    def _note(self, seconds: float, turns: int, *, is_opened: bool) -> None:
        """Note how long some turns took, apart from what it took to open their rows."""
        if self._made >= RECENT_TURNS:
            self._seconds, self._made, self._opening = self._seconds / 2, self._made / 2, self._opening / 2
        if is_opened:
            if not self._made:
                return  # nobody knows yet which part of that is the opening
            usual = min(seconds, self._seconds / self._made * turns)
            self._opening += seconds - usual
            seconds = usual
        self._seconds += seconds
        self._made += turns

    def _opened(self, turn: int) -> Generator[Turns, None, None]:
        for oldest in list(self._open)[: 1 - MOST_OPEN]:
            self._open.pop(oldest).close()
        return take_turns(self._progress, range(turn, NO_END, self._workers), deferred=True)


def _first(turns: Turns, count: int) -> Iterator[Turns]:
    """The first of some turns; another worker makes the rest."""
    for cursor, item in islice(turn_by_turn(iter((turns,))), count):
        if cursor is None:
            yield Turns((EMPTY,), ((),), turns.sums)
        else:
            yield Turns((item,), ((cursor,),) if turns.cursors else (), turns.sums)
