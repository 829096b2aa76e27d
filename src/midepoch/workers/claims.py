"""Work stealing: which worker makes which of the rank's turns, if one that is ahead may make those of a slower one.

Turn ``k`` of a rank, counted from where its workers started, belongs to worker ``k % workers``. Before a worker makes
turns it claims them, in a table that all workers share. So each turn is made once, and who makes it changes nothing
about its item or about the order. The turns of a claim are a range, in steps of the number of workers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from midepoch.delivery.ring import SharedMemory

SLACK = 1
"""How many claims a worker may be ahead of another before it takes turns of that one."""
ENDED = (1 << 63) - 1
NUMBER_BYTES = 8


class ClaimTable:
    """For each worker, the first of its turns that nobody has claimed; and the round to which that belongs."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._memory = SharedMemory()
        self._memory.grow(NUMBER_BYTES * (1 + workers))

    def start(self, round_number: int) -> None:
        """Let nothing be claimed in a new round. Workers that are still in another can claim nothing more."""
        with self._numbers() as numbers:
            numbers[0] = round_number
            for worker in range(self.workers):
                numbers[1 + worker] = worker

    @contextmanager
    def unclaimed(self, round_number: int) -> Iterator[Any]:
        """The first turn of each worker that nobody has claimed, to read and write; None in another round."""
        with self._numbers() as numbers:
            yield numbers[1:] if numbers[0] == round_number else None

    @contextmanager
    def _numbers(self) -> Iterator[Any]:
        """The table. No other process reads or writes it meanwhile."""
        with self._memory.locked():
            yield self._memory.view(0, NUMBER_BYTES * (1 + self.workers)).cast("q")

    def free(self) -> None:
        """Give the memory back. No process may use it after that."""
        self._memory.free()


class SharedTurns:
    """The turns that one worker claims in one round. It is a ``Claims``."""

    def __init__(self, table: ClaimTable, round_number: int, worker: int) -> None:
        self._table, self._round, self._worker = table, round_number, worker

    def claim(self, count: int, *, steal: bool) -> range | None:
        """Claim the next turns of this worker; None if there are none.

        With ``steal``, they are those of the worker that is furthest behind, if that is far enough. Those of a worker
        are claimed in their order, so what is left of them is always the rest.
        """
        with self._table.unclaimed(self._round) as firsts:
            if firsts is None:
                return None
            owner, workers = self._worker, self._table.workers
            if steal:
                behind = min(range(workers), key=lambda other: int(firsts[other]))
                if firsts[owner] // workers - firsts[behind] // workers > SLACK * count:
                    owner = behind
            if firsts[owner] == ENDED:
                return None
            claim = range(firsts[owner], firsts[owner] + workers * count, workers)
            firsts[owner] = claim.stop
            return claim

    def extend(self, claim: range, more: int) -> bool:
        """Claim the turns that follow a claim too; False, and nothing is claimed, if another has some.

        It is also False if the worker has turns of its own before the last of them. Nobody else may ever make those,
        and the worker itself could wait for room meanwhile, which there is only once they were received.
        """
        with self._table.unclaimed(self._round) as firsts:
            owner = claim.start % self._table.workers
            if firsts is None or firsts[owner] != claim.stop:
                return False
            last = claim.stop + claim.step * (more - 1)
            if owner != self._worker and last > firsts[self._worker]:
                return False
            firsts[owner] = last + claim.step
            return True

    def end(self, turn: int) -> None:
        """Note that there is no such turn, nor a later one that belongs to the same worker."""
        with self._table.unclaimed(self._round) as firsts:
            if firsts is not None:
                firsts[turn % self._table.workers] = ENDED
