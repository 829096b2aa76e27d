"""How well an order mixes: how many blocks a batch comes from, and how many it could.

The figures follow from the order alone; no data is read. They are taken from a fixed sample of batches, so the work
does not grow with the number of rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from midepoch._common.checks import count
from midepoch._common.hashing import I64, key_of
from midepoch.order.orders import Order, OrderStep, Shuffle, ShuffledRows, build_order
from midepoch.order.permutation import permute

SAMPLED_BATCHES = 128
LEAST_STEPS = 4
"""The sample of rows in turn has at least this many steps; every step asks all lanes."""
_KEY = key_of("shuffle_quality")


@dataclass(frozen=True, kw_only=True)
class ShuffleQuality:
    """How well an order mixes. ``print`` it, or use its fields.

    A block is what one read fetches: a row group, a run of lines, or a small run of rows of uncompressed Arrow. A batch
    is ``batch_size`` consecutive rows of a lane. Numbers of blocks are means over a sample of batches.
    """

    rows: int
    """The rows of an epoch, before a filter that reads them."""
    blocks: int
    """The blocks of the dataset that have rows, without those that ``read(filters=...)`` ruled out."""
    batch_size: int
    lanes: int
    blocks_per_batch: float
    """How many blocks a batch has rows of."""
    fewest_blocks: int
    """The same, for the batch with the fewest."""
    blocks_across_lanes: float
    """How many blocks ``batch_size`` rows come from if all lanes yield a row in turn."""
    blocks_of_permutation: float
    """How many blocks a batch would have rows of after ``shuffle(level="row")``: as many as possible."""

    def __str__(self) -> str:
        lanes = f" in {count('lane', self.lanes)}" if self.lanes > 1 else ""
        in_turn = f"; rows in turn from all lanes: {self.blocks_across_lanes:.1f}" if self.lanes > 1 else ""
        return (
            f"{count('row', self.rows)} in {count('block', self.blocks)}, {self.batch_size:,} rows a batch{lanes}\n"
            f"blocks per batch: {self.blocks_per_batch:.1f}, at least {self.fewest_blocks:,} "
            f"(full permutation: {self.blocks_of_permutation:.1f}{in_turn})"
        )


def measure_quality(
    lanes: Sequence[Order], permutation: Order, *, block_starts: I64, block_count: int, batch_size: int
) -> ShuffleQuality:
    """The quality of an epoch whose lanes have these orders. ``permutation`` is what they are compared with.

    ``block_starts`` are the first rows of all blocks, and ``block_count`` is how many of them are used.
    """

    def counted(batches: Iterator[I64]) -> list[int]:
        return [len(np.unique(np.searchsorted(block_starts, rows, "right"))) for rows in batches]

    distinct = counted(_batches(lanes, batch_size))
    if not distinct:
        raise ValueError("The order has no rows, so there is no batch to look at. Check files, filters, take and skip.")
    return ShuffleQuality(
        rows=sum(lane.size for lane in lanes),
        blocks=block_count,
        batch_size=batch_size,
        lanes=len(lanes),
        blocks_per_batch=float(np.mean(distinct)),
        fewest_blocks=min(distinct),
        blocks_across_lanes=float(np.mean(counted(_in_turn(lanes, batch_size)) or distinct)),
        blocks_of_permutation=float(np.mean(counted(_batches([permutation], batch_size)))),
    )


def full_permutation(base: Order, steps: Sequence[OrderStep], epoch: int) -> Order:
    """The order of an epoch if every shuffle, or one more at the end, permuted all rows."""
    by_row = [replace(step, level="row") if isinstance(step, Shuffle) else step for step in steps]
    order = build_order(base, by_row, epoch)
    return order if any(isinstance(step, Shuffle) for step in steps) else ShuffledRows(order, _KEY)


def _sample(size: int, wanted: int) -> I64:
    """Rising numbers below ``size``: all of them if they are few, else a fixed sample with the first and the last."""
    if size <= wanted:
        return np.arange(size)
    drawn = permute(np.arange(wanted), size, _KEY)
    return np.unique(np.append(drawn, [0, size - 1]))


def _batches(lanes: Sequence[Order], batch_size: int) -> Iterator[I64]:
    """The rows of a sample of batches. The last batch of a lane ends with it."""
    first_batches = np.cumsum([0, *(-(-lane.size // batch_size) for lane in lanes)])
    for batch in _sample(int(first_batches[-1]), SAMPLED_BATCHES).tolist():
        number = int(np.searchsorted(first_batches, batch, "right")) - 1
        lane = lanes[number]
        start = max(0, min((batch - int(first_batches[number])) * batch_size, lane.size - batch_size))
        yield lane.rows(np.arange(start, min(start + batch_size, lane.size)))


def _in_turn(lanes: Sequence[Order], batch_size: int) -> Iterator[I64]:
    """The rows of a sample of steps, in which lanes yield ``batch_size`` rows in turn."""
    steps = min(lane.size for lane in lanes) * len(lanes) // batch_size
    for step in _sample(steps, max(LEAST_STEPS, SAMPLED_BATCHES // len(lanes))).tolist():
        turns = np.arange(step * batch_size, (step + 1) * batch_size)
        positions = [turns[turns % len(lanes) == lane] // len(lanes) for lane in range(len(lanes))]
        yield np.concatenate([lane.rows(at) for lane, at in zip(lanes, positions, strict=True) if len(at)])
