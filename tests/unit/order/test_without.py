"""Orders without rows that were taken out, whatever came before."""

import pickle

import numpy as np
import pytest

from midepoch.order.orders import Interval, Sequential, Shuffle, build_order
from midepoch.order.without import Without


def without(*rows):
    return Without(rows=np.array(rows, np.int64))


@pytest.mark.parametrize("level", ["file", "block", "row"])
def test_the_others_keep_their_order(level):
    base = Sequential(np.array([0, 12, 20]), np.array([0, 5, 12, 20]))
    inner = build_order(base, [Shuffle(seed=2, level=level, window=4)], 1)
    edited = without(0, 7, 19).apply(inner)
    whole = inner.rows(np.arange(20)).tolist()
    assert edited.rows(np.arange(edited.size)).tolist() == [row for row in whole if row not in (0, 7, 19)]
    assert edited.size == without(0, 7, 19).size(20) == 17
    starts = edited.piece_starts("block").tolist()
    assert (starts[0], starts[-1]) == (0, 17)


def test_a_lane_loses_only_its_own_rows():
    lane = Interval(Sequential(np.array([0, 20]), np.array([0, 20])), 5, 10)
    assert without(2, 6, 12).apply(lane).rows(np.arange(4)).tolist() == [5, 7, 8, 9]
    assert without(2, 6, 12).positions(lane).tolist() == [1]


def test_a_state_knows_which_rows_are_left_out():
    assert without(1, 2).describe() == pickle.loads(pickle.dumps(without(1, 2))).describe()
    assert without(1, 2).describe() != without(1, 3).describe()
    assert without(1, 2).describe()["rows"] == 2
