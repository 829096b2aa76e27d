"""Orders: complete, reproducible, different from epoch to epoch, and composed the way they are written."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midepoch.order.orders import (
    Interval,
    Ranges,
    Sequential,
    Shuffle,
    ShuffledPieces,
    build_order,
    lanes_by_file,
    piece_costs,
)
from midepoch.order.selection import Slices
from midepoch.order.windows import VIRTUAL_PER_BLOCK, Blocks, bounds_of


def sequential(sizes, block):
    """Files of these sizes, in blocks of ``block`` rows and 10 bytes a row."""
    files = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    blocks = [start for first, size in zip(files, sizes, strict=False) for start in range(first, first + size, block)]
    starts = np.array([*blocks, files[-1]], np.int64)
    return Sequential(files, starts, Blocks(starts, 10 * np.diff(starts), np.zeros(len(blocks), bool)))


def rows(order):
    return order.rows(np.arange(order.size)).tolist()


shuffles = st.builds(
    Shuffle,
    seed=st.integers(0, 9),
    level=st.sampled_from(["file", "block", "row"]),
    window=st.integers(1, 50),
    window_blocks=st.integers(1, 9),
    window_bytes=st.integers(1, 1000),
)
sizes = st.lists(st.integers(0, 30), min_size=1, max_size=6)


@given(sizes, st.integers(1, 12), shuffles, st.integers(0, 3))
def test_every_shuffle_is_a_permutation(sizes, block, shuffle, epoch):
    order = build_order(sequential(sizes, block), [shuffle], epoch)
    assert sorted(rows(order)) == list(range(sum(sizes)))


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=6), st.integers(0, 40), st.integers(0, 9))
def test_the_blocks_of_shuffled_files_are_those_of_each_file_in_turn(blocks, skipped, seed):
    """Files and blocks may be empty, and a file may begin in the middle of a block."""
    block_starts = bounds_of(np.array([rows for file in blocks for rows in file], np.int64))
    files = bounds_of(np.array([sum(file) for file in blocks], np.int64))
    inner = Interval(Sequential(files, block_starts), skipped, files[-1])
    shuffled = ShuffledPieces(inner, "file", seed)
    inner_files = inner.piece_starts("file").tolist()
    expected, start = {0}, 0
    for file in shuffled.permutation.tolist():
        begin, end = inner_files[file], inner_files[file + 1]
        expected |= {start} | {
            start + one - begin for one in inner.piece_starts("block").tolist() if begin <= one < end
        }
        start += end - begin
    assert sorted(set(shuffled.piece_starts("block").tolist())) == sorted(expected | {inner.size})
    assert inner.size == 0 or (np.diff(shuffled.piece_starts("block")) > 0).all()


def test_epochs_and_seeds_have_orders_of_their_own():
    base = sequential([50, 50, 50, 50, 50], 10)
    for level in ("file", "block", "row"):
        orders = {
            tuple(rows(build_order(base, [Shuffle(seed=seed, level=level, window=30)], epoch)))
            for seed in range(3)
            for epoch in range(3)
        }
        assert len(orders) == 9


def test_two_shuffles_in_one_pipeline_do_not_undo_each_other():
    shuffle = Shuffle(seed=1, level="row", window=1)
    order = build_order(sequential([64], 8), [shuffle, shuffle], 0)
    assert rows(order) not in (list(range(64)), rows(build_order(sequential([64], 8), [shuffle], 0)))


def test_file_level_keeps_the_rows_of_a_file_together_and_in_order():
    order = rows(build_order(sequential([5, 3, 4], 2), [Shuffle(seed=3, level="file", window=1)], 0))
    runs = [tuple(range(0, 5)), tuple(range(5, 8)), tuple(range(8, 12))]
    found = []
    while order:
        run = next(run for run in runs if run[0] == order[0])
        assert tuple(order[: len(run)]) == run
        found.append(run)
        order = order[len(run) :]
    assert sorted(found) == runs


def test_a_file_shuffle_after_rows_were_scattered_is_refused():
    with pytest.raises(ValueError, match="rows of a file do not stay together"):
        build_order(
            sequential([5, 5], 2),
            [Shuffle(seed=0, level="block", window=4), Shuffle(seed=0, level="file", window=1)],
            0,
        )


@given(sizes, st.integers(1, 12), st.none() | shuffles, st.integers(1, 5))
def test_lanes_by_file_share_no_file(sizes, block, shuffle, lanes):
    steps = [] if shuffle is None else [shuffle]
    base = sequential(sizes, block)
    found = [rows(lane) for lane in lanes_by_file(base, steps, 0, lanes)]
    assert sorted(row for lane in found for row in lane) == list(range(sum(sizes)))
    files = np.searchsorted(np.cumsum(sizes), np.arange(sum(sizes)), "right")
    owners = [{int(files[row]) for row in lane} for lane in found]
    assert sum(map(len, owners)) == len(set().union(*owners))


@given(sizes, st.integers(1, 12), st.integers(1, 40), st.data())
def test_any_positions_of_a_block_shuffle_give_the_rows_that_all_together_give(sizes, block, window, data):
    order = build_order(sequential(sizes, block), [Shuffle(seed=2, level="block", window=window)], 0)
    whole = rows(order)
    some = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=10)) if whole else []
    assert order.rows(np.array(some, np.int64)).tolist() == [whole[position] for position in some]


def test_a_piece_of_a_decoded_block_takes_all_its_bytes_and_one_of_a_divisible_block_its_share():
    starts = np.array([0, 4, 10, 10])
    blocks = Blocks(starts, np.array([40, 60, 0]), np.array([False, True, False]))
    pieces = np.array([0, 4, 7, 10, 10])
    base = Sequential(np.array([0, 10]), pieces, blocks)
    assert piece_costs(base).nbytes.tolist() == [40, 30, 30, 0]
    assert piece_costs(base).shares.tolist() == [VIRTUAL_PER_BLOCK, 1, 1, 0]
    assert piece_costs(Interval(base, 1, 6)).nbytes.tolist() == [40, 20]
    assert piece_costs(Slices(intervals=((8, 9), (3, 5))).apply(base)).nbytes.tolist() == [10, 40, 10]
    kept = Ranges.of_blocks(np.array([0, 10]), pieces, np.array([True, False, True, True]), blocks)
    assert piece_costs(kept).nbytes.tolist() == [40, 30, 0]
