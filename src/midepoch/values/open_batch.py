"""Slices of record batches that become Python values, as mixtures take them: a few hundred rows of a batch at a time.

To open the columns of a record batch takes as long as to convert a hundred short values, so they are opened once for
all slices of the batch.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch._common.lazy import cached_property
from midepoch.values.arrow import python_numbers
from midepoch.values.row_dicts import row_dicts

Values = list[Any] | npt.NDArray[Any]
"""Python values, or numbers that become Python values when it is known which of them are needed."""


class OpenBatch:
    """A record batch whose columns are opened once, when the first of its values are needed."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    @cached_property
    def _columns(self) -> dict[str, pa.Array | npt.NDArray[Any]]:
        """The columns by name. Numbers are views of Arrow's memory, which are sliced and converted faster."""
        opened: dict[str, pa.Array | npt.NDArray[Any]] = {}
        for number, name in enumerate(self.batch.schema.names):
            column = self.batch.column(number)
            numbers = python_numbers(column)
            opened[name] = column if numbers is None else numbers
        return opened

    def has_numbers(self, name: str) -> bool:
        """True if a column has numbers without nulls."""
        return isinstance(self._columns[name], np.ndarray)

    def values(self, start: int, stop: int, names: Sequence[str]) -> dict[str, Values]:
        """The rows from ``start`` to ``stop`` as columns: views of numbers, and lists of other Python values."""
        columns = self._columns
        return {name: _values(columns[name], start, stop) for name in names}


def _values(column: pa.Array | npt.NDArray[Any], start: int, stop: int) -> Values:
    if isinstance(column, np.ndarray):
        return column[start:stop]
    values: list[Any] = column.slice(start, stop - start).to_pylist()
    return values


def as_list(values: Values) -> list[Any]:
    """Python values as a list."""
    numbers: list[Any] = values if isinstance(values, list) else values.tolist()
    return numbers


class SlicedRows(NamedTuple):
    """The rows of a record batch from ``start`` to ``stop``."""

    opened: OpenBatch
    start: int
    stop: int

    @property
    def schema(self) -> pa.Schema:
        """The columns of the batch."""
        return self.opened.batch.schema

    def batch(self, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """The rows as a record batch without a copy, with all columns or only those in ``names``."""
        batch = self.opened.batch if names is None else self.opened.batch.select(names)
        return batch.slice(self.start, self.stop - self.start)

    def values(self, names: Sequence[str]) -> dict[str, Values]:
        """The rows as columns: views of numbers, and lists of other Python values."""
        return self.opened.values(self.start, self.stop, names)

    def dicts(self) -> list[dict[str, Any]]:
        """The rows as dicts of Python values."""
        values = self.values(self.schema.names)
        return row_dicts({name: as_list(column) for name, column in values.items()}, self.stop - self.start)
