"""Checks of a record batch before its rows are read: a damaged one could end the process, or show other memory."""

from functools import lru_cache

import pyarrow as pa


def check_offsets(data: pa.RecordBatch, names: list[str]) -> None:
    """Raise ``ArrowInvalid`` if offsets or indices of these columns point outside of their values.

    Text is not checked for UTF-8, which would read all of it. Bytes that are not UTF-8 raise when they are decoded.
    """
    for name in names:
        for number in data.schema.get_all_field_indices(name):
            _without_text(data.column(number)).validate(full=True)


def _without_text(column: pa.Array) -> pa.Array:
    """The column with bytes in place of text, without a copy, where it can be viewed like that."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = _bytes_for_text(column.type)
    return column if kind == column.type else column.view(kind)


@lru_cache(maxsize=1024)
def _bytes_for_text(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([_field(kind.field(number)) for number in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_field(kind.value_field))
    return kind


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_bytes_for_text(field.type))
