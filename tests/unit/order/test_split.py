"""Training and test rows, against a model that hashes and sorts one row at a time."""

from fractions import Fraction
from itertools import pairwise
from math import ceil

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from midepoch._common.hashing import key_of, mix64
from midepoch.order import selection
from midepoch.order.orders import Sequential
from midepoch.order.selection import GROUP, TrainTestSplit, multiply_divide
from midepoch.order.windows import Blocks

SIZES = st.one_of(st.integers(0, 5), st.integers(0, 4 * GROUP), st.integers(2000, 2100))
SEEDS = st.integers(-3, 1 << 40)


def plain(size, block=7, file=50):
    """An order of ``size`` rows in blocks and files."""
    bounds = [np.append(np.arange(0, size, rows), size).astype(np.int64) for rows in (file, block)]
    return Sequential(*bounds)


def halves(test_size, seed=0):
    return [TrainTestSplit(half=half, test_size=test_size, seed=seed) for half in ("train", "test")]


def all_rows(order):
    return order.rows(np.arange(order.size)).tolist()


def model(size, test, seed):
    """The test rows, by arithmetic on Python integers."""
    key = key_of(seed, "train_test_split", size)
    offset = key_of(key, "offset") % max(1, size)
    chosen = []
    for begin in range(0, size, GROUP):
        end = min(begin + GROUP, size)
        wanted = (end * test + offset) // size - (begin * test + offset) // size
        words = [(row * 0x9E3779B97F4A7C15 + key) % (1 << 64) for row in range(begin, end)]
        hashes = mix64(np.array(words, np.uint64)).tolist()
        ranked = sorted(range(begin, end), key=lambda row: (hashes[row - begin] >> 7, row))
        chosen += ranked[:wanted]
    return sorted(chosen)


@given(SIZES, st.data(), SEEDS)
def test_the_halves_are_those_of_the_model_and_keep_the_order(size, data, seed):
    test_rows = data.draw(st.one_of(st.integers(0, size), st.sampled_from([0, size // 2, size])))
    train, test = (all_rows(step.apply(plain(size))) for step in halves(test_rows, seed))
    assert test == model(size, test_rows, seed)
    assert len(test) == test_rows
    assert train == sorted(set(range(size)) - set(test))


@given(SIZES, st.floats(0, 1, exclude_min=True, exclude_max=True), SEEDS)
@example(10, 0.1, 0)
@example(100, 0.07, 0)
@example(15, 0.1, 0)
def test_a_fraction_is_the_decimal_that_was_written_and_is_rounded_up(size, fraction, seed):
    train, test = (step.apply(plain(size)) for step in halves(fraction, seed))
    assert test.size == ceil(size * Fraction(repr(fraction)))
    assert [step.size(size) for step in halves(fraction, seed)] == [train.size, test.size]
    assert sorted(all_rows(train) + all_rows(test)) == list(range(size))


@given(SIZES, st.data(), st.integers(1, 90), st.integers(1, 300))
def test_a_piece_of_a_half_lies_in_one_piece_of_the_inner_order(size, data, block, file):
    test_rows = data.draw(st.integers(0, size))
    inner = plain(size, block, file)
    for step in halves(test_rows):
        order = step.apply(inner)
        rows = all_rows(order)
        for level in ("file", "block"):
            bounds, below = order.piece_starts(level).tolist(), inner.piece_starts(level)
            assert (bounds[0], bounds[-1]) == (0, order.size)
            owners = np.searchsorted(below, rows, "right").tolist()
            pieces = [set(owners[begin:end]) for begin, end in pairwise(bounds)]
            assert all(len(piece) == 1 for piece in pieces)
            assert len(set().union(*pieces)) == len(pieces)


def test_seeds_choose_unrelated_rows_evenly_from_the_whole_dataset():
    size, test_rows = 20_000, 2000
    chosen = np.array([all_rows(halves(test_rows, seed)[1].apply(plain(size))) for seed in range(50)])
    per_row = np.bincount(chosen.ravel(), minlength=size)
    # Each row is chosen by a tenth of the seeds: 5 of 50 on average, as a binomial draw.
    assert abs(per_row.var() - 50 * 0.1 * 0.9) < 0.3
    for tenth in np.split(per_row, 10):
        assert abs(tenth.mean() - 5) < 0.1
    for residue in range(8):
        assert abs(per_row[residue::8].mean() - 5) < 0.2
    assert len(np.intersect1d(chosen[0], chosen[1])) < 2 * test_rows * test_rows / size


NUMBERS = st.integers(0, selection.MOST_ROWS)


@given(st.lists(NUMBERS, min_size=1), NUMBERS, NUMBERS, st.integers(1, selection.MOST_ROWS))
@example([selection.MOST_ROWS], selection.MOST_ROWS, selection.MOST_ROWS, 1 << 40)
def test_products_of_more_than_64_bits_are_exact(values, factor, offset, divisor):
    expected = [(value * factor + offset) // divisor for value in values]
    if max(expected) < 1 << 63:
        assert multiply_divide(np.array(values, np.int64), factor, offset, divisor).tolist() == expected


class Huge:
    """An order of billions of rows, which could never be listed."""

    def __init__(self, size):
        self.size, self.blocks = size, Blocks.of_rows(np.array([0, size]))

    def rows(self, positions):
        return positions

    def piece_starts(self, level):
        return np.linspace(0, self.size, 100, dtype=np.int64)


@pytest.mark.parametrize("size", [1 << 33, (1 << 33) - 12_345, (1 << 41) - 1])
@pytest.mark.parametrize("test_size", [0.1, 0.5, 1000, (1 << 32) + 1])
def test_billions_of_rows_need_no_memory(size, test_size):
    train, test = (step.apply(Huge(size)) for step in halves(test_size, 5))
    assert train.size + test.size == size
    shares = []
    for order in (train, test):
        positions = np.unique(np.linspace(0, order.size - 1, 2000).astype(np.int64))
        rows = order.rows(positions)
        assert (np.diff(rows) > 0).all()
        assert rows[0] >= 0
        assert rows[-1] < size
        assert np.abs(rows / size - positions / order.size).max() < 0.002
        starts = order.piece_starts("file")
        assert (starts[0], starts[-1]) == (0, order.size)
        shares.append(set(rows.tolist()))
    assert not shares[0] & shares[1]


def test_the_rows_of_a_seed_never_change():
    assert all_rows(halves(8, 42)[1].apply(plain(200))) == [32, 40, 58, 83, 113, 128, 129, 179]
