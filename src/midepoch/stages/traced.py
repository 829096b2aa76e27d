"""The rows of items, and the place of each row in its item."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from midepoch._common.types import I64

Names = npt.NDArray[np.object_]
WHOLE = -1
"""Stands for the first and last token of a row that is not packed."""


class TracedRows(NamedTuple):
    """Rows of items, one entry a row in each array. Rows of an item follow each other."""

    items: I64
    """Which of the items that were asked for, from 0."""
    places: I64
    """The place in the batch, from 0; of a row, or of the pack that has the row."""
    documents: I64
    """The place in the pack, from 0."""
    parts: Names
    """The part of the mixture; empty if there is none. Parts of parts are divided by a slash."""
    files: Names
    rows: I64
    starts: I64
    """The first token of the row that is in the pack."""
    stops: I64
    """One more than the last token of the row in the pack. An ``eos`` that is added counts as the last."""

    @classmethod
    def of_rows(cls, files: Sequence[str], rows: I64) -> "TracedRows":
        """Items that are rows."""
        number = len(rows)
        zeros, whole = np.zeros(number, np.int64), np.full(number, WHOLE, np.int64)
        return cls(np.arange(number), zeros, zeros, _names([""] * number), _names(files), rows, whole, whole)

    def take(self, indices: I64) -> "TracedRows":
        """The entries at these indices."""
        return TracedRows._make(column[indices] for column in self)

    def with_columns(self, **columns: Any) -> "TracedRows":
        """The same with other values in some columns."""
        return self._replace(**columns)

    def within(self, part: str) -> "TracedRows":
        """The same rows as rows of a part of a mixture."""
        names = [f"{part}/{name}" if name else part for name in self.parts.tolist()]
        return self._replace(parts=_names(names))


def join_traced(traced: Sequence[TracedRows]) -> TracedRows:
    """All entries, in the order of their items."""
    if not traced:
        return TracedRows.of_rows([], np.empty(0, np.int64))
    joined = TracedRows._make(np.concatenate(columns) for columns in zip(*traced, strict=True))
    return joined.take(np.argsort(joined.items, kind="stable"))


def _names(names: Sequence[str]) -> Names:
    array: Names = np.empty(len(names), object)
    array[:] = names
    return array
