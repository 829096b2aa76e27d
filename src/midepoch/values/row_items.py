"""Items that are rows of files, which no function has touched: they are made where they are needed."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

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

    @property
    def parts(self) -> "tuple[RowItems, ...]":
        """The items, as ``RowRounds`` of one part."""
        return (self,)

    @property
    def are_columns(self) -> bool:
        """True if another process gets the rows as Arrow columns, and makes the same items of them.

        Items that are views of memory, such as arrays and single rows of tensors, are sent each for itself.
        """
        schema, form = _schema(self.rows.data), self.rows.form
        are_copies = form == "python" or (form == "torch" and self.size is not None)
        return are_copies and schema is not None and all(map(_is_sent, schema.types))

    def slice(self, start: int, stop: int) -> "RowItems":
        """Some of the items, without a copy: those that there are, as with a list."""
        begin, end = (min(number * (self.size or 1), len(self.rows)) for number in (start, stop))
        return RowItems(self.rows.slice(begin, max(begin, end)), self.size)


@dataclass(frozen=True, slots=True)
class RowRounds:
    """The first item of each part, then the second of each, and so on. All parts have the same number of items."""

    parts: tuple[RowItems, ...]

    def __len__(self) -> int:
        return len(self.parts) * len(self.parts[0])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts[0]) if len(self.parts) == 1 else chain.from_iterable(zip(*self.parts, strict=True))


def row_items(rows: Rows, size: int | None = None) -> RowItems | list[Any]:
    """The items of some rows: not made yet if they are rows of files, else as a list."""
    items = RowItems(rows, size)
    return items if _schema(rows.data) else list(items)


def _schema(data: Any) -> pa.Schema | None:
    """The columns of rows of files; None of what a function returned."""
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
