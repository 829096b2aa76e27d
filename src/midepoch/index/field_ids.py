"""Columns by field id: files as a table has them now, whatever their columns were called when they were written."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from midepoch.errors import DataFormatError, SchemaMismatchError
from midepoch.formats import Block, BlockReader, read_all
from midepoch.index.index import Index
from midepoch.index.wrapped import WrappedIndex

FIELD_ID = b"PARQUET:field_id"


class FieldIdIndex(WrappedIndex):
    """An index whose files have the columns of a table. Columns and fields of structs are found by their ids.

    So a column may be renamed, moved and widened; one that a file lacks is null. Files without ids are read by name:
    ``names`` has the ids of other names under which such files may have a column.
    """

    def __init__(self, inner: Index, table: pa.Schema, names: Mapping[str, int] | None = None) -> None:
        super().__init__(inner)
        self._table, self._names = table, dict(names or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return FieldIdIndex, (self._inner, self._table, self._names)

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        missing = [name for name in columns or () if name not in self._table.names]
        if missing:
            raise SchemaMismatchError(
                f"The table has no column {missing[0]!r}. It has: {', '.join(self._table.names)}."
            )
        return self._table if columns is None else pa.schema([self._table.field(name) for name in columns])

    def stored_name(self, file: int, name: str) -> str | None:
        source = self._source(file, self._table.field(name))
        return None if source is None else str(source.name)

    def open(self, file: int, wanted: pa.Schema) -> BlockReader:
        sources = [self._source(file, field) for field in wanted]
        stored = [source for source in sources if source is not None]
        inner = self._inner.open(file, pa.schema(stored)) if stored else None
        return TableBlocks(inner, sources, wanted, self.view.path(file))

    def _source(self, file: int, field: pa.Field) -> pa.Field | None:
        """The column of a file that a column of the table is."""
        own = list(self.view.schemas[file] or ())
        if any(_id(one) is not None for one in own):
            return _find(own, field)
        same = (one for one in own if self._names.get(one.name, _id(field)) == _id(field))
        return next((one for one in same if one.name == field.name or one.name in self._names), None)


class TableBlocks:
    """The blocks of another reader with the columns of a table. ``sources`` are their columns in the file, if any."""

    def __init__(
        self, inner: BlockReader | None, sources: Sequence[pa.Field | None], wanted: pa.Schema, path: str
    ) -> None:
        self._inner, self._sources, self._wanted, self._path = inner, sources, wanted, path

    def read(self, block: Block) -> pa.Table | pa.RecordBatch:
        return next(self.read_all([block]))

    def read_all(self, blocks: Sequence[Block]) -> Iterator[pa.Table | pa.RecordBatch]:
        stored = repeat(None) if self._inner is None else read_all(self._inner, blocks)
        return (self._complete(block, own) for block, own in zip(blocks, stored, strict=False))

    def is_view(self, data: pa.Table | pa.RecordBatch) -> bool:
        return False

    def _complete(self, block: Block, own: pa.Table | pa.RecordBatch | None) -> pa.Table | pa.RecordBatch:
        columns = [
            pa.nulls(block.rows, field.type)
            if own is None or source is None
            else self._converted(own.column(source.name), source, field)
            for source, field in zip(self._sources, self._wanted, strict=True)
        ]
        return (pa.RecordBatch if own is None else type(own)).from_arrays(columns, schema=self._wanted)

    def _converted(self, column: pa.Array | pa.ChunkedArray, source: pa.Field, field: pa.Field) -> Any:
        try:
            if isinstance(column, pa.ChunkedArray):
                return pa.chunked_array([_as_field(one, source, field) for one in column.chunks], field.type)
            return _as_field(column, source, field)
        except pa.ArrowException as error:
            raise DataFormatError(
                f"{self._path} has the column {source.name!r} as {source.type}, which does not become {field.type}: "
                f"{error}. Rewrite the file with the types of the table."
            ) from error


def _as_field(column: pa.Array, own: pa.Field, field: pa.Field) -> pa.Array:
    """A column of a file as a field of the table: the fields of structs are found by id too."""
    if _is_same(own, field):
        return column
    kind = field.type
    if not pa.types.is_nested(kind):
        return column.cast(kind)
    if column.offset:  # the arrays inside would not be those of these rows
        column = pa.concat_arrays([column, column.slice(0, 0)])
    missing = column.is_null() if column.null_count else None
    if pa.types.is_struct(kind):
        children = [_child(column, own.type, child) for child in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)
    if pa.types.is_map(kind):
        keys = _as_field(column.keys, own.type.key_field, kind.key_field)
        items = _as_field(column.items, own.type.item_field, kind.item_field)
        return pa.MapArray.from_arrays(column.offsets, keys, items, type=kind, mask=missing)
    values = _as_field(column.values, own.type.value_field, kind.value_field)
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(column.offsets.cast(pa.int64()), values, type=kind, mask=missing)
    return pa.ListArray.from_arrays(column.offsets.cast(pa.int32()), values, type=kind, mask=missing)


def _child(column: pa.StructArray, own: pa.StructType, field: pa.Field) -> pa.Array:
    fields = [own.field(number) for number in range(own.num_fields)]
    source = _find(fields, field)
    if source is None:
        return pa.nulls(len(column), field.type)
    return _as_field(column.field(fields.index(source)), source, field)


def _find(fields: Sequence[pa.Field], wanted: pa.Field) -> pa.Field | None:
    """The field with the same id, or the same name where fields have no ids."""
    if any(_id(one) is not None for one in fields):
        return next((one for one in fields if _id(one) == _id(wanted)), None)
    return next((one for one in fields if one.name == wanted.name), None)


def _is_same(one: pa.Field, other: pa.Field) -> bool:
    """True if values of one field are values of the other as they are."""
    if not one.type.equals(other.type) or (_id(one) not in (None, _id(other))):
        return False
    return all(map(_is_same, _inside(one.type), _inside(other.type)))


def _inside(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(number) for number in range(kind.num_fields)] if pa.types.is_nested(kind) else []


def _id(field: pa.Field) -> int | None:
    text = (field.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)
