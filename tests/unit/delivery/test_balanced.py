"""Shares of near-equal cost: a pure function of the costs."""

import numpy as np
import pytest

from midepoch.delivery.session import share_evenly


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_every_rank_gets_as_many_and_every_item_is_in_one_share(ranks):
    costs = np.random.default_rng(1).lognormal(3, 2, 32).astype(int).tolist()
    shares = share_evenly(costs, ranks)
    assert [len(share) for share in shares] == [32 // ranks] * ranks
    assert sorted(item for share in shares for item in share) == list(range(32))
    assert all(share == sorted(share) for share in shares)


def test_sums_are_near_each_other_and_ties_go_to_the_first():
    assert share_evenly([9, 1, 5, 5], 2) == [[0, 1], [2, 3]]
    assert share_evenly([1, 1, 1, 1], 2) == [[0, 2], [1, 3]]
    assert share_evenly([100, 1, 1, 1], 2) == [[0, 3], [1, 2]]
