"""The order of an epoch to which files were appended while it was under way.

A *generation* is the files that came together: first those with which the epoch began, then those of each append. Each
generation has the order that an epoch of its files alone would have. Lanes are as long as in an epoch of all files, and
each lane reads its rows of the first generation before those of the second. So what was already delivered keeps its
positions.

A state names the files of each generation but the last by ranges of file numbers. The last has all other files.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from midepoch._common.checks import count
from midepoch._common.hashing import I64
from midepoch.checkpoint.lanes import lane_cuts
from midepoch.checkpoint.state import AppendedFiles
from midepoch.errors import CheckpointMismatchError
from midepoch.order.orders import Chained, Interval, Order, Ranges
from midepoch.order.windows import Blocks, bounds_of, virtual_counts, virtual_starts


def rows_of_files(files: I64, *, file_starts: I64, first_blocks: I64, blocks: Blocks, virtual: bool = False) -> Ranges:
    """The rows of the files with these numbers. Its pieces are those of a dataset of these files alone.

    The other arguments describe all files of the dataset: the first row and the first block of each file, and the
    blocks. If ``virtual``, blocks are divided into virtual ones.
    """
    numbers = [np.arange(first_blocks[file], first_blocks[file + 1]) for file in files.tolist()]
    own = blocks.some(np.concatenate([np.empty(0, np.int64), *numbers]))
    starts = bounds_of(np.diff(file_starts)[files])
    block_starts = virtual_starts(own, virtual_counts(own)) if virtual else own.starts
    return Ranges(file_starts[:-1][files], starts, {"file": starts, "block": block_starts}, blocks)


def generations(appended: AppendedFiles, files: int) -> list[I64]:
    """The file numbers of each generation, of ``files`` files in all."""
    unnamed = np.ones(files, bool)
    named = []
    for ranges in appended:
        last = ranges[-1][1] - 1  # they rise
        if last >= files:
            raise CheckpointMismatchError(
                f"The state is damaged: it names file number {last:,}, but there are {count('file', files)}, "
                "numbered from 0. Load an earlier checkpoint."
            )
        numbers = np.concatenate([np.arange(begin, end) for begin, end in ranges])
        if not unnamed[numbers].all():
            twice = numbers[~unnamed[numbers]][0]
            raise CheckpointMismatchError(
                f"The state is damaged: it names file number {twice:,} twice. Load an earlier checkpoint."
            )
        unnamed[numbers] = False
        named.append(numbers)
    return [*named, np.flatnonzero(unnamed)]


def ranges_of(numbers: I64) -> tuple[tuple[int, int], ...]:
    """Rising numbers as ranges ``(begin, end)``."""
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    return tuple((int(part[0]), int(part[-1]) + 1) for part in np.split(numbers, breaks) if len(part))


def lane_of_generations(orders: Sequence[Order], lanes: int, lane: int) -> Order:
    """One lane of an epoch whose generations have these orders.

    A generation brings every lane to the length that it has in an epoch of all files so far.
    """
    rows = 0
    lengths = np.zeros(lanes, np.int64)
    own: list[Order] = []
    for order in orders:
        rows += order.size
        longer = np.array([end - begin for begin, end in pairwise(lane_cuts(rows, lanes))], np.int64)
        cuts = bounds_of(longer - lengths)
        own.append(Interval(order, int(cuts[lane]), int(cuts[lane + 1])))
        lengths = longer
    return Chained(own)
