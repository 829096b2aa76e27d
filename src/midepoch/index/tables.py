"""Rows that are in no files, as a dataset: Arrow tables, of which each record batch is a block, and row numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from midepoch._common.hashing import I64, digest
from midepoch.formats import Block, BlockReader, Scan
from midepoch.formats.base import as_read, read_as
from midepoch.index.index import Index, IndexView
from midepoch.index.schemas import schema_of
from midepoch.order.windows import bounds_of
from midepoch.storage.listing import Listing
from midepoch.storage.local import FileStamp
from midepoch.values.arrow import arrow_of

SAMPLED_ROWS = 16
BLOCK_ROWS, MOST_BLOCKS = 1024, 1 << 13
"""The rows of a block of numbers, and how many blocks there are before they have more rows."""
Extents = Sequence[tuple[int, int, int]]


@dataclass(frozen=True)
class MadeBlocks:
    """Blocks that a function makes."""

    make: Callable[[Block], pa.RecordBatch]

    def read(self, block: Block) -> pa.RecordBatch:
        return self.make(block)


class HeldIndex(Index):
    """An index that is made at every start, and saved nowhere. Subclasses have ``open``."""

    def __init__(self, listing: Listing, schema: pa.Schema, blocks: Sequence[Extents], *, divisible: bool) -> None:
        """Take the ``(offset, length, rows)`` of the blocks of each file; ``divisible`` as in a :class:`Scan`."""
        scans = [Scan("arrow", as_read(schema), of_file, divisible=divisible) for of_file in blocks]
        self.view = IndexView.of(listing, scans)

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        return schema_of(self.view, columns)


class HeldTable(Protocol):
    """A table, in memory or mapped, that can be pickled."""

    @property
    def schema(self) -> pa.Schema: ...

    def to_batches(self) -> list[pa.RecordBatch]:
        """Its rows, without a copy."""


class TableIndex(HeldIndex):
    """The blocks of tables, which are read where they are."""

    def __init__(self, tables: Sequence[HeldTable], schema: pa.Schema) -> None:
        """Take tables with the columns of a schema. Checkpoints know them by a sample of their rows."""
        self._arguments = tables, schema
        self._batches = [table.to_batches() for table in tables]
        blocks = [[(0, batch.nbytes, batch.num_rows) for batch in batches] for batches in self._batches]
        names = tuple(f"table-{number}-{_sample(batches)}" for number, batches in enumerate(self._batches))
        stamps = tuple(FileStamp(sum(length for _, length, _ in extents), 0) for extents in blocks)
        super().__init__(Listing("", "", names, stamps), schema, blocks, divisible=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return TableIndex, self._arguments

    def open(self, file: int, wanted: pa.Schema) -> BlockReader:
        return MadeBlocks(lambda block: read_as(self._batches[file][block.number], wanted))


class NumberIndex(HeldIndex):
    """The numbers from 0 on in one column, as the rows of a file that does not exist. They are made when asked for."""

    def __init__(self, rows: int, name: str, column: str) -> None:
        """``name`` is by what a checkpoint knows the rows, and by what errors name them."""
        self._arguments = rows, name, column
        size = max(BLOCK_ROWS, -(-rows // MOST_BLOCKS))
        blocks = [(first, 8 * size, min(size, rows - first)) for first in range(0, rows, size)]
        listing = Listing("", "", (name,), (FileStamp(0, 0),))
        super().__init__(listing, pa.schema([(column, pa.int64())]), [blocks], divisible=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return NumberIndex, self._arguments

    def open(self, file: int, wanted: pa.Schema) -> BlockReader:
        return MadeBlocks(lambda block: self.rows(np.arange(block.offset, block.offset + block.rows), wanted))

    def rows(self, numbers: I64, wanted: pa.Schema) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([arrow_of(numbers)] * len(wanted), schema=wanted)


def _sample(batches: Sequence[pa.RecordBatch]) -> str:
    """A digest of the sizes of the batches, on which a shuffle depends, and of rows from all over the table."""
    starts = bounds_of(np.array([batch.num_rows for batch in batches], np.int64))
    rows = np.unique(np.linspace(0, starts[-1] - 1, SAMPLED_ROWS).astype(np.int64)) if starts[-1] else starts[:0]
    owners = (np.searchsorted(starts, rows, "right") - 1).tolist()
    sample = (
        batches[owner].slice(row - int(starts[owner]), 1).serialize()
        for row, owner in zip(rows.tolist(), owners, strict=True)
    )
    return digest(starts.astype("<i8").tobytes(), *sample, size=4).hex()
