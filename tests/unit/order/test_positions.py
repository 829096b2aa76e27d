"""From a row back to its position, for every order and any composition of them, against the plain list of rows."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kept_bits import Bits, starts_of
from midepoch.order.orders import Ranges, Sequential, Shuffle, Slice, build_order, lanes_by_file
from midepoch.order.permutation import TABLE, permute, unpermute
from midepoch.order.selection import Deletes, Selection, Slices, Surveyed, TrainTestSplit
from midepoch.sources.lane import generations, lane_of_generations, rows_of_files

FILES = st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=4)


def assert_found(order, total):
    rows = order.rows(np.arange(order.size))
    for row in range(total):
        assert sorted(order.positions(np.array([row])).tolist()) == np.flatnonzero(rows == row).tolist()
    assert sorted(order.positions(np.arange(total)).tolist()) == list(range(order.size))


@st.composite
def scattering_steps(draw, total):
    """Steps that may follow any others."""
    steps = []
    for kind in draw(st.lists(st.sampled_from(["row", "block", "slice", "split", "listed"]), max_size=3)):
        if kind in ("row", "block"):
            blocks = draw(st.integers(1, 3))
            steps.append(
                Shuffle(seed=draw(st.integers(0, 9)), level=kind, window=5, window_blocks=blocks, window_bytes=1 << 20)
            )
        elif kind == "slice":
            steps.append(Slice(start=draw(st.integers(0, 5)), stop=draw(st.none() | st.integers(0, total))))
        elif kind == "split":
            half = draw(st.sampled_from(["train", "test"]))
            steps.append(TrainTestSplit(half=half, test_size=0.4, seed=draw(st.integers(0, 9))))
        elif total and not steps:  # a list names rows that are there
            numbers = draw(st.lists(st.integers(0, total - 1), max_size=12))
            steps.append(Selection(table=pa.table({"indices": pa.array(numbers, pa.uint64())})))
    return steps


@st.composite
def orders(draw):
    file_starts, block_starts = starts_of(draw(FILES))
    total = int(block_starts[-1])
    base, steps = Sequential(file_starts, block_starts), []
    if draw(st.booleans()):
        kept = np.array([draw(st.booleans()) for _ in block_starts[1:]], bool)
        base = Ranges.of_blocks(file_starts, block_starts, kept)
    first = draw(st.sampled_from(["none", "intervals", "deletes", "surveyed"]))
    if first == "intervals":
        numbers = st.integers(0, total)
        steps.append(Slices(intervals=tuple(draw(st.lists(st.tuples(numbers, numbers), max_size=3)))))
    elif first == "deletes" and total:
        deleted = sorted(draw(st.sets(st.integers(0, total - 1))))
        steps.append(Deletes(rows=np.array(deleted, np.int64)))
    elif first == "surveyed":
        bits = Bits([draw(st.booleans()) for _ in range(total)])
        steps.append(Surveyed.of(bits, build_order(base, steps, 0), 1))
    size = build_order(base, steps, 0).size
    return build_order(base, [*steps, *draw(scattering_steps(size))], draw(st.integers(0, 2))), total


@settings(max_examples=300, deadline=None)
@given(orders())
def test_a_row_is_found_at_every_position_that_it_has(case):
    assert_found(*case)


@given(FILES, st.integers(0, 9), st.integers(1, 3))
def test_rows_of_shuffled_files_are_found_in_their_lane(files, seed, lanes):
    base = Sequential(*starts_of(files))
    for level in ("file", "block"):
        shuffle = Shuffle(seed=seed, level=level, window=4)
        for lane in lanes_by_file(base, [shuffle], 1, lanes):
            assert_found(lane, base.size)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=6), st.integers(1, 3), st.integers(0, 9))
def test_rows_of_appended_files_are_found(sizes, lanes, seed):
    sequential = Sequential(*starts_of([[size] for size in sizes]))
    starts = sequential.piece_starts("file")
    first = np.arange(len(sizes) + 1)
    view = SimpleNamespace(file_starts=starts, first_blocks=first)
    subsets = [rows_of_files(files, view, sequential.blocks) for files in generations((((0, 1),),), len(sizes))]
    each = [build_order(subset, [Shuffle(seed=seed, level="row", window=4)], 0) for subset in subsets]
    for lane in range(lanes):
        assert_found(lane_of_generations(each, lanes, lane), sequential.size)


@pytest.mark.parametrize("n", [1, 2, 1000, TABLE, TABLE + 1, 10**9, (1 << 40) + 7])
def test_a_permutation_is_undone(n):
    positions = np.unique(np.linspace(0, n - 1, 500).astype(np.int64))
    for key in (0, 7, (1 << 64) - 1):
        assert unpermute(permute(positions, n, key), n, key).tolist() == positions.tolist()
