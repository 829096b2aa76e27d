"""How well an order mixes: how many blocks a batch comes from, and how much a row says about the next one.

The figures follow from the order alone; no data is read. They are taken from a fixed sample of batches, so the work
does not grow with the number of rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from midepoch._common.checks import count, size_in_words
from midepoch._common.hashing import I64, key_of
from midepoch.order.orders import Order, OrderStep, Shuffle, ShuffledRows, ShuffledWindows, build_order
from midepoch.order.permutation import permute
from midepoch.order.windows import Blocks

SAMPLED_BATCHES = 128
SAMPLED_WINDOWS, SAMPLED_ROWS = 32, 8192
LEAST_STEPS = 4
"""The sample of rows in turn has at least this many steps; every step asks all lanes."""
_KEY = key_of("shuffle_quality")


@dataclass(frozen=True, kw_only=True)
class WindowQuality:
    """The windows in which ``shuffle(level="block")`` permutes rows. All but ``count`` are medians."""

    count: int
    """The number of windows of an epoch."""
    rows: int
    """The rows of a window."""
    blocks: int
    """The blocks that a window has rows of."""
    bytes: int
    """The bytes that a lane holds for it, as the index knows them: those of these blocks."""
    limited_by_bytes: bool
    """True if ``window_bytes`` makes windows smaller than ``window`` and ``window_blocks`` ask for."""


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
    neighbour_correlation: float | None
    """Spearman's rank correlation of the numbers of two consecutive rows: 1 if in file order, 0 if independent."""
    position_correlation: float | None
    """Spearman's rank correlation of a row's number and its position in the epoch: 1 if in file order."""
    window: WindowQuality | None
    """The windows of a shuffle by blocks."""

    def __str__(self) -> str:
        lanes = f" in {count('lane', self.lanes)}" if self.lanes > 1 else ""
        lines = [
            f"{count('row', self.rows)} in {count('block', self.blocks)}, {self.batch_size:,} rows a batch{lanes}",
            f"blocks per batch: {self.blocks_per_batch:.1f}, at least {self.fewest_blocks:,} "
            f"(full permutation: {self.blocks_of_permutation:.1f})",
        ]
        if self.lanes > 1:
            lines.append(f"blocks per {self.batch_size:,} rows in turn from all lanes: {self.blocks_across_lanes:.1f}")
        lines.append(
            f"rank correlation: {_correlation(self.neighbour_correlation)} between neighbours, "
            f"{_correlation(self.position_correlation)} between row and position"
        )
        if self.window is not None:
            batches = count("batch", max(1, self.window.rows // self.batch_size), "batches")
            of_median = f"{count('row', self.window.rows)} ({batches}), {count('block', self.window.blocks)}"
            limited = ", limited by window_bytes" if self.window.limited_by_bytes else ""
            lines.append(
                f"{count('window', self.window.count)} of {of_median}, {size_in_words(self.window.bytes)}{limited}"
            )
        return "\n".join(lines)


def _correlation(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def spearman(left: I64, right: I64) -> float | None:
    """Spearman's rank correlation; None if one side has fewer than two different values."""
    if len(left) < 2:
        return None
    ranks = np.stack([_ranks(left), _ranks(right)])
    deviations = ranks - ranks.mean(axis=1, keepdims=True)
    squares = (deviations**2).sum(axis=1)
    if not squares.all():
        return None
    return float((deviations[0] * deviations[1]).sum() / np.sqrt(squares[0] * squares[1]))


def _ranks(values: I64) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The ranks of values; equal ones share the mean of theirs."""
    rising = np.sort(values)
    ranks: np.ndarray[tuple[int], np.dtype[np.float64]] = (
        np.searchsorted(rising, values, "left") + np.searchsorted(rising, values, "right")
    ) / 2
    return ranks


def measure_quality(
    lanes: Sequence[Order],
    permutation: Order,
    shuffled: Sequence[Order],
    *,
    shuffle: Shuffle | None,
    blocks: Blocks,
    block_count: int,
    batch_size: int,
) -> ShuffleQuality:
    """The quality of an epoch whose lanes have these orders.

    ``permutation`` is what they are compared with. ``shuffled`` are the orders as the last ``shuffle`` left them; if
    they have windows, these are measured. ``blocks`` are all blocks, and ``block_count`` is how many are used.
    """
    batches = list(_batches(lanes, batch_size))
    if not batches:
        raise ValueError("The order has no rows, so there is no batch to look at. Check files, filters, take and skip.")
    numbers = [rows for _, rows in batches]
    distinct = [_count_blocks(rows, blocks.starts) for rows in numbers]
    in_turn = distinct
    if len(lanes) > 1:
        in_turn = [_count_blocks(rows, blocks.starts) for rows in _in_turn(lanes, batch_size)] or distinct
    permuted = [_count_blocks(rows, blocks.starts) for _, rows in _batches([permutation], batch_size)]
    return ShuffleQuality(
        rows=sum(lane.size for lane in lanes),
        blocks=block_count,
        batch_size=batch_size,
        lanes=len(lanes),
        blocks_per_batch=float(np.mean(distinct)),
        fewest_blocks=min(distinct),
        blocks_across_lanes=float(np.mean(in_turn)),
        blocks_of_permutation=float(np.mean(permuted)),
        neighbour_correlation=spearman(
            np.concatenate([rows[:-1] for rows in numbers]), np.concatenate([rows[1:] for rows in numbers])
        ),
        position_correlation=spearman(np.concatenate([positions for positions, _ in batches]), np.concatenate(numbers)),
        window=_measure_windows([order for order in shuffled if isinstance(order, ShuffledWindows)], shuffle, blocks),
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


def _batches(lanes: Sequence[Order], batch_size: int) -> Iterator[tuple[I64, I64]]:
    """The positions in the epoch, and the rows, of a sample of batches. The last batch of a lane ends with it."""
    lane_starts = np.cumsum([0, *(lane.size for lane in lanes)])
    first_batches = np.cumsum([0, *(-(-lane.size // batch_size) for lane in lanes)])
    for batch in _sample(int(first_batches[-1]), SAMPLED_BATCHES).tolist():
        number = int(np.searchsorted(first_batches, batch, "right")) - 1
        lane = lanes[number]
        start = max(0, min((batch - int(first_batches[number])) * batch_size, lane.size - batch_size))
        positions = np.arange(start, min(start + batch_size, lane.size))
        yield positions + int(lane_starts[number]), lane.rows(positions)


def _in_turn(lanes: Sequence[Order], batch_size: int) -> Iterator[I64]:
    """The rows of a sample of steps, in which lanes yield ``batch_size`` rows in turn."""
    steps = min(lane.size for lane in lanes) * len(lanes) // batch_size
    for step in _sample(steps, max(LEAST_STEPS, SAMPLED_BATCHES // len(lanes))).tolist():
        turns = np.arange(step * batch_size, (step + 1) * batch_size)
        positions = [turns[turns % len(lanes) == lane] // len(lanes) for lane in range(len(lanes))]
        yield np.concatenate([lane.rows(at) for lane, at in zip(lanes, positions, strict=True) if len(at)])


def _count_blocks(rows: I64, starts: I64) -> int:
    return len(np.unique(np.searchsorted(starts, rows, "right")))


def _measure_windows(
    orders: Sequence[ShuffledWindows], shuffle: Shuffle | None, blocks: Blocks
) -> WindowQuality | None:
    """Medians over a sample of the windows of all orders."""
    sample = [
        _window_figures(order, window, blocks)
        for order in orders
        for window in _sample(len(order.piece_starts("block")) - 1, max(1, SAMPLED_WINDOWS // len(orders))).tolist()
    ]
    if not sample or shuffle is None:
        return None
    windows = sum(len(order.piece_starts("block")) - 1 for order in orders)
    rows, pieces, of_blocks, nbytes = np.median(sample, axis=0).astype(np.int64).tolist()
    # Only the bytes make a window smaller than asked for. Pieces of scattered rows, from many blocks, are not counted.
    is_small = rows < shuffle.window or pieces < shuffle.window_blocks
    return WindowQuality(
        count=windows,
        rows=rows,
        blocks=of_blocks,
        bytes=nbytes,
        limited_by_bytes=windows > len(orders) and of_blocks <= pieces and is_small,
    )


def _window_figures(order: ShuffledWindows, window: int, blocks: Blocks) -> tuple[int, int, int, int]:
    """The rows, pieces, blocks and bytes of a window."""
    begin, end = order.piece_starts("block")[[window, window + 1]].tolist()
    pieces = order.inner.piece_starts("block")
    pieces = pieces[np.searchsorted(pieces, begin) : np.searchsorted(pieces, end)]
    inside = np.linspace(begin, end - 1, min(end - begin, SAMPLED_ROWS), dtype=np.int64)
    # The first row of a piece names its block. A piece of scattered rows has several, so look inside too.
    owners = np.unique(blocks.owner(order.inner.rows(np.append(pieces, inside))))
    return end - begin, len(pieces), len(owners), int(blocks.nbytes[owners].sum())
