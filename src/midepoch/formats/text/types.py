"""Wider types: the type of a column whose values look like several types."""

import pyarrow as pa


class TypeClashError(Exception):
    """A field has two types, and no type holds the values of both."""

    def __init__(self, field: str, one: pa.DataType, other: pa.DataType) -> None:
        super().__init__(f"the field {field!r} is {one} and {other}")
        self.field, self.one, self.other = field, one, other


def widened(one: pa.DataType, other: pa.DataType, field: str) -> pa.DataType:
    """The type that holds the values of both: null yields, integers become floats, structs gain fields."""
    if one.equals(other) or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return pa.struct(list(_widened_fields(list(one), list(other), f"{field}.").values()))
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(widened(one.value_type, other.value_type, f"{field}[]"))
    raise TypeClashError(field, one, other)


def widened_schema(one: pa.Schema | None, other: pa.Schema) -> pa.Schema:
    """The schema with the fields of both, each widened."""
    return other if one is None else pa.schema(list(_widened_fields(list(one), list(other), "").values()))


def with_items(kind: pa.DataType) -> pa.DataType:
    """The type, with strings as items of lists whose items are all null.

    pyarrow reads such lists from JSON as damaged arrays: they have fewer items than their offsets say.
    """
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(with_items(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.string() if pa.types.is_null(kind.value_type) else with_items(kind.value_type))
    return kind


def _widened_fields(ones: list[pa.Field], others: list[pa.Field], above: str) -> dict[str, pa.Field]:
    fields = {field.name: field for field in ones}
    for field in others:
        known = fields.get(field.name)
        kind = field.type if known is None else widened(known.type, field.type, above + field.name)
        fields[field.name] = pa.field(field.name, kind)
    return fields
