"""Safe promotions: the type that holds every value of two types, where files of one dataset differ."""

import pyarrow as pa

TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
LONG = (pa.types.is_large_string, pa.types.is_large_binary, pa.types.is_large_list)


def promoted(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds all values of both, unchanged; None if there is none.

    Null yields to any type, integers and floats become wider ones of their kind, views and dictionaries of text become
    text. The same holds inside lists and structs.
    """
    if one.equals(other) or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_dictionary(one) or pa.types.is_dictionary(other):
        return promoted(_decoded(one), _decoded(other))
    if pa.types.is_integer(one) and pa.types.is_integer(other):
        return _wider_integer(one, other)
    if pa.types.is_floating(one) and pa.types.is_floating(other):
        return max(one, other, key=lambda kind: kind.bit_width)
    for kinds, short, long in ((TEXT, pa.string(), pa.large_string()), (BYTES, pa.binary(), pa.large_binary())):
        if all(any(is_kind(kind) for is_kind in kinds) for kind in (one, other)):
            return long if _is_long(one) or _is_long(other) else short
    if _is_list(one) and _is_list(other):
        return _promoted_lists(one, other)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _promoted_structs(one, other)
    return None


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_long(kind: pa.DataType) -> bool:
    return any(is_long(kind) for is_long in LONG)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _wider_integer(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if pa.types.is_signed_integer(one) == pa.types.is_signed_integer(other):
        return max(one, other, key=lambda kind: kind.bit_width)
    signed, unsigned = (one, other) if pa.types.is_signed_integer(one) else (other, one)
    wide = max(signed.bit_width, 2 * unsigned.bit_width)
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(wide)


def _promoted_lists(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    items = promoted(one.value_type, other.value_type)
    if items is None:
        return None
    sizes = {kind.list_size if pa.types.is_fixed_size_list(kind) else None for kind in (one, other)}
    field = one.value_field.with_type(items)
    if sizes != {None}:
        return pa.list_(field, sizes.pop()) if len(sizes) == 1 else None
    return pa.large_list(field) if _is_long(one) or _is_long(other) else pa.list_(field)


def _promoted_structs(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if [field.name for field in one] != [field.name for field in other]:
        return None
    kinds = [promoted(mine.type, theirs.type) for mine, theirs in zip(one, other, strict=True)]
    if any(kind is None for kind in kinds):
        return None
    return pa.struct([field.with_type(kind) for field, kind in zip(one, kinds, strict=True)])
