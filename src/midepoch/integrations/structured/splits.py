"""Splits: parts of files of about equal bytes or rows, and the shuffle that permutes them."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from midepoch._common.hashing import I64, key_of
from midepoch.index.index import IndexView
from midepoch.order.orders import Order, Shuffle, ShuffledPieces, ShuffledWindows
from midepoch.order.windows import distinct, windows_of_rows


class SplitOrder:
    """An order with splits for its pieces, in place of files."""

    def __init__(self, inner: Order, bounds: I64) -> None:
        self._inner, self._bounds, self.blocks = inner, bounds, inner.blocks
        self.size = inner.size

    def rows(self, positions: I64) -> I64:
        return self._inner.rows(positions)

    def positions(self, rows: I64) -> I64:
        return self._inner.positions(rows)

    def piece_starts(self, level: Literal["file", "block"]) -> I64:
        return self._bounds if level == "file" else self._inner.piece_starts(level)


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """Where files are cut into splits: between blocks, after about ``most_bytes`` bytes or ``most_rows`` rows."""

    index: IndexView
    most_bytes: int | None = None
    most_rows: int | None = None

    def cut(self, order: Order) -> SplitOrder:
        """The order, which must be one of whole blocks, with splits for its pieces."""
        bounds = distinct(order.piece_starts("block"))
        if not order.size:
            return SplitOrder(order, np.zeros(1, np.int64))
        firsts = order.rows(bounds[:-1])
        files = np.searchsorted(self.index.file_starts, firsts, "right") - 1
        opens = np.diff(files, prepend=-1) != 0
        for most, sizes in ((self.most_bytes, self._bytes(firsts)), (self.most_rows, np.diff(bounds))):
            if most is not None:
                before = np.cumsum(sizes) - sizes
                before_file = before[np.maximum.accumulate(np.where(opens, np.arange(len(opens)), 0))]
                opens = opens | (np.diff((before - before_file) // most, prepend=-1) != 0)
        return SplitOrder(order, np.append(bounds[:-1][opens], bounds[-1]).astype(np.int64))

    def _bytes(self, rows: I64) -> I64:
        """The bytes of the blocks that begin at these rows."""
        starts = self.index.block_starts
        lengths: I64 = self.index.block_lengths[np.searchsorted(starts, rows, "right") - 1]
        return lengths

    def describe(self) -> dict[str, int]:
        """The sizes that a state remembers."""
        sizes = {"split_bytes": self.most_bytes, "split_rows": self.most_rows}
        return {name: size for name, size in sizes.items() if size is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleSplits(Shuffle):
    """A shuffle of the splits, then of the rows inside windows.

    A window is a part of one split, or several whole splits, which form a *group*. So all splits of a group are done
    before the next group begins.
    """

    splitting: Splitting
    permutes: bool = True
    """False if only the rows inside windows change places, and splits stay in the order of the files."""
    level: Literal["file", "block", "row"] = "block"
    window_bytes: int = 0  # windows are cut by rows alone

    def apply(self, inner: Order, *key: int | str) -> Order:
        splits = self.permuted(inner, *key)
        if not self.window:
            return splits
        blocks = windows_of_rows(splits.piece_starts("block"), self.window)
        starts = np.unique(np.concatenate([self.groups(splits), blocks]))
        return ShuffledWindows(splits, starts, key_of(self.seed, "window", *key))

    def permuted(self, inner: Order, *key: int | str) -> Order:
        """The splits, permuted; the rows inside each keep their order. Pieces at level "file" are the splits."""
        if not self.permutes:
            return self.splitting.cut(inner)
        return ShuffledPieces(self.splitting.cut(inner), "file", key_of(self.seed, "split", *key))

    def groups(self, splits: Order) -> I64:
        """The first position of each group, and the end."""
        return windows_of_rows(splits.piece_starts("file"), max(1, self.window))

    def describe(self) -> dict[str, Any]:
        return {
            "op": "shuffle",
            "level": "split",
            "seed": self.seed,
            "window": self.window,
            **({} if self.permutes else {"permutes": False}),
            **self.splitting.describe(),
        }
