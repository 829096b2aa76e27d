"""What a fetcher reads at a time: a block of the index, or of a record batch in a store only a run of rows."""

from typing import Protocol

import numpy as np

from midepoch._common.lazy import cached_property
from midepoch._common.types import I64
from midepoch.formats import Block
from midepoch.index.index import IndexView


class BlockTable(Protocol):
    """Blocks that are numbered from 0 over all files. The blocks of an index are the plain case."""

    @property
    def block_starts(self) -> I64:
        """The first row of each block, and the number of all rows."""

    @property
    def block_lengths(self) -> I64:
        """The bytes of each block."""

    @property
    def first_blocks(self) -> I64:
        """The first block of each file, and the number of all blocks."""

    def file_of(self, block: int) -> int:
        """The file of a block."""

    def block(self, number: int) -> tuple[int, Block]:
        """The file of a block, and the block as a reader of that file knows it."""


class VirtualBlocks:
    """Runs of rows that begin at given rows. Each lies in one block of the index, or is one."""

    def __init__(self, view: IndexView, starts: I64) -> None:
        self._view, self.block_starts = view, starts

    @cached_property
    def block_lengths(self) -> I64:
        """The share that the rows of each run have in the bytes of their block."""
        rows, owners = np.diff(self.block_starts), self._owners(self.block_starts[:-1])
        lengths: I64 = -(-self._view.block_lengths[owners] * rows // np.maximum(1, self._view.block_rows[owners]))
        return lengths

    @cached_property
    def first_blocks(self) -> I64:
        return np.searchsorted(self.block_starts, self._view.file_starts).astype(np.int64)

    def file_of(self, block: int) -> int:
        return self._view.file_of(int(self._owners(self.block_starts[block])))

    def block(self, number: int) -> tuple[int, Block]:
        first, end = self.block_starts[number : number + 2].tolist()
        owner = int(self._owners(first))
        file, block = self._view.block(owner)
        if end - first == block.rows:
            return file, block
        return file, block._replace(rows=end - first, first=first - int(self._view.block_starts[owner]))

    def _owners(self, rows: I64) -> I64:
        """The blocks of the index in which these rows lie; for the end, the last one."""
        owners: I64 = np.searchsorted(self._view.block_starts[:-1], rows, "right") - 1
        return owners
