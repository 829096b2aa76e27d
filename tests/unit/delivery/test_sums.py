"""Sums of items: of the lanes that a process reads, and as they arrive from others."""

import numpy as np

from midepoch._common.hashing import hash_keys
from midepoch.delivery.sums import ArrivedSums, ReadSums
from midepoch.pipeline.ledger import Ledger


class TwoLanes:
    """A session in which turns go round two lanes."""

    def items_at(self, reader, turns):
        return turns % 2, turns // 2


def test_sums_are_those_of_the_lanes_whose_turns_they_are():
    sums, hashes = ReadSums(TwoLanes(), 0, turn=1, step=1), hash_keys(np.arange(10)).tolist()
    for lane, keys in ((0, [0, 1]), (1, [5, 6, 7])):
        sums.ledgers[lane] = Ledger(())
        sums.ledgers[lane].note(np.array(keys))
    assert sums.take(2).tolist() == [hashes[5], hashes[0]]
    assert sums.take(0).tolist() == []
    assert sums.take(5).tolist() == [hashes[6], hashes[1], hashes[7], 0, 0], (
        "turns at a lane that has run out are empty"
    )


def test_sums_arrive_as_signed_numbers():
    sums = ArrivedSums()
    sums.add((-1, 2))
    sums.add((3,))
    assert sums.take(2).tolist() == [(1 << 64) - 1, 2]
    assert sums.take(1).tolist() == [3]
