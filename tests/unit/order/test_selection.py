"""Rows chosen by number, against plain lists."""

import pickle
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midepoch.order.orders import Ranges, Sequential, Shuffle, Slice, build_order, lanes_by_file
from midepoch.order.selection import (
    ChunkedNumbers,
    Deletes,
    Listed,
    Selection,
    Slices,
    Without,
    slice_bounds,
)

LEVELS = ("file", "block", "row")


@st.composite
def sequences(draw):
    """The files and blocks of a dataset."""
    files = draw(st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=1, max_size=4))
    blocks = np.cumsum([0, *(rows for file in files for rows in file)])
    bounds = np.cumsum([0, *map(len, files)])
    return Sequential(blocks[bounds].astype(np.int64), blocks.astype(np.int64))


def all_rows(order):
    return order.rows(np.arange(order.size)).tolist()


def check_pieces(order, level):
    """Pieces rise from nothing to the end."""
    bounds = order.piece_starts(level).tolist()
    assert bounds == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (0, order.size)
    return bounds


@given(sequences(), st.randoms(use_true_random=False), st.sampled_from(LEVELS), st.integers(1, 4))
def test_blocks_are_those_that_stay(inner, random, level, lanes):
    files, blocks = inner.piece_starts("file"), inner.piece_starts("block")
    kept = np.array([random.random() < 0.5 for _ in blocks[1:]], bool)
    chosen = Ranges.of_blocks(files, blocks, kept)
    expected = [
        row for (a, b), stays in zip(pairwise(blocks.tolist()), kept, strict=True) for row in range(a, b) if stays
    ]
    assert all_rows(chosen) == expected
    for one in ("file", "block"):
        bounds = check_pieces(chosen, one)
        owners = np.searchsorted(inner.piece_starts(one), expected, "right").tolist()
        assert all(len(set(owners[a:b])) <= 1 for a, b in pairwise(bounds))
    shuffle = Shuffle(seed=1, level=level, window=5)
    assert sorted(all_rows(build_order(chosen, [shuffle], 0))) == expected
    dealt = lanes_by_file(chosen, [shuffle], 0, lanes)
    assert sorted(row for lane in dealt for row in all_rows(lane)) == expected


PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=4)


@given(sequences(), PAIRS)
def test_intervals_are_slices_of_a_list(inner, pairs):
    intervals = Slices(intervals=tuple(pairs)).apply(inner)
    expected = [row for begin, end in pairs for row in range(inner.size)[begin:end]]
    assert all_rows(intervals) == expected
    assert Slices(intervals=tuple(pairs)).size(inner.size) == intervals.size == len(expected)


@given(sequences(), PAIRS, st.sampled_from(LEVELS), st.integers(0, 5), st.integers(0, 9), st.integers(0, 9))
def test_intervals_can_be_shuffled_and_cut_further(inner, pairs, level, seed, skipped, taken):
    steps = [Slices(intervals=tuple(pairs)), Shuffle(seed=seed, level=level, window=5)]
    whole = all_rows(build_order(inner, steps, 1))
    assert sorted(whole) == sorted(all_rows(Slices(intervals=tuple(pairs)).apply(inner)))
    cuts = [Slice(start=skipped, stop=None), Slice(start=0, stop=taken)]
    cut = build_order(inner, [*steps, *cuts], 1)
    assert all_rows(cut) == whole[skipped:][:taken]
    size = inner.size
    for step in (*steps, *cuts):
        size = step.size(size)
    assert size == cut.size
    check_pieces(cut, "block")
    again = build_order(inner, [*steps, *cuts, Shuffle(seed=2, level="block", window=3)], 1)
    assert sorted(all_rows(again)) == sorted(whole[skipped:][:taken])


@given(sequences(), PAIRS, st.sampled_from(LEVELS), st.integers(1, 6))
def test_no_file_of_an_interval_is_in_two_lanes(inner, pairs, level, lanes):
    following = pairwise([*sorted(pairs), (99, 99)])
    pairs = [(begin, min(end, following_begin)) for (begin, end), (following_begin, _) in following]
    steps = [Slices(intervals=tuple(pairs)), Shuffle(seed=3, level=level, window=4)]
    dealt = [all_rows(lane) for lane in lanes_by_file(inner, steps, 0, lanes)]
    assert sorted(row for lane in dealt for row in lane) == sorted(
        all_rows(Slices(intervals=tuple(pairs)).apply(inner))
    )
    whole = Slices(intervals=tuple(pairs)).apply(inner)
    bounds = whole.piece_starts("file").tolist()
    rows = all_rows(whole)
    for begin, end in pairwise(bounds):
        assert sum(bool(set(rows[begin:end]) & set(lane)) for lane in dealt) == 1


CHUNKS = st.lists(st.lists(st.integers(0, 2**40), max_size=6), max_size=4)


@given(CHUNKS, st.data())
def test_numbers_in_chunks_are_one_list(chunks, data):
    numbers = ChunkedNumbers(pa.chunked_array(chunks, pa.uint64()))
    flat = [number for chunk in chunks for number in chunk]
    assert len(numbers) == len(flat)
    chosen = data.draw(st.lists(st.integers(0, len(flat) - 1), max_size=20) if flat else st.just([]))
    assert numbers.take(np.array(chosen, np.int64)).tolist() == [flat[index] for index in chosen]


def indices(*chunks):
    return pa.table({"indices": pa.chunked_array(chunks, pa.uint64())})


@given(st.lists(st.lists(st.integers(0, 19), max_size=9), max_size=4), st.sampled_from(["block", "row"]))
def test_a_list_of_rows_may_be_in_any_order_and_name_a_row_twice(chunks, level):
    inner = Sequential(np.array([0, 12, 20]), np.array([0, 5, 12, 20]))
    selection = Selection(table=indices(*chunks))
    flat = [number for chunk in chunks for number in chunk]
    listed = selection.apply(inner, 0, 0)
    assert isinstance(listed, Listed)
    assert all_rows(listed) == flat
    assert selection.size(20) == listed.size == len(flat)
    check_pieces(listed, "block")
    shuffled = build_order(inner, [selection, Shuffle(seed=1, level=level, window=4)], 3)
    assert sorted(all_rows(shuffled)) == sorted(flat)
    after = build_order(inner, [Shuffle(seed=1, level=level, window=4), selection], 3)
    below = all_rows(build_order(inner, [Shuffle(seed=1, level=level, window=4)], 3))
    assert all_rows(after) == [below[number] for number in flat]


def test_whole_files_cannot_be_asked_of_a_list_of_rows():
    inner = Sequential(np.array([0, 12, 20]), np.array([0, 5, 12, 20]))
    with pytest.raises(ValueError, match=r"do not stay together after a selection of rows.*shard\(mode='example'\)"):
        Selection(table=indices([1, 2])).apply(inner).piece_starts("file")


def test_another_selection_is_described_differently():
    selection = Selection(table=indices([3, 1, 2]))
    assert selection.describe() == Selection(table=indices([3], [1, 2])).describe()
    assert selection.describe()["rows"] == 3
    for other in (indices([3, 2, 1]), indices([3, 1]), indices([3, 1, 4]), indices()):
        assert Selection(table=other).describe() != selection.describe()


def test_a_long_selection_is_described_by_a_sample_that_has_both_ends():
    numbers = np.arange(100_000, dtype=np.uint64)
    described = Selection(table=indices(numbers)).describe()
    for moved in (np.roll(numbers, 1), numbers[::-1]):
        assert Selection(table=indices(moved)).describe() != described
    assert described["rows"] == 100_000


def left_out(kind, rows):
    return kind(rows=np.array(sorted(rows), np.int64))


@given(sequences(), st.data(), st.sampled_from(["file", "block"]))
def test_rows_that_are_left_out_leave_all_others_in_place(inner, data, level):
    gone = data.draw(st.sets(st.integers(0, inner.size - 1))) if inner.size else set()
    step = left_out(Deletes, gone)
    order = step.apply(inner)
    assert all_rows(order) == [row for row in range(inner.size) if row not in gone]
    assert order.size == step.size(inner.size)
    owners = np.searchsorted(inner.piece_starts(level), all_rows(order), "right").tolist()
    assert all(len(set(owners[begin:end])) <= 1 for begin, end in pairwise(check_pieces(order, level)))


@pytest.mark.parametrize("kind", [Deletes, Without])
def test_a_state_knows_which_rows_are_left_out(kind):
    described = left_out(kind, {1, 2}).describe()
    assert described == {"op": kind.__name__.lower(), "rows": 2, "digest": "96a3cf72d606b6a4"}
    assert left_out(kind, {1, 3}).describe() != described
    assert pickle.loads(pickle.dumps(left_out(kind, {1, 2}))).describe() == described


@pytest.mark.parametrize("start", [None, 0, 3, 9, 10, 12, -1, -10, -12])
@pytest.mark.parametrize("stop", [None, 0, 3, 9, 10, 12, -1, -10, -12])
def test_bounds_are_those_of_python(start, stop):
    assert list(range(*slice_bounds(start, stop, 10))) == list(range(10))[start:stop]
