"""The quality of a shuffle: figures that can be computed by hand, and work that does not grow with the rows."""

import numpy as np

from midepoch.order.orders import Interval, Sequential, Shuffle, ShuffledWindows, build_order
from midepoch.order.quality import measure_quality


def blocks_of(rows, block):
    return np.append(np.arange(0, rows, block), rows).astype(np.int64)


def sequential(rows, block):
    return Sequential(np.array([0, rows], np.int64), blocks_of(rows, block))


def windows_of_one_block(base, seed=1):
    """Blocks permuted, and rows inside each block: as a shuffle does whose window holds one block."""
    return ShuffledWindows(base, base.piece_starts("block"), seed)


class Counted:
    """An order that counts the positions it is asked for."""

    def __init__(self, inner):
        self._inner, self.asked, self.size, self.blocks = inner, 0, inner.size, inner.blocks

    def rows(self, positions):
        self.asked += len(positions)
        return self._inner.rows(positions)


def quality(lanes, block, *, batch_size, permutation=None):
    starts = blocks_of(max(lane.size for lane in lanes) * len(lanes), block)
    return measure_quality(
        lanes, permutation or lanes[0], block_starts=starts, block_count=len(starts) - 1, batch_size=batch_size
    )


def test_the_work_does_not_grow_with_the_rows():
    asked = {}
    for rows in (10**7, 10**12):
        block = rows // 1000
        order = Counted(build_order(sequential(rows, block), [Shuffle(seed=1, level="row", window=1)], 0))
        lanes = [Interval(order, start, start + rows // 8) for start in range(0, rows, rows // 8)]
        quality(lanes, block, batch_size=512, permutation=order)
        asked[rows] = order.asked
    assert asked[10**12] <= asked[10**7] <= 200_000


def test_the_figures_can_be_read():
    base = sequential(4000, 100)
    lanes = [Interval(windows_of_one_block(base), start, start + 2000) for start in (0, 2000)]
    first, second = str(quality(lanes, 100, batch_size=100)).splitlines()
    assert first == "4,000 rows in 40 blocks, 100 rows a batch in 2 lanes"
    assert second.startswith("blocks per batch: 1.0, at least 1 (full permutation: 1")
    assert second.endswith("rows in turn from all lanes: 2.0)")
