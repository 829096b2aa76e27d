"""Work stealing: which worker makes which of the rank's turns, if one that is ahead may make those of a slower one.

Turn ``k`` of a rank, counted from where its workers started, belongs to worker ``k % workers``. Before a worker makes
turns it claims them, in a table that all workers share. So each turn is made once, and who makes it changes nothing
about its item or about the order.
"""

from typing import Any, NamedTuple

from midepoch.delivery.ring import SharedMemory

SLACK = 1
"""How many claims a worker may be ahead of another before it takes turns of that one."""
ENDED = (1 << 63) - 1
NUMBER_BYTES = 8


class Claim(NamedTuple):
    """Turns that one worker makes: ``first``, and then every ``workers``-th."""

    first: int
    turns: int


class ClaimTable:
    """For each worker, the first of its turns that nobody has claimed; and the round to which that belongs."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._memory = SharedMemory()
        self._memory.grow(NUMBER_BYTES * (1 + workers))

    def start(self, round_number: int) -> None:
        """Let nothing be claimed in a new round. Workers that are still in another can claim nothing more."""
        with self._memory.locked():
            numbers = self._numbers()
            numbers[0] = round_number
            for worker in range(self._workers):
                numbers[1 + worker] = worker

    def claim(self, round_number: int, worker: int, count: int, *, steal: bool) -> Claim | None:
        """Claim the next turns of a worker; None if there are none.

        With ``steal``, they are those of the worker that is furthest behind, if that is far enough. Those of a worker
        are claimed in their order, so what is left of them is always the rest.
        """
        with self._memory.locked():
            numbers = self._numbers()
            if numbers[0] != round_number:
                return None
            owner = worker
            if steal:
                behind = min(range(self._workers), key=lambda other: numbers[1 + other])
                if numbers[1 + worker] // self._workers - numbers[1 + behind] // self._workers > SLACK * count:
                    owner = behind
            first = numbers[1 + owner]
            if first == ENDED:
                return None
            numbers[1 + owner] = first + self._workers * count
            return Claim(first, count)

    def extend(self, round_number: int, worker: int, claim: Claim, more: int) -> bool:
        """Claim the turns that follow a claim of a worker too; False, and nothing is claimed, if another has some.

        It is also False if the worker has turns of its own before the last of them. Nobody else may ever make those,
        and the worker itself could wait for room meanwhile, which there is only once they were received.
        """
        with self._memory.locked():
            numbers = self._numbers()
            owner, end = claim.first % self._workers, claim.first + self._workers * claim.turns
            if numbers[0] != round_number or numbers[1 + owner] != end:
                return False
            new_end = end + self._workers * more
            if owner != worker and new_end - self._workers > numbers[1 + worker]:
                return False
            numbers[1 + owner] = new_end
            return True

    def end(self, round_number: int, turn: int) -> None:
        """Let nobody claim more turns of the worker to which a turn belongs: there are none."""
        with self._memory.locked():
            numbers = self._numbers()
            if numbers[0] == round_number:
                numbers[1 + turn % self._workers] = ENDED

    def free(self) -> None:
        """Give the memory back. No process may use it after that."""
        self._memory.free()

    def _numbers(self) -> Any:
        return self._memory.view(0, NUMBER_BYTES * (1 + self._workers)).cast("q")


class RoundClaims:
    """The claims of one worker in one round."""

    def __init__(self, table: ClaimTable, round_number: int, worker: int) -> None:
        self._table, self._round, self._worker = table, round_number, worker

    def claim(self, count: int, *, steal: bool) -> Claim | None:
        """Claim turns of this worker or, with ``steal``, of one that is behind; None if there are none."""
        return self._table.claim(self._round, self._worker, count, steal=steal)

    def extend(self, claim: Claim, more: int) -> bool:
        """Claim the turns that follow a claim too; False if this worker must not have them."""
        return self._table.extend(self._round, self._worker, claim, more)

    def end(self, turn: int) -> None:
        """Note that there is no such turn, nor a later one that belongs to the same worker."""
        self._table.end(self._round, turn)
