"""Windows and virtual blocks, against models that take one piece after the other."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midepoch.order import windows
from midepoch.order.orders import Interval, Sequential, Shuffle, build_order
from midepoch.order.windows import (
    VIRTUAL_BYTES,
    Blocks,
    PieceCosts,
    bounds_of,
    virtual_counts,
    virtual_starts,
    windows_of_blocks,
    windows_of_rows,
)
from midepoch.order.windows import VIRTUAL_PER_BLOCK as SHARE


def cut(rows, nbytes, shares=None, *, window, blocks, most_bytes):
    """The windows of pieces with these rows and bytes, as lists of piece numbers."""
    starts = bounds_of(np.array(rows, np.int64))
    costs = PieceCosts(*(np.array(values, np.int64) for values in (nbytes, shares or [SHARE] * len(rows))))
    bounds = windows_of_blocks(starts, costs, rows=window, blocks=blocks, most_bytes=most_bytes).tolist()
    assert bounds[0] == 0
    assert bounds[-1] == starts[-1]
    numbers = [number for number in range(len(rows)) if rows[number]]
    return [[number for number in numbers if begin <= starts[number] < end] for begin, end in pairwise(bounds)]


def model(rows, nbytes, shares, *, window, blocks, most_bytes):
    """The same, one piece after the other."""
    made, current = [], []
    for piece in (number for number in range(len(rows)) if rows[number]):
        full = sum(rows[one] for one in current) >= window and sum(shares[one] for one in current) >= SHARE * blocks
        if current and (full or sum(nbytes[one] for one in current) + nbytes[piece] > most_bytes):
            made.append(current)
            current = []
        current.append(piece)
    if not current:
        return made
    complete = sum(rows[one] for one in current) >= window and sum(shares[one] for one in current) >= SHARE * blocks
    if not made or complete:
        return [*made, current]
    together = made.pop() + current
    if sum(nbytes[one] for one in together) <= most_bytes:
        return [*made, together]
    halves = [(together[:number], together[number:]) for number in range(1, len(together))]
    return [*made, *min(halves, key=lambda two: max(sum(nbytes[one] for one in half) for half in two))]


MOST_BYTES = st.sampled_from([1, 60, 150, 400, 10_000])
PIECES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50), st.sampled_from([1, SHARE])), max_size=40)


@given(PIECES, st.integers(1, 40), st.integers(1, 7), MOST_BYTES)
def test_windows_are_those_of_the_model(pieces, window, blocks, most_bytes):
    rows, nbytes, shares = ([piece[number] for piece in pieces] for number in range(3))
    sizes = {"window": window, "blocks": blocks, "most_bytes": most_bytes}
    assert cut(rows, nbytes, shares, **sizes) == model(rows, nbytes, shares, **sizes)


def test_windows_of_rows_are_runs_of_whole_pieces():
    assert windows_of_rows(np.arange(0, 101, 10), 25).tolist() == [0, 30, 50, 80, 100]
    assert windows_of_rows(np.array([0, 100, 105, 110]), 8).tolist() == [0, 100, 105, 110]


def blocks_of(rows, row_bytes, divisible=True):
    starts = bounds_of(np.array(rows, np.int64))
    return Blocks(starts, row_bytes * np.diff(starts), np.full(len(rows), divisible))


def virtual_rows(blocks):
    return np.diff(virtual_starts(blocks, virtual_counts(blocks))).tolist()


def test_blocks_that_can_be_divided_become_virtual_blocks_of_equal_rows():
    assert virtual_rows(blocks_of([1000, 0, 5, 300], 10)) == [125] * 8 + [0, 5, 100, 100, 100]
    assert virtual_rows(blocks_of([1000, 300], 10, divisible=False)) == [1000, 300]


def test_virtual_blocks_of_wide_rows_have_few_bytes():
    assert virtual_rows(blocks_of([10], VIRTUAL_BYTES // 2)) == [2] * 5
    assert virtual_rows(blocks_of([3], 5 * VIRTUAL_BYTES)) == [1] * 3


def test_a_large_dataset_has_a_bounded_number_of_virtual_blocks():
    blocks = blocks_of([10**6] * 3000, 1)
    assert virtual_counts(blocks).sum() <= windows.MOST_VIRTUAL + 3000


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 1 << 22), st.booleans()), min_size=1, max_size=9))
def test_virtual_blocks_lie_inside_blocks_and_have_rows_if_those_have(described):
    starts = bounds_of(np.array([rows for rows, _, _ in described], np.int64))
    divisible = np.array([one for _, _, one in described])
    blocks = Blocks(starts, np.array([nbytes for _, nbytes, _ in described], np.int64), divisible)
    virtual = virtual_starts(blocks, virtual_counts(blocks))
    assert set(starts.tolist()) <= set(virtual.tolist())
    assert (np.diff(virtual) >= 0).all()
    assert (np.diff(virtual) == 0).sum() == sum(rows == 0 for rows, _, _ in described)


DEFAULTS = {"window": windows.WINDOW, "window_blocks": windows.WINDOW_BLOCKS, "window_bytes": windows.WINDOW_BYTES}


def shuffled(rows, row_bytes, divisible, epoch=0, **sizes):
    """The order of one file in blocks of these rows."""
    blocks = blocks_of(rows, row_bytes, divisible)
    starts = virtual_starts(blocks, virtual_counts(blocks))
    base = Sequential(np.array([0, sum(rows)]), starts, blocks)
    return blocks, build_order(base, [Shuffle(seed=1, level="block", **DEFAULTS | sizes)], epoch)


def distinct(blocks, order, batches=40, rows=512):
    """The numbers of blocks from which batches come, from all over the order."""
    firsts = np.linspace(0, order.size - rows, batches).astype(np.int64)
    return [len(np.unique(blocks.owner(order.rows(np.arange(first, first + rows))))) for first in firsts]


@pytest.mark.parametrize("divisible", [False, True], ids=["decoded", "divisible"])
@pytest.mark.parametrize("number", [16, 20, 33, 100])
@pytest.mark.parametrize("lanes", [1, 8])
def test_a_batch_comes_from_16_blocks_of_100_000_rows(divisible, number, lanes):
    blocks, order = shuffled([100_000] * number, 100, divisible)
    each = order.size // lanes
    for lane in range(lanes):
        counts = distinct(blocks, Interval(order, lane * each, lane * each + each), 20)
        assert min(counts) >= 16 - (divisible and number < 20)


def test_rows_that_were_shuffled_before_are_not_held_in_larger_windows():
    blocks = blocks_of([100] * 64, 10, divisible=False)
    base = Sequential(np.array([0, 6400]), blocks.starts, blocks)
    shuffle = Shuffle(seed=1, level="block", window=100, window_blocks=4, window_bytes=10_000)
    once, twice = (build_order(base, [shuffle] * number, 0) for number in (1, 2))
    assert np.diff(once.piece_starts("block")).tolist() == [400] * 16
    assert np.diff(twice.piece_starts("block")).tolist() == [400] * 16
    assert sorted(twice.rows(np.arange(6400)).tolist()) == list(range(6400))
