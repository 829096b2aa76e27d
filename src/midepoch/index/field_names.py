"""Ids of columns and of the fields inside of them: those that a file has, or those that a table gives to its names."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

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


def with_ids(fields: Sequence[pa.Field], names: Mapping[str, NamedField]) -> list[pa.Field]:
    """The fields with the ids of their names. Those that have none there keep no id, so that nothing finds them."""
    return [_with_id(field, names.get(field.name)) for field in fields]


def _with_id(field: pa.Field, named: NamedField | None) -> pa.Field:
    inside = named.fields if named is not None else {}
    metadata = {} if named is None or named.id is None else {FIELD_ID: str(named.id)}
    return field.with_type(_inside_with_ids(field.type, inside)).with_metadata(metadata)


def _inside_with_ids(kind: pa.DataType, names: Mapping[str, NamedField]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(with_ids([kind.field(number) for number in range(kind.num_fields)], names))
    if pa.types.is_map(kind):
        key, item = _with_id(kind.key_field, names.get(KEY)), _with_id(kind.item_field, names.get(VALUE))
        return pa.map_(key, item, keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_with_id(kind.value_field, names.get(ELEMENT)), kind.list_size)
    for is_kind, make in ((pa.types.is_list, pa.list_), (pa.types.is_large_list, pa.large_list)):
        if is_kind(kind):
            return make(_with_id(kind.value_field, names.get(ELEMENT)))
    return kind
