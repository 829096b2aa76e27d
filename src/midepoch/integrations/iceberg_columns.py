"""Columns of an Iceberg table by field id: those that it has now, whatever they were called when files were written.

pyiceberg has such a projection too, but it makes empty lists and maps of structs out of null ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa

from midepoch._common.checks import cached_property
from midepoch.errors import DataFormatError, SchemaMismatchError
from midepoch.formats import Block, BlockReader
from midepoch.index.hive import WithConstants
from midepoch.index.index import Index, WrappedIndex
from midepoch.index.schemas import BYTES, TEXT

FIELD_ID = b"PARQUET:field_id"
ELEMENT, KEY, VALUE = "element", "key", "value"
"""What a table calls the values of a list, and the keys and values of a map, whatever files call them."""


class NamedField(NamedTuple):
    """The id of a name, if it has one, and the names inside of it."""

    id: int | None
    fields: "Mapping[str, NamedField]"


def id_of(field: pa.Field) -> int | None:
    """The id of a field, if it has one."""
    text = (field.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


def have_ids(fields: Sequence[pa.Field]) -> bool:
    """True if all fields have ids, and all inside of them."""
    return all(id_of(field) is not None and have_ids(fields_inside(field.type)) for field in fields)


def fields_inside(kind: pa.DataType) -> list[pa.Field]:
    """The fields inside of a type: of a struct all, of a list its values, of a map its keys and values."""
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(number) for number in range(kind.num_fields)] if pa.types.is_nested(kind) else []


def described(field: pa.Field) -> str:
    """The id and the type of a field, with the names, ids and types of the fields inside of it, as text."""
    inside = [f"{one.name} {described(one)}" for one in fields_inside(field.type)]
    kind = f"{str(field.type).partition('<')[0]}<{', '.join(inside)}>" if inside else str(field.type)
    return f"#{id_of(field)} {kind}"


def with_fields_inside(kind: pa.DataType, fields: Sequence[pa.Field]) -> pa.DataType:
    """The type with other fields inside of it."""
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        return pa.map_(*fields, keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(*fields, kind.list_size)
    return (pa.large_list if pa.types.is_large_list(kind) else pa.list_)(*fields) if fields else kind


def with_ids(fields: Sequence[pa.Field], names: Mapping[str, NamedField]) -> list[pa.Field]:
    """The fields with the ids of their names. Those that have none there keep no id, so that nothing finds them."""
    return [_with_id(field, names.get(field.name)) for field in fields]


def _with_id(field: pa.Field, named: NamedField | None) -> pa.Field:
    own = fields_inside(field.type)
    inside = (
        [one.name for one in own] if pa.types.is_struct(field.type) else [KEY, VALUE] if len(own) == 2 else [ELEMENT]
    )
    names = named.fields if named is not None else {}
    fields = [_with_id(one, names.get(name)) for one, name in zip(own, inside, strict=False)]
    metadata = {} if named is None or named.id is None else {FIELD_ID: str(named.id)}
    return field.with_type(with_fields_inside(field.type, fields)).with_metadata(metadata)


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """The columns of a table, with their ids, and what they are in files that lack them."""

    schema: pa.Schema
    names: Mapping[str, NamedField] | None = None
    """The ids of the columns of files without ids, by the names that they may have there. None: there are no such."""
    defaults: Mapping[int, pa.Scalar] = field(default_factory=dict)
    """The values, by id, of columns and fields of structs in files that lack them. Others are null."""
    required: frozenset[int] = frozenset()
    """The ids of columns and fields that are never null."""

    def missing(self, rows: int, wanted: pa.Field) -> pa.Array:
        """The column in place of one that a file lacks."""
        number = id_of(wanted)
        value = None if number is None else self.defaults.get(number)
        if value is not None:
            return pa.repeat(value, rows)
        if number in self.required:
            raise pa.ArrowInvalid(
                f"it lacks {wanted.name!r}, which is never null in the table and has no default value"
            )
        return pa.nulls(rows, wanted.type)


class FieldIdIndex(WrappedIndex):
    """An index whose files have the columns of a table. Columns and fields of structs are found by their ids.

    So a column may be renamed, moved and widened. ``values`` has, for each file, the values by id of columns that it
    may lack because all its rows have the same. ``read`` are the columns that are needed: a state remembers their ids
    and types, because a table may change both and keep the name.
    """

    def __init__(
        self,
        inner: Index,
        table: TableColumns,
        values: Sequence[Mapping[int, pa.Scalar]] = (),
        read: Sequence[str] = (),
    ) -> None:
        super().__init__(inner)
        self._columns, self._values, self._read = table, values, read
        self._table = table.schema
        self.layout = {"types": {name: described(self._table.field(name)) for name in read}}
        _ = self._distinct  # raises now if a file has no ids

    def __reduce__(self) -> tuple[Any, ...]:
        return FieldIdIndex, (self._inner, self._columns, self._values, self._read)

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        missing = [name for name in columns or () if name not in self._table.names]
        if missing:
            raise SchemaMismatchError(
                f"The table has no column {missing[0]!r}. It has: {', '.join(self._table.names)}."
            )
        return self._table if columns is None else pa.schema([self._table.field(name) for name in columns])

    def stored_name(self, file: int, name: str) -> str | None:
        number = id_of(self._table.field(name))
        return next((str(one.name) for one in self._own(file) if id_of(one) == number), None)

    def open(self, file: int, wanted: pa.Schema) -> BlockReader:
        numbers = set(map(id_of, wanted))
        stored = [one for one in self._own(file) if id_of(one) in numbers]
        inner = self._inner.open(file, pa.schema(stored)) if stored else None
        defaults = {**self._columns.defaults, **(self._values[file] if self._values else {})}
        return TableBlocks(inner, stored, wanted, self.view.path(file), replace(self._columns, defaults=defaults))

    def _own(self, file: int) -> Sequence[pa.Field]:
        number = self.view.schema_numbers[file]
        return () if number < 0 else self._distinct[number]

    @cached_property
    def _distinct(self) -> list[Sequence[pa.Field]]:
        """The columns, with ids, of each of the distinct schemas of files."""
        return [self._with_ids(number, list(own)) for number, own in enumerate(self.view.distinct_schemas)]

    def _with_ids(self, number: int, own: Sequence[pa.Field]) -> Sequence[pa.Field]:
        if have_ids(own):
            return own
        if self._columns.names is None:
            raise DataFormatError(
                f"{self.view.path(self.view.schema_numbers.index(number))} has columns without ids, and the table does "
                "not say which of its columns they are. Set schema.name-mapping.default in the table's properties."
            )
        return with_ids(own, self._columns.names)


class TableBlocks(WithConstants):
    """The blocks of another reader with the columns of a table. ``stored`` are those of them that the file has."""

    def __init__(
        self, inner: BlockReader | None, stored: Sequence[pa.Field], wanted: pa.Schema, path: str, table: TableColumns
    ) -> None:
        super().__init__(inner, {}, wanted)
        self._stored, self._schema, self._path, self._table = stored, wanted, path, table

    def _complete(self, block: Block, own: pa.Table | pa.RecordBatch | None) -> pa.Table | pa.RecordBatch:
        try:
            if not isinstance(own, pa.Table):
                return self._made([] if own is None else own.columns, block.rows)
            batches = [self._made(batch.columns, len(batch)) for batch in own.to_batches()]
            return pa.Table.from_batches(batches, self._schema)
        except pa.ArrowException as error:
            raise DataFormatError(
                f"{self._path}: {error}. Rewrite the file with the columns and types of the table."
            ) from error

    def _made(self, columns: Sequence[pa.Array], rows: int) -> pa.RecordBatch:
        made = _fields(columns, self._stored, self._schema, rows, self._table)
        return pa.RecordBatch.from_arrays(made, schema=self._schema)


def _fields(
    columns: Sequence[pa.Array], own: Sequence[pa.Field], wanted: Iterable[pa.Field], rows: int, table: TableColumns
) -> list[pa.Array]:
    """The wanted fields, each made of the column whose own field has its id."""
    places = {id_of(one): place for place, one in enumerate(own)}
    made = []
    for one in wanted:
        place = places.get(id_of(one))
        if place is None:
            made.append(table.missing(rows, one))
            continue
        try:
            made.append(_as_field(columns[place], own[place], one, table))
        except pa.ArrowException as error:
            what = f"{own[place].name!r} is {own[place].type}, which does not become {one.type}"
            raise pa.ArrowInvalid(f"{what}: {error}") from error
    return made


def _as_field(column: pa.Array, own: pa.Field, field: pa.Field, table: TableColumns) -> pa.Array:
    """A column of a file as a field of the table: the fields of structs are found by id too."""
    if _is_same(own, field):
        return column
    kind = field.type
    if not pa.types.is_nested(kind):
        return _cast(column, kind)
    if pa.types.is_fixed_size_list(own.type):
        column = column.cast(pa.list_(own.type.value_field))
    if column.offset:  # the arrays inside would not be those of these rows
        column = pa.concat_arrays([column, column.slice(0, 0)])
    missing = column.is_null() if column.null_count else None
    if pa.types.is_struct(kind):
        inside = [column.field(number) for number in range(own.type.num_fields)]
        children = _fields(inside, fields_inside(own.type), kind, len(column), table)
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)
    if pa.types.is_map(kind):
        keys = _as_field(column.keys, own.type.key_field, kind.key_field, table)
        items = _as_field(column.items, own.type.item_field, kind.item_field, table)
        return pa.MapArray.from_arrays(column.offsets, keys, items, type=kind, mask=missing)
    values = _as_field(column.values, own.type.value_field, kind.value_field, table)
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(column.offsets.cast(pa.int64()), values, type=kind, mask=missing)
    return pa.ListArray.from_arrays(column.offsets.cast(pa.int32()), values, type=kind, mask=missing)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column as another type of the same kind. Times lose what is below the table's unit; nothing else is lost."""
    own = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_timestamp(own) and pa.types.is_timestamp(kind):
        return column.cast(kind, safe=False)
    if not _is_wider(own, kind):
        raise pa.ArrowInvalid("values of one are not values of the other")
    return column.cast(kind)


def _is_wider(own: pa.DataType, kind: pa.DataType) -> bool:
    """True if a cast to a type gives the same values, or raises if one is too large for it."""
    if pa.types.is_floating(own) and pa.types.is_floating(kind):
        return bool(own.bit_width <= kind.bit_width)
    return pa.types.is_null(own) or any(
        all(any(is_kind(one) for is_kind in kinds) for one in (own, kind)) for kinds in KINDS
    )


KINDS = (
    (pa.types.is_integer,),
    (pa.types.is_decimal,),
    (pa.types.is_time,),
    (pa.types.is_boolean,),
    (pa.types.is_date, pa.types.is_timestamp),
    (*TEXT, *BYTES, pa.types.is_fixed_size_binary),
)
"""A cast between two types of the same kind keeps values as they are."""


def _is_same(one: pa.Field, other: pa.Field) -> bool:
    """True if values of one field are values of the other as they are."""
    if not one.type.equals(other.type) or id_of(one) != id_of(other):
        return False
    return all(map(_is_same, fields_inside(one.type), fields_inside(other.type)))
