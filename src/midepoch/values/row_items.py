"""Items that are rows of files and are made where they are needed: another process, or the memory shared with it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from midepoch.values.gather import WideBatches
from midepoch.values.pool import PickedRows
from midepoch.values.rows import Rows


@dataclass(frozen=True, slots=True)
class RowItems:
    """Consecutive rows, or batches of rows, that are not made yet. Iterating makes them."""

    rows: Rows
    size: int | None = None
    """The number of rows of a batch; None if every row is an item."""

    def __len__(self) -> int:
        return -(-len(self.rows) // (self.size or 1))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows.items() if self.size is None else self.rows.batches(self.size))

    def for_transport(self) -> Iterator[Any]:
        """The items, in which arrays of wide rows may be ``PickedArray``, which are copied where they are sent."""
        return iter(self) if self.size is None else iter(self.rows.unpicked_batches(self.size))

    def wide_batches(self) -> WideBatches | None:
        """The items, if they are whole batches all of whose columns are wide rows of numbers."""
        return None if self.size is None else self.rows.wide_batches(self.size)

    def are_columns(self, *, tensors: bool) -> bool:
        """True if the rows are sent as Arrow columns and become values where they arrive.

        With ``tensors`` numbers and texts become tensors and lists there too, which is faster than to send each.
        """
        if self.rows.form != "torch":
            return self.rows.form == "python"
        schema = _schema(self.rows.data)
        if not tensors or not schema:
            return False
        return all(_is_sent(kind) and not pa.types.is_nested(kind) for kind in schema.types)

    def slice(self, start: int, stop: int) -> "RowItems":
        """Some of the items, without a copy: those that there are, as with a list."""
        begin, end = (min(number * (self.size or 1), len(self.rows)) for number in (start, stop))
        return RowItems(self.rows.slice(begin, max(begin, end)), self.size)

    def batch(self) -> pa.RecordBatch:
        """The rows as a record batch, which may be a view of a file: call ``rows.check`` after it was copied."""
        data: Any = self.rows.data
        return data.batch() if isinstance(data, PickedRows) else data


@dataclass(frozen=True, slots=True)
class RowRounds:
    """The first item of each part, then the second of each, and so on. All parts have the same number of items."""

    parts: tuple[RowItems, ...]

    def __len__(self) -> int:
        return len(self.parts) * len(self.parts[0])

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(zip(*self.parts, strict=True))

    def for_transport(self) -> Iterator[Any]:
        """The items, in which arrays of wide rows may be ``PickedArray``, which are copied where they are sent."""
        return chain.from_iterable(zip(*(part.for_transport() for part in self.parts), strict=True))


def row_items(rows: Rows, size: int | None = None) -> RowItems | list[Any]:
    """The items of some rows: not made yet if that is better done where they are sent, else as a list.

    Views of files are not made yet, because the files are checked after they are copied.
    """
    items = RowItems(rows, size)
    if rows.form == "arrow" or (rows.form in ("numpy", "torch") and size is not None):
        return items
    schema = _schema(rows.data)
    if rows.form == "python" and schema and all(map(_is_sent, schema.types)):
        return items
    return list(items)


def _schema(data: Any) -> pa.Schema | None:
    """The columns of rows of files; None of what a function returned."""
    if isinstance(data, PickedRows):
        return data.pool.schema
    return data.schema if isinstance(data, pa.RecordBatch) else None


def _is_sent(kind: pa.DataType) -> bool:
    """True if Arrow sends a slice of such a column as it is, and nobody may register another class for its values."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_struct(kind):
        return all(_is_sent(kind.field(number).type) for number in range(kind.num_fields))
    if pa.types.is_fixed_size_list(kind):
        return not pa.types.is_nested(kind.value_type) and _is_sent(kind.value_type)
    return bool(
        pa.types.is_primitive(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_decimal(kind)
    )
