"""Windows: runs of permuted pieces whose rows a block shuffle mixes, sized by rows, blocks and bytes.

All functions are pure, and take a few passes over arrays with one element for each piece.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from midepoch._common.hashing import I64

WINDOW, WINDOW_BLOCKS, WINDOW_BYTES = 8192, 32, 512 << 20
"""The default sizes of a window."""
VIRTUAL_ROWS = 128
"""The rows of a virtual block, at most."""
VIRTUAL_BYTES = 1 << 20
"""The most bytes of a virtual block, unless a row has more."""
VIRTUAL_PER_BLOCK = 32
"""How many virtual blocks count as one in a window: 1,024 of them where a window has 32 other blocks."""
MOST_VIRTUAL = 1 << 20
"""In larger datasets virtual blocks have more rows, so that there are about this many of them."""


class Blocks(NamedTuple):
    """The blocks of a dataset as the index has them, so that an order knows what its pieces cost to hold."""

    starts: I64
    """The first row of each block, and the number of all rows."""
    nbytes: I64
    """The bytes of each block."""
    divisible: npt.NDArray[np.bool_]
    """For each block, whether some of its rows can be read alone. Other blocks are decoded as a whole."""

    @classmethod
    def of_rows(cls, starts: I64) -> "Blocks":
        """Blocks of which only the rows are known."""
        return cls(starts, np.zeros(len(starts) - 1, np.int64), np.zeros(len(starts) - 1, bool))

    def some(self, numbers: I64) -> "Blocks":
        """Blocks with these numbers, as a dataset of them alone would have them."""
        return Blocks(bounds_of(np.diff(self.starts)[numbers]), self.nbytes[numbers], self.divisible[numbers])

    def divided(self) -> "Blocks":
        """The virtual blocks, as a dataset would have them that stores these."""
        counts = virtual_counts(self)
        starts, divisible = virtual_starts(self, counts), np.repeat(self.divisible, counts)
        row_bytes = np.repeat(self.nbytes / np.maximum(np.diff(self.starts), 1), counts)
        nbytes = np.where(divisible, row_bytes * np.diff(starts), np.repeat(self.nbytes, counts))
        return Blocks(starts, nbytes.astype(np.int64), divisible)

    def owner(self, rows: I64) -> I64:
        """The block of each row."""
        owners: I64 = np.searchsorted(self.starts, rows, "right") - 1
        return owners


def virtual_counts(blocks: Blocks) -> I64:
    """Into how many virtual blocks each block is divided. Blocks that are decoded as a whole are not divided."""
    rows = np.diff(blocks.starts)
    size = rows_of_virtual(int(rows.sum(where=blocks.divisible)))
    counts = np.minimum(np.maximum(-(-rows // size), -(-blocks.nbytes // VIRTUAL_BYTES)), rows)
    return np.maximum(np.where(blocks.divisible, counts, 1), 1).astype(np.int64)


def rows_of_virtual(rows: int) -> int:
    """How many rows a virtual block has, at most, if there are ``rows`` rows to divide."""
    return max(VIRTUAL_ROWS, -(-rows // MOST_VIRTUAL))


def virtual_starts(blocks: Blocks, counts: I64) -> I64:
    """The first row of each virtual block, and the end. Those of one block differ by one row at most."""
    numbers = np.arange(int(counts.sum())) - np.repeat(bounds_of(counts)[:-1], counts)
    rows, of_block = np.repeat(np.diff(blocks.starts), counts), np.repeat(counts, counts)
    starts: I64 = np.repeat(blocks.starts[:-1], counts) + rows * numbers // of_block
    return np.append(starts, blocks.starts[-1]).astype(np.int64)


def windows_of_rows(piece_starts: I64, window: int) -> I64:
    """The first position of each window, and the end.

    A window is a run of whole pieces, of about ``window`` rows together, or one longer piece.
    """
    opens = np.flatnonzero(np.diff(piece_starts[:-1] // window, prepend=-1))
    return np.append(piece_starts[:-1][opens], piece_starts[-1]).astype(np.int64)


class PieceCosts(NamedTuple):
    """What the pieces of an order cost and count in a window."""

    nbytes: I64
    """The bytes that each takes in memory."""
    shares: I64
    """1 for a virtual block, ``VIRTUAL_PER_BLOCK`` for any other."""


def windows_of_blocks(piece_starts: I64, costs: PieceCosts, *, rows: int, blocks: int, most_bytes: int) -> I64:
    """The first position of each window, and the end.

    A window is the shortest run of whole pieces that has at least ``rows`` rows and counts as ``blocks`` blocks, or as
    many pieces as fit ``most_bytes``, at least one. Pieces that are left at the end join the last window, or share its
    pieces evenly if all together do not fit.
    """
    has_rows = np.diff(piece_starts) > 0
    piece_starts = piece_starts[np.append(has_rows, True)]
    nbytes, shares = bounds_of(costs.nbytes[has_rows]), bounds_of(costs.shares[has_rows])
    pieces = len(piece_starts) - 1
    if not pieces:
        return piece_starts
    # Where a window that begins at each piece ends: beyond the end of all pieces if it never has enough.
    enough = np.maximum(
        np.searchsorted(piece_starts, piece_starts[:-1] + rows),
        np.searchsorted(shares, shares[:-1] + VIRTUAL_PER_BLOCK * blocks),
    )
    fitting = np.searchsorted(nbytes, nbytes[:-1] + most_bytes, "right") - 1
    fitting = np.maximum(fitting, np.arange(1, pieces + 1))
    ends, opens = np.minimum(enough, fitting), [0]
    while ends[opens[-1]] < pieces:
        opens.append(int(ends[opens[-1]]))
    if len(opens) > 1 and enough[opens[-1]] > pieces:
        opens.pop()
        first = opens[-1]
        if fitting[first] < pieces:
            cuts = np.arange(first + 1, pieces)
            larger = np.maximum(nbytes[cuts] - nbytes[first], nbytes[pieces] - nbytes[cuts])
            opens.append(int(cuts[larger.argmin()]))
    return np.append(piece_starts[opens], piece_starts[-1]).astype(np.int64)


def distinct(rising: I64) -> I64:
    """The distinct numbers of a rising array.

    For a million numbers, ``np.unique`` may take seconds, and its first call imports ``numpy.ma``.
    """
    kept: I64 = rising[np.append(np.diff(rising) > 0, True)] if len(rising) else rising
    return kept


def by_part(starts: I64, positions: I64, find: Callable[[int, I64], I64]) -> I64:
    """What ``find`` says of positions, given the part that these are in and their places in it.

    Parts begin at ``starts``, and the last one ends with the last of these.
    """
    parts = np.searchsorted(starts, positions, "right") - 1
    in_order = np.argsort(parts, kind="stable")
    changes = np.flatnonzero(np.diff(parts[in_order])) + 1
    found = np.empty_like(positions)
    for of_part in np.split(in_order, changes) if len(positions) else ():
        part = int(parts[of_part[0]])
        found[of_part] = find(part, positions[of_part] - starts[part])
    return found


def bounds_of(counts: I64) -> I64:
    """Where runs of these lengths begin, one after the other, and where the last ends."""
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds
