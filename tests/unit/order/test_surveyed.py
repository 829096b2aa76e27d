"""Orders of the rows that filters keep, against plain lists."""

import pickle
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kept_bits import Bits, starts_of
from midepoch.order.orders import Ranges, Sequential, Shuffle, Slice, build_order
from midepoch.order.selection import Deletes, Slices, Surveyed, TrainTestSplit, first_scattering

FILES = st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=1, max_size=4)


def all_rows(order):
    return order.rows(np.arange(order.size)).tolist()


@st.composite
def surveyed_orders(draw):
    """An order in which rows are adjacent, and bits: what is left of the order is known by a plain list."""
    file_starts, block_starts = starts_of(draw(FILES))
    total = int(block_starts[-1])
    numbers = st.integers(0, total)
    base = Sequential(file_starts, block_starts)
    if draw(st.booleans()):
        base = Ranges.of_blocks(
            file_starts, block_starts, np.array([draw(st.booleans()) for _ in block_starts[1:]], bool)
        )
    steps = []
    if draw(st.booleans()):
        steps.append(Slice(start=draw(numbers), stop=draw(st.one_of(st.none(), numbers))))
    if draw(st.booleans()):
        steps.append(Slices(intervals=tuple(draw(st.lists(st.tuples(numbers, numbers), max_size=3)))))
    elif draw(st.booleans()) and total and not steps:
        deleted = sorted(draw(st.sets(st.integers(0, total - 1))))
        steps.append(Deletes(rows=np.array(deleted, np.int64)))
    assert first_scattering(tuple(steps)) is None
    return build_order(base, steps, 0), Bits([draw(st.booleans()) for _ in range(total)])


@given(surveyed_orders())
def test_kept_rows_are_those_of_a_plain_filter(case):
    inner, bits = case
    step = Surveyed.of(bits, inner, 1)
    order = step.apply(inner, 0, 0)
    expected = [row for row in all_rows(inner) if bits.mask[row]]
    assert all_rows(order) == expected
    assert order.size == step.size(inner.size) == len(expected)
    backwards = np.arange(order.size)[::-1]
    assert order.rows(backwards).tolist() == expected[::-1]


@given(surveyed_orders(), st.sampled_from(["file", "block"]))
def test_a_piece_has_rows_of_one_piece_of_the_inner_order(case, level):
    inner, bits = case
    order = Surveyed.of(bits, inner, 1).apply(inner)
    starts = order.piece_starts(level).tolist()
    assert (starts[0], starts[-1]) == (0, order.size)
    kept_positions = [position for position, row in enumerate(all_rows(inner)) if bits.mask[row]]
    owners = np.searchsorted(inner.piece_starts(level), kept_positions, "right").tolist()
    assert all(len(set(owners[begin:end])) == 1 for begin, end in pairwise(starts))
    assert len(set(owners)) == len(starts) - 1


def test_steps_are_equal_if_they_take_the_same_rows():
    inner = Sequential(*starts_of([[3, 2], [4]]))
    first, second, other = (Surveyed.of(Bits(mask), inner, 1) for mask in ([1, 0, 1] * 3, [1, 0, 1] * 3, [0, 1, 1] * 3))
    assert first == second == pickle.loads(pickle.dumps(first))
    assert first != other
    assert first.describe() == {"op": "survey", "filters": 1, "rows": 6, "digest": first.digest}


def test_the_first_step_that_scatters_rows_is_named():
    cut, shuffle = Slice(start=0, stop=3), Shuffle(seed=1, level="row", window=1)
    deletes = Deletes(rows=np.array([1]))
    assert first_scattering(()) is None
    assert first_scattering((cut, cut, deletes)) is None
    assert first_scattering((cut, shuffle)) == "shuffle"
    assert first_scattering((deletes, cut)) == "deletes"
    assert first_scattering((TrainTestSplit(half="test", test_size=1, seed=0),)) == "train_test_split"
