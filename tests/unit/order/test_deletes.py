"""Orders without deleted rows, against plain lists."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midepoch.order.deletes import Deletes
from midepoch.order.orders import Sequential, Shuffle, build_order
from midepoch.order.selection import KeptBlocks

FILES = st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=1, max_size=4)


def starts_of(files):
    blocks = np.cumsum([0, *(rows for file in files for rows in file)]).astype(np.int64)
    return blocks[np.cumsum([0, *map(len, files)])], blocks


def all_rows(order):
    return order.rows(np.arange(order.size)).tolist()


def deletes(rows):
    return Deletes(rows=np.array(sorted(rows), np.int64))


@given(FILES, st.data())
def test_deleted_rows_are_left_out_and_all_others_stay(files, data):
    inner = Sequential(*starts_of(files))
    gone = data.draw(st.sets(st.integers(0, inner.size - 1))) if inner.size else set()
    order = deletes(gone).apply(inner)
    kept = [row for row in range(inner.size) if row not in gone]
    assert all_rows(order) == kept
    assert order.size == deletes(gone).size(inner.size) == len(kept)


@given(FILES, st.data(), st.sampled_from(["file", "block"]))
def test_a_piece_lies_in_one_piece_of_the_inner_order(files, data, level):
    inner = Sequential(*starts_of(files))
    gone = data.draw(st.sets(st.integers(0, inner.size - 1))) if inner.size else set()
    order = deletes(gone).apply(inner)
    starts = order.piece_starts(level).tolist()
    assert (starts[0], starts[-1]) == (0, order.size)
    owners = np.searchsorted(inner.piece_starts(level), all_rows(order), "right").tolist()
    assert all(len(set(owners[begin:end])) <= 1 for begin, end in pairwise(starts))


@given(FILES, st.data(), st.randoms(use_true_random=False))
def test_rows_of_blocks_that_are_left_out_already_change_nothing(files, data, random):
    file_starts, block_starts = starts_of(files)
    inner = KeptBlocks(file_starts, block_starts, np.array([random.random() < 0.5 for _ in block_starts[1:]], bool))
    total = int(block_starts[-1])
    gone = data.draw(st.sets(st.integers(0, total - 1))) if total else set()
    assert all_rows(deletes(gone).apply(inner)) == [row for row in all_rows(inner) if row not in gone]


@pytest.mark.parametrize("level", ["file", "block", "row"])
def test_what_is_left_can_be_shuffled(level):
    inner = Sequential(np.array([0, 12, 20]), np.array([0, 5, 12, 20]))
    order = build_order(inner, [deletes({0, 7, 19}), Shuffle(seed=1, level=level, window=4)], 2)
    assert sorted(all_rows(order)) == [row for row in range(20) if row not in (0, 7, 19)]


def test_a_state_knows_which_rows_are_deleted():
    described = deletes({1, 2}).describe()
    assert described == {"op": "deletes", "rows": 2, "digest": "96a3cf72d606b6a4"}
    assert deletes({1, 3}).describe() != described
    assert pickle.loads(pickle.dumps(deletes({1, 2}))).describe() == described
