"""Rows that lie together in a block: slices of it that follow each other are joined without a copy."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class BlockSlice:
    """Some rows of a block."""

    block: pa.RecordBatch
    start: int
    rows: pa.RecordBatch

    @classmethod
    def of(cls, block: pa.RecordBatch, start: int, count: int) -> "BlockSlice":
        """The ``count`` rows of a block from ``start`` on."""
        return cls(block, start, block.slice(start, count))

    def slice(self, start: int, stop: int) -> "BlockSlice":
        """The rows from ``start`` to ``stop`` of these."""
        return BlockSlice.of(self.block, self.start + start, stop - start)


def joined_slices(slices: "Sequence[BlockSlice | None]") -> BlockSlice | None:
    """All rows of slices that follow each other in one block; None if they do not."""
    first = slices[0]
    if first is None:
        return None
    end = first.start
    for part in slices:
        if part is None or part.block is not first.block or part.start != end:
            return None
        end += part.rows.num_rows
    return BlockSlice.of(first.block, first.start, end - first.start)
