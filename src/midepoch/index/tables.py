"""Arrow tables as a dataset: each table is a file, each of its record batches a block."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from midepoch._common.hashing import digest
from midepoch.formats import Block, BlockReader, Scan
from midepoch.formats.base import as_read, read_as
from midepoch.index.encode import index_bytes
from midepoch.index.index import IndexView
from midepoch.index.schemas import schema_of
from midepoch.storage.listing import Listing
from midepoch.storage.local import FileStamp

SAMPLED_ROWS = 16


class HeldTable(Protocol):
    """A table, in memory or mapped, that can be pickled."""

    @property
    def schema(self) -> pa.Schema: ...

    def to_batches(self) -> list[pa.RecordBatch]:
        """Its rows, without a copy."""


class TableIndex:
    """The blocks of tables, which are read where they are. Nothing is saved on disk."""

    layout: Mapping[str, Any] = MappingProxyType({})
    store = None

    def __init__(self, tables: Sequence[HeldTable], schema: pa.Schema) -> None:
        """Take tables with the columns of a schema. Checkpoints know them by a sample of their rows."""
        self._tables, self._schema = tables, schema
        self._batches = [table.to_batches() for table in tables]
        scans = [
            Scan("arrow", as_read(schema), [(0, batch.nbytes, batch.num_rows) for batch in batches], divisible=True)
            for batches in self._batches
        ]
        names = tuple(f"table-{number}-{_sample(batches)}" for number, batches in enumerate(self._batches))
        stamps = tuple(FileStamp(sum(length for _, length, _ in scan.blocks), 0) for scan in scans)
        self.view = IndexView("", index_bytes(Listing("", "", names, stamps), scans))

    def __reduce__(self) -> tuple[Any, ...]:
        return TableIndex, (self._tables, self._schema)

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        return schema_of(self.view, columns)

    def constants(self, file: int) -> Mapping[str, pa.Scalar]:
        return {}

    def stored_name(self, file: int, name: str) -> str | None:
        return name

    def open(self, file: int, wanted: pa.Schema) -> BlockReader:
        return TableBlocks(self._batches[file], wanted)

    def check(self, file: int) -> None:
        """Tables do not change."""


class TableBlocks:
    """The record batches of a table."""

    def __init__(self, batches: Sequence[pa.RecordBatch], wanted: pa.Schema) -> None:
        self._batches, self._wanted = batches, wanted

    def read(self, block: Block) -> pa.RecordBatch:
        return read_as(self._batches[block.number], self._wanted)


def _sample(batches: Sequence[pa.RecordBatch]) -> str:
    """A digest of the sizes of the batches, on which a shuffle depends, and of rows from all over the table."""
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)], dtype=np.int64)
    rows = np.unique(np.linspace(0, starts[-1] - 1, SAMPLED_ROWS).astype(np.int64)) if starts[-1] else starts[:0]
    owners = (np.searchsorted(starts, rows, "right") - 1).tolist()
    sample = (
        batches[owner].slice(row - int(starts[owner]), 1).serialize()
        for row, owner in zip(rows.tolist(), owners, strict=True)
    )
    return digest(starts.astype("<i8").tobytes(), *sample, size=4).hex()
