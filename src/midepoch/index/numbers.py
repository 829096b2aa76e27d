"""Row numbers as a dataset: for objects whose rows are fetched by number, not from files."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from midepoch.formats import Block, BlockReader, Scan
from midepoch.index.encode import index_bytes
from midepoch.index.index import IndexView
from midepoch.storage.listing import Listing
from midepoch.storage.local import FileStamp
from midepoch.values.numbers import arrow_of

BLOCK_ROWS = 1024
NUMBER_BYTES = 8


class NumberIndex:
    """The numbers from 0 on in one column, as the rows of a file that does not exist. They are made when asked for."""

    layout: Mapping[str, Any] = MappingProxyType({})
    store = None

    def __init__(self, rows: int, name: str, column: str) -> None:
        """``name`` is by what a checkpoint knows the rows, and by what errors name them."""
        self._rows, self._name, self._column = rows, name, column
        starts = range(0, rows, BLOCK_ROWS)
        blocks = [(first, NUMBER_BYTES * BLOCK_ROWS, min(BLOCK_ROWS, rows - first)) for first in starts]
        scan = Scan("arrow", self._schema, blocks, divisible=True)
        self.view = IndexView("", index_bytes(Listing("", "", (name,), (FileStamp(0, 0),)), [scan]))

    def __reduce__(self) -> tuple[Any, ...]:
        return NumberIndex, (self._rows, self._name, self._column)

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([(self._column, pa.int64())])

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        return self._schema

    def constants(self, file: int) -> Mapping[str, pa.Scalar]:
        return {}

    def stored_name(self, file: int, name: str) -> str | None:
        return name

    def open(self, file: int, wanted: pa.Schema) -> BlockReader:
        return NumberBlocks(wanted)

    def check(self, file: int) -> None:
        """Numbers do not change."""


class NumberBlocks:
    """Runs of numbers. The offset of a block is its first number."""

    def __init__(self, wanted: pa.Schema) -> None:
        self._wanted = wanted

    def read(self, block: Block) -> pa.RecordBatch:
        numbers = np.arange(block.offset, block.offset + block.rows)
        return pa.RecordBatch.from_arrays([arrow_of(numbers)], schema=self._wanted)
