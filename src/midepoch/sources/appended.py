"""The order of an epoch to which files were added while it was under way: what it was, and behind it the new files.

A state names the files of each earlier part by stretches of their numbers; the last part is all others. Every part has
the order that an epoch of its files alone has. Lanes are as long as those of an epoch of all files, and each goes
through its share of the first part before the second: so what was delivered of the first stays what it was.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from midepoch._common.types import I64
from midepoch.checkpoint.lanes import lane_cuts
from midepoch.checkpoint.state import AppendedFiles
from midepoch.errors import CheckpointMismatchError
from midepoch.order.orders import Interval, Order


class FilesOf:
    """Some files, whole, in file order. Its pieces are those that a data set of these files alone would have."""

    def __init__(self, files: I64, *, file_starts: I64, first_blocks: I64, block_starts: I64) -> None:
        """Take the numbers of the files, and, of all files, their first rows and blocks and the blocks' first rows."""
        blocks = [np.arange(first_blocks[file], first_blocks[file + 1]) for file in files.tolist()]
        self._begins = file_starts[:-1][files]
        self._files = _after(np.diff(file_starts)[files])
        self._blocks = _after(np.diff(block_starts)[np.concatenate([np.empty(0, np.int64), *blocks])])
        self.size = int(self._files[-1])

    def rows(self, positions: I64) -> I64:
        """Those of the file in which each position falls."""
        if not len(positions):
            return positions
        file = np.searchsorted(self._files, positions, "right") - 1
        found: I64 = self._begins[file] + positions - self._files[file]
        return found

    def pieces(self, level: Literal["file", "block"]) -> I64:
        """The files, or their blocks."""
        return self._files if level == "file" else self._blocks


class Chained:
    """Several orders, one after the other."""

    def __init__(self, parts: Sequence[Order]) -> None:
        self._parts = parts
        self._starts = _after(np.array([part.size for part in parts], np.int64))
        self.size = int(self._starts[-1])

    def rows(self, positions: I64) -> I64:
        """Those of the part in which each position falls."""
        found = np.empty_like(positions)
        owners = np.searchsorted(self._starts, positions, "right") - 1
        for number in np.unique(owners).tolist():
            inside = owners == number
            found[inside] = self._parts[number].rows(positions[inside] - self._starts[number])
        return found

    def pieces(self, level: Literal["file", "block"]) -> I64:
        """Those of the parts."""
        moved = [part.pieces(level) + start for part, start in zip(self._parts, self._starts[:-1], strict=True)]
        return np.unique(np.concatenate([self._starts, *moved])).astype(np.int64)


def files_of_parts(appended: AppendedFiles, files: int) -> list[I64]:
    """The numbers of each part's files, of so many in all."""
    left = np.ones(files, bool)
    parts = []
    for stretches in appended:
        numbers = np.concatenate([np.arange(begin, end) for begin, end in stretches])
        if len(numbers) and (numbers[-1] >= files or not left[numbers].all()):
            raise CheckpointMismatchError(
                f"The state is damaged: of {files:,} files it names file {numbers[-1]}, or one twice. "
                "Load an earlier checkpoint."
            )
        left[numbers] = False
        parts.append(numbers)
    return [*parts, np.flatnonzero(left)]


def stretches_of(numbers: I64) -> tuple[tuple[int, int], ...]:
    """Rising numbers as stretches."""
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    return tuple((int(some[0]), int(some[-1]) + 1) for some in np.split(numbers, breaks) if len(some))


def lane_of_parts(parts: Sequence[Order], lanes: int, lane: int) -> Order:
    """One lane of an epoch that grew."""
    total = 0
    sizes = np.zeros(lanes, np.int64)
    own: list[Order] = []
    for part in parts:
        total += part.size
        wanted = np.array([end - begin for begin, end in pairwise(lane_cuts(total, lanes))], np.int64)
        cuts = _after(wanted - sizes)
        own.append(Interval(part, int(cuts[lane]), int(cuts[lane + 1])))
        sizes = wanted
    return Chained(own)


def _after(counts: I64) -> I64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
