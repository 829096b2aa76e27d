"""Training and test rows, against a model that hashes and sorts one row at a time."""

import pickle
from fractions import Fraction
from itertools import chain, pairwise
from math import ceil

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from midepoch._common.hashing import key_of, mix64
from midepoch.order import selection
from midepoch.order.orders import Sequential, Shuffle, Slice, build_order, lanes_by_file
from midepoch.order.selection import GROUP, TrainTestSplit, multiply_divide
from midepoch.order.windows import Blocks

SIZES = st.one_of(st.integers(0, 5), st.integers(0, 4 * GROUP), st.integers(2000, 2100))
SEEDS = st.integers(-3, 1 << 40)
LEVELS = st.sampled_from(["file", "block", "row"])


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


def test_a_tenth_of_ten_rows_is_one():
    assert [step.size(10) for step in halves(0.1)] == [9, 1]
    assert [step.size(100) for step in halves(0.07)] == [93, 7]
    assert [step.size(15) for step in halves(0.1)] == [13, 2]


@given(SIZES, st.data(), SEEDS, LEVELS, st.integers(1, 40))
def test_a_shuffle_permutes_each_half_and_never_changes_which_rows_it_has(size, data, seed, level, window):
    test_rows = data.draw(st.integers(0, size))
    shuffle = Shuffle(seed=3, level=level, window=window)
    expected = model(size, test_rows, seed)
    for step, rows in zip(halves(test_rows, seed), (sorted(set(range(size)) - set(expected)), expected), strict=True):
        for epoch in (0, 1, 7):
            order = build_order(plain(size), [step, shuffle], epoch)
            assert sorted(all_rows(order)) == rows
            lanes = lanes_by_file(plain(size), [step, shuffle], epoch, 3)
            assert sorted(row for lane in lanes for row in all_rows(lane)) == rows


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


@given(SIZES, st.data())
def test_a_half_can_be_cut_and_split_again(size, data):
    first, second = data.draw(st.floats(0.01, 0.99)), data.draw(st.floats(0.01, 0.99))
    outer_train, outer_test = halves(first, 1)
    thirds = [[outer_test], *([outer_train, step] for step in halves(second, 1))]
    rows = [all_rows(build_order(plain(size), steps, 0)) for steps in thirds]
    assert sorted(chain(*rows)) == list(range(size))
    skipped = build_order(plain(size), [outer_train, Slice(start=3, stop=None)], 0)
    assert all_rows(skipped) == all_rows(outer_train.apply(plain(size)))[3:]


@given(st.lists(st.integers(0, 299), max_size=40))
def test_rows_are_the_same_whichever_positions_are_asked_for_together(positions):
    for step in halves(0.3):
        order = step.apply(plain(1000))
        together = order.rows(np.array(positions, np.int64)).tolist()
        assert together == [all_rows(order)[position] for position in positions]


def test_many_positions_and_boundaries_are_hashed_in_turns(monkeypatch):
    order = halves(0.3)[0].apply(plain(5000))
    rows, starts = all_rows(order), order.piece_starts("block").tolist()
    monkeypatch.setattr(selection, "GROUPS_AT_ONCE", 3)
    again = halves(0.3)[0].apply(plain(5000))
    assert all_rows(again) == rows
    assert again.piece_starts("block").tolist() == starts


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


def test_few_test_rows_come_from_other_groups_for_other_seeds():
    first = [all_rows(halves(1, seed)[1].apply(plain(10_000)))[0] for seed in range(200)]
    assert len({row // GROUP for row in first}) > 80


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
    # Around any row, the two halves have every row once.
    middle = test.size // 2
    some = test.rows(np.arange(middle, middle + 2))
    first, last = int(some[0]), int(some[0]) + 300
    counted = [_between(order, first, last) for order in (train, test)]
    assert sorted(counted[0] + counted[1]) == list(range(first, last))


def _between(order, first, last):
    """The rows of an order of rising rows from ``first`` to ``last``, found by bisection."""
    begin, end = 0, order.size
    while begin < end:
        middle = (begin + end) // 2
        if int(order.rows(np.array([middle]))[0]) < first:
            begin = middle + 1
        else:
            end = middle
    rows = order.rows(np.arange(begin, min(order.size, begin + last - first)))
    return rows[rows < last].tolist()


def test_too_many_rows_are_refused():
    with pytest.raises(ValueError, match="at most 2,199,023,255,552 rows"):
        halves(0.1)[0].apply(Huge((1 << 41) + 1))


def test_a_split_is_described_and_survives_pickling():
    train, test = halves(0.1, 4)
    assert train.describe() == {"op": "train_test_split", "half": "train", "test_size": 0.1, "seed": 4}
    assert pickle.loads(pickle.dumps(test)) == test


def test_the_rows_of_a_seed_never_change():
    assert all_rows(halves(8, 42)[1].apply(plain(200))) == [32, 40, 58, 83, 113, 128, 129, 179]
