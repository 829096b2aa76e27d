"""Claims: whoever takes turns, and in whatever order, each turn is claimed once."""

import os
import signal
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midepoch.workers.claims import SLACK, ClaimTable, SharedTurns

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.fixture
def table():
    table = ClaimTable(3)
    table.start(1)
    yield table
    table.free()


@pytest.fixture
def workers(table):
    return [SharedTurns(table, 1, worker) for worker in range(3)]


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.booleans(), st.integers(0, 3)), max_size=60),
)
def test_each_turn_is_claimed_once_and_those_of_a_worker_in_order(workers, steps):
    table, claimed = ClaimTable(workers), []
    table.start(7)
    for worker, turns, steal, more in steps:
        worker %= workers
        claim = SharedTurns(table, 7, worker).claim(turns, steal=steal)
        claimed += claim
        if more and SharedTurns(table, 7, worker).extend(claim, more):
            claimed += range(claim.stop, claim.stop + workers * more, workers)
        elif more:
            assert claim.start % workers != worker, "nobody has claimed what follows"
        if (stolen := claimed[-1]) % workers != worker:
            own = [turn for turn in claimed if turn % workers == worker]
            assert stolen < own[-1] + workers, "none of its own is left before one that it has stolen"
    assert len(set(claimed)) == len(claimed)
    for owner in range(workers):
        own = [turn for turn in claimed if turn % workers == owner]
        assert own == list(range(owner, owner + workers * len(own), workers)), "none is left out"
    table.free()


def test_only_a_worker_that_is_ahead_steals_and_only_from_the_last(workers):
    for _ in range(SLACK + 1):
        assert workers[0].claim(1, steal=True).start % 3 == 0
    workers[1].claim(1, steal=True)
    assert list(workers[0].claim(1, steal=True)) == [2]
    assert list(workers[0].claim(1, steal=False)) == [3 * (SLACK + 1)]
    assert list(workers[2].claim(1, steal=True)) == [5], "one that is behind makes its own"


def test_what_another_has_claimed_cannot_be_added_to_a_claim(workers):
    claim = workers[2].claim(1, steal=False)
    workers[0].claim(3, steal=False)
    workers[1].claim(2, steal=False)
    stolen = workers[0].claim(1, steal=True)
    assert list(stolen) == [5]
    assert not workers[2].extend(claim, 1)
    assert workers[0].extend(stolen, 1)
    assert list(workers[2].claim(1, steal=False)) == [11]


def test_a_worker_steals_nothing_after_a_turn_of_its_own_that_it_has_not_claimed(workers):
    workers[0].claim(3, steal=False)
    workers[1].claim(9, steal=False)
    stolen = workers[0].claim(1, steal=True)
    assert list(stolen) == [2]
    assert not workers[0].extend(stolen, 3), "turn 9 is its own, and turn 11 comes after it"
    assert workers[0].extend(stolen, 2)
    assert list(workers[0].claim(1, steal=False)) == [9]
    workers[0].end(0)
    stolen = workers[0].claim(1, steal=True)
    assert workers[0].extend(stolen, 50), "it has no more of its own"


def test_after_the_end_of_one_worker_it_makes_turns_of_the_others_until_all_have_ended(table):
    claims = SharedTurns(table, 1, 0)
    claims.end(0)
    assert claims.claim(1, steal=False) is None
    assert list(claims.claim(2, steal=True)) == [1, 4]
    claims.end(1)
    assert list(claims.claim(1, steal=True)) == [2]
    claims.end(2)
    assert claims.claim(1, steal=True) is None


def test_in_another_round_nothing_can_be_claimed_or_ended(table):
    claim = SharedTurns(table, 1, 0).claim(1, steal=False)
    table.start(2)
    assert SharedTurns(table, 1, 0).claim(1, steal=True) is None
    assert not SharedTurns(table, 1, 0).extend(claim, 1)
    SharedTurns(table, 1, 0).end(0)
    assert list(SharedTurns(table, 2, 0).claim(1, steal=False)) == [0]


def in_processes(number, function):
    """What a function wrote to a file, in each of several processes."""
    reads = []
    for worker in range(number):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, function(worker))
            os._exit(0)
        os.close(writer)
        reads.append(reader)
    written = []
    for reader in reads:
        with open(reader, "rb") as file:
            written.append(file.read())
        os.wait()
    return written


def test_processes_that_claim_at_the_same_time_never_get_the_same(table):
    def claim_many(worker):
        firsts = [SharedTurns(table, 1, worker).claim(1, steal=step % 2 == 0).start for step in range(2000)]
        return " ".join(map(str, firsts)).encode()

    claimed = [int(turn) for text in in_processes(3, claim_many) for turn in text.split()]
    assert len(set(claimed)) == len(claimed) == 6000


def test_a_process_that_is_killed_while_it_claims_holds_nobody_up(table):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with table._memory.locked():
            os.write(writer, b"locked")
            signal.pause()
    os.read(reader, 6)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert list(SharedTurns(table, 1, 0).claim(1, steal=False)) == [0]
    os.close(reader)
    os.close(writer)


def test_many_rounds_use_one_table(table):
    for number in range(2, 50):
        table.start(number)
        for expected in count(0, 3):
            claim = SharedTurns(table, number, 0).claim(1, steal=False)
            assert claim.start == expected
            if expected == 9:
                break
