"""The quality of a shuffle: figures that can be computed by hand, and work that does not grow with the rows."""

from math import comb

import numpy as np
import pyarrow as pa
import pytest

from midepoch.order.orders import Interval, Sequential, Shuffle, ShuffledWindows, Slice, build_order
from midepoch.order.quality import full_permutation, measure_quality, spearman
from midepoch.order.selection import ChunkedNumbers, Listed
from midepoch.order.windows import Blocks

BLOCK_BYTES = 70


def blocks_of(rows, block):
    return np.append(np.arange(0, rows, block), rows).astype(np.int64)


def sequential(rows, block):
    return Sequential(np.array([0, rows], np.int64), blocks_of(rows, block))


def windows_of_one_block(base, seed=1):
    """Blocks permuted, and rows inside each block: as a shuffle does whose window holds one block."""
    starts = base.piece_starts("block")
    return ShuffledWindows(base, starts, seed)


class Counted:
    """An order that counts the positions it is asked for."""

    def __init__(self, inner):
        self._inner, self.asked, self.size, self.blocks = inner, 0, inner.size, inner.blocks

    def rows(self, positions):
        self.asked += len(positions)
        return self._inner.rows(positions)

    def piece_starts(self, level):
        return self._inner.piece_starts(level)


def quality(lanes, block, *, batch_size, permutation=None, shuffled=(), shuffle=None, divisible=False):
    lanes = list(lanes)
    rows = max(lane.size for lane in lanes) * len(lanes)
    starts = blocks_of(rows, block)
    number = len(starts) - 1
    blocks = Blocks(starts, np.full(number, BLOCK_BYTES), np.full(number, divisible))
    return measure_quality(
        lanes,
        permutation or lanes[0],
        shuffled,
        shuffle=shuffle or Shuffle(seed=1, level="block", window=1, window_blocks=1, window_bytes=1),
        blocks=blocks,
        block_count=number,
        batch_size=batch_size,
    )


def listed(numbers):
    numbers = np.asarray(numbers, np.int64)
    return Listed(sequential(int(numbers.max()) + 1, 10), ChunkedNumbers(pa.chunked_array([numbers])))


def test_rows_in_file_order_come_from_the_blocks_that_a_batch_overlaps():
    # Batches begin at 0, 150, 300 and 450: each overlaps two blocks of 100 rows.
    assert quality([sequential(600, 100)], 100, batch_size=150).blocks_per_batch == 2
    # Batches begin at 0, 80, 160, 240 and, the last one, at 300: two of them overlap two blocks.
    measured = quality([sequential(380, 100)], 100, batch_size=80)
    assert measured.blocks_per_batch == (1 + 2 + 2 + 2 + 1) / 5
    assert measured.fewest_blocks == 1


def test_spearman_is_that_of_ranks_and_not_of_values():
    assert spearman(np.array([1, 2, 3, 4]), np.array([2, 1, 4, 3])) == pytest.approx(0.6)
    assert spearman(np.array([1, 2, 3, 400]), np.array([10, 20, 30, 31])) == pytest.approx(1)
    # Equal values share their ranks: [1, 2.5, 2.5, 4] and [1, 2, 3, 4].
    assert spearman(np.array([1, 2, 2, 3]), np.array([1, 2, 3, 4])) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


@pytest.mark.parametrize("values", [[], [5], [5, 5, 5]])
def test_too_few_values_have_no_correlation(values):
    numbers = np.array(values, np.int64)
    assert spearman(numbers, np.arange(len(numbers))) is None


def test_a_full_permutation_comes_from_as_many_blocks_as_chance_allows():
    rows, block, batch = 50_000, 100, 512
    base = sequential(rows, block)
    order = full_permutation(base, [], 0)
    measured = quality([order], block, batch_size=batch)
    missed = comb(rows - block, batch) / comb(rows, batch)
    assert measured.blocks_per_batch == pytest.approx(rows // block * (1 - missed), rel=0.01)
    assert abs(measured.neighbour_correlation) < 0.02
    assert abs(measured.position_correlation) < 0.02


def test_the_full_permutation_keeps_what_was_selected():
    base = sequential(1000, 10)
    steps = [Slice(start=100, stop=300), Shuffle(seed=1, level="file", window=1)]
    for given in (steps, steps[:1]):
        order = full_permutation(base, given, 0)
        assert sorted(order.rows(np.arange(order.size)).tolist()) == list(range(100, 300))
        assert order.rows(np.arange(order.size)).tolist() != list(range(100, 300))


def test_rows_in_turn_come_from_all_lanes():
    base = sequential(4000, 100)
    lanes = [Interval(base, start, start + 1000) for start in range(0, 4000, 1000)]
    measured = quality(lanes, 100, batch_size=100)
    assert (measured.lanes, measured.rows) == (4, 4000)
    assert measured.blocks_per_batch == 1
    assert measured.blocks_across_lanes == 4  # 25 rows of each lane


def test_the_last_batch_is_in_the_sample():
    # 100,000 rows, of which the last 500 come from one block. The others come from two blocks in turn.
    mixed = np.arange(99_500) // 2 + np.where(np.arange(99_500) % 2, 49_750, 0)
    numbers = np.append(mixed, np.arange(99_500, 100_000))
    measured = quality([listed(numbers)], 500, batch_size=100)
    assert measured.fewest_blocks == 1


def test_windows_are_counted_in_stored_blocks_rows_and_bytes():
    base = sequential(1000, 10)
    # Windows of 30 rows, with 3 blocks each. The last one of 33 has 40 rows, which a median ignores.
    order = ShuffledWindows(base, np.array([*range(0, 961, 30), 1000]), 1)
    window = quality([order], 10, batch_size=10, shuffled=[order]).window
    assert (window.count, window.rows, window.blocks, window.bytes) == (33, 30, 3, 3 * BLOCK_BYTES)
    # The same windows over stored blocks of 60 rows, each of which has two windows.
    window = quality([order], 60, batch_size=10, shuffled=[order]).window
    assert (window.blocks, window.bytes) == (1, BLOCK_BYTES)


@pytest.mark.parametrize(
    ("asked", "limited"),
    [
        ({"window": 30, "window_blocks": 3}, False),
        ({"window": 31, "window_blocks": 3}, True),
        ({"window": 30, "window_blocks": 4}, True),
    ],
)
def test_a_window_that_is_smaller_than_asked_for_is_limited_by_bytes(asked, limited):
    order = ShuffledWindows(sequential(1000, 10), np.array([*range(0, 1000, 30), 1000]), 1)
    shuffle = Shuffle(seed=1, level="block", **asked, window_bytes=1)
    measured = quality([order], 10, batch_size=10, shuffled=[order], shuffle=shuffle)
    assert measured.window.limited_by_bytes is limited
    assert ("limited by window_bytes" in str(measured)) is limited


def test_a_window_of_one_block_is_told_from_a_permutation():
    base = sequential(100_000, 1000)
    order = windows_of_one_block(base)
    measured = quality([order], 1000, batch_size=500, permutation=full_permutation(base, [], 0), shuffled=[order])
    assert (measured.blocks_per_batch, measured.fewest_blocks) == (1, 1)
    assert measured.blocks_of_permutation > 95
    assert measured.neighbour_correlation > 0.95


def test_the_work_does_not_grow_with_the_rows():
    asked = {}
    for rows in (10**7, 10**12):
        block = rows // 1000
        order = Counted(build_order(sequential(rows, block), [Shuffle(seed=1, level="row", window=1)], 0))
        lanes = [Counted(Interval(order, start, start + rows // 8)) for start in range(0, rows, rows // 8)]
        quality(lanes, block, batch_size=512, permutation=order)
        asked[rows] = order.asked
    assert asked[10**12] <= asked[10**7] <= 200_000


def test_the_figures_can_be_read():
    base = sequential(4000, 100)
    order = windows_of_one_block(base)
    lanes = [Interval(order, start, start + 2000) for start in (0, 2000)]
    text = str(quality(lanes, 100, batch_size=100, permutation=full_permutation(base, [], 0), shuffled=[order]))
    assert text.splitlines()[0] == "4,000 rows in 40 blocks, 100 rows a batch in 2 lanes"
    assert text.splitlines()[1].startswith("blocks per batch: 1.0, at least 1 (full permutation: 3")
    assert "in turn from all lanes: 2.0" in text
    assert text.splitlines()[-1] == "40 windows of 100 rows (1 batch), 1 block, 70 bytes"
