"""Windows: runs of permuted pieces whose rows a block shuffle mixes, sized by rows, blocks and bytes.

All functions are pure, and take a few passes over arrays with one element for each piece.
"""

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
GUESSED, FOLLOWED = 64, 8192
"""How many windows are guessed at first, and from how many pieces on they are followed if a guess was wrong."""


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

    def owner(self, rows: I64) -> I64:
        """The block of each row."""
        owners: I64 = np.searchsorted(self.starts, rows, "right") - 1
        return owners


def virtual_counts(blocks: Blocks) -> I64:
    """Into how many virtual blocks each block is divided. Blocks that are decoded as a whole are not divided."""
    rows = np.diff(blocks.starts)
    size = rows_of_virtual(int(rows.sum(where=blocks.divisible)))
    if rows.max(initial=0) <= size and blocks.nbytes.max(initial=0) <= VIRTUAL_BYTES:  # the next lines would say so too
        return np.ones(len(rows), np.int64)
    counts = np.minimum(np.maximum(-(-rows // size), -(-blocks.nbytes // VIRTUAL_BYTES)), rows)
    return np.maximum(np.where(blocks.divisible, counts, 1), 1).astype(np.int64)


def rows_of_virtual(rows: int) -> int:
    """How many rows a virtual block has, at most, if there are ``rows`` rows to divide."""
    return max(VIRTUAL_ROWS, -(-rows // MOST_VIRTUAL))


def virtual_starts(blocks: Blocks, counts: I64) -> I64:
    """The first row of each virtual block, and the end. Those of one block differ by one row at most."""
    if counts.max(initial=1) == 1:
        return blocks.starts
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
    if not has_rows.all():
        costs = PieceCosts(*(values[has_rows] for values in costs))
        piece_starts = piece_starts[np.append(has_rows, True)]
    if len(piece_starts) == 1:
        return piece_starts
    sums = _RunningSums(piece_starts, bounds_of(costs.nbytes), bounds_of(costs.shares))
    limits = _Limits(rows, VIRTUAL_PER_BLOCK * blocks, most_bytes)
    opens = _window_opens(sums, limits, _usual_length(costs.shares, limits))
    opens = _with_even_end(opens, sums, limits)
    return np.append(piece_starts[opens], piece_starts[-1]).astype(np.int64)


class _Limits(NamedTuple):
    """What a window has at least, and the bytes that it has at most."""

    rows: int
    shares: int
    most_bytes: int


class _RunningSums(NamedTuple):
    """The rows, bytes and shares before each piece, and of all."""

    rows: I64
    nbytes: I64
    shares: I64

    def enough(self, pieces: I64, limits: _Limits) -> I64:
        """Where a window that begins at each piece has enough rows and shares; beyond the end if it never has."""
        return np.maximum(
            np.searchsorted(self.rows, self.rows[pieces] + limits.rows),
            np.searchsorted(self.shares, self.shares[pieces] + limits.shares),
        )

    def fitting(self, pieces: I64, limits: _Limits) -> I64:
        """The longest window that begins at each piece ends here, because of its bytes."""
        ends = np.searchsorted(self.nbytes, self.nbytes[pieces] + limits.most_bytes, "right") - 1
        return np.maximum(ends, pieces + 1)

    def ends(self, pieces: I64, limits: _Limits) -> I64:
        """Where a window that begins at each piece ends."""
        return np.minimum(self.enough(pieces, limits), self.fitting(pieces, limits))


def _usual_length(shares: I64, limits: _Limits) -> int:
    """How many pieces a window has if all count like the first, and if rows and bytes do not matter."""
    return max(1, -(-limits.shares // max(1, int(shares[0]))))


def _window_opens(sums: _RunningSums, limits: _Limits, length: int) -> I64:
    """The pieces with which the windows begin.

    Each window begins where the one before it ends. Most have as many pieces as the one before, so a run of windows of
    that length is guessed, and kept up to the first that ends elsewhere. From there the windows are followed for a
    while: that needs the ends of windows that begin at any of the next pieces.
    """
    pieces, opens = len(sums.rows) - 1, list[I64]()
    piece, guesses = 0, GUESSED
    while piece < pieces:
        guessed = np.arange(piece, min(pieces, piece + guesses * length), length)
        ends = sums.ends(guessed, limits)
        others = np.flatnonzero(ends != guessed + length)
        right = int(others[0]) + 1 if len(others) else len(guessed)
        opens.append(guessed[:right])
        piece, guesses = int(ends[right - 1]), guesses * 4
        if len(others) and piece < pieces:
            near = np.arange(piece, min(pieces, piece + FOLLOWED))
            followed, end = _followed(sums.ends(near, limits), piece)
            opens.append(followed)
            piece, length, guesses = end, end - int(followed[-1]), GUESSED
    return np.concatenate(opens)


def _followed(ends: I64, first: int) -> tuple[I64, int]:
    """Where windows begin from ``first`` on, if one at piece ``first + i`` ends at ``ends[i]``; and the last end."""
    following = ends.tolist()
    opens, piece = list[int](), first
    while piece - first < len(following):
        opens.append(piece)
        piece = following[piece - first]
    return np.array(opens, np.int64), piece


def _with_even_end(opens: I64, sums: _RunningSums, limits: _Limits) -> I64:
    """Let pieces that are left at the end join the last window, or share its pieces evenly if all do not fit."""
    pieces = len(sums.rows) - 1
    if len(opens) == 1 or sums.enough(opens[-1:], limits)[0] <= pieces:
        return opens
    last_two = int(opens[-2])
    if sums.fitting(opens[-2:-1], limits)[0] == pieces:
        return opens[:-1]
    cuts = np.arange(last_two + 1, pieces)
    before = sums.nbytes
    larger = np.maximum(before[cuts] - before[last_two], before[pieces] - before[cuts])
    return np.append(opens[:-1], cuts[larger.argmin()])


def distinct(rising: I64) -> I64:
    """The distinct numbers of a rising array.

    For a million numbers, ``np.unique`` may take seconds, and its first call imports ``numpy.ma``.
    """
    kept: I64 = rising[np.append(np.diff(rising) > 0, True)] if len(rising) else rising
    return kept


def picked(values: I64, permutation: I64) -> I64:
    """The values in another order. There is nothing to do if all are equal, as the rows of most blocks are."""
    return values if not len(values) or values.min() == values.max() else values[permutation]


def bounds_of(counts: I64) -> I64:
    """Where runs of these lengths begin, one after the other, and where the last ends."""
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds
