"""One schema for all files of a data set: they agree, or differ only where one type holds both."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import pyarrow as pa

from midepoch.errors import SchemaMismatchError
from midepoch.formats.text.types import TypeClashError, widened, with_items


class Kind(NamedTuple):
    """The schema of some files, the first of which is ``name``, and how its types are known."""

    name: str
    types: Literal["fixed", "values", "text"]
    schema: pa.Schema


class Column(NamedTuple):
    """A column as it is so far, and the kind of files that it is of."""

    field: pa.Field
    kind: Kind


def common_schema(kinds: Sequence[Kind], columns: Sequence[str] | None) -> pa.Schema:
    """The schema under which these columns, or all, can be read from every file."""
    for kind in kinds:
        _check_names(kind, columns)
    found: dict[str, Column] = {}
    for kind in kinds:
        for field in kind.schema:
            if columns is None or field.name in columns:
                here = Column(field, kind)
                found[field.name] = _joined(found[field.name], here) if field.name in found else here
    for kind in kinds:
        missing = [name for name in found if name not in kind.schema.names]
        if missing and kind.types != "values":
            there = found[missing[0]]
            raise SchemaMismatchError(
                f"{there.kind.name} has a column {missing[0]!r} ({there.field.type}) that {kind.name} has not. "
                "Pass columns= to read only what they share, or read them as two data sets."
            )
    for name in columns or ():
        if name not in found:
            raise _no_column(kinds[0], name)
    names = found if columns is None else columns
    return pa.schema([_readable(found[name]) for name in names], kinds[0].schema.metadata)


def _readable(column: Column) -> pa.Field:
    field = column.field
    return field.with_type(with_items(field.type)) if column.kind.types == "values" else field


def _check_names(kind: Kind, columns: Sequence[str] | None) -> None:
    names = kind.schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaMismatchError(
            f"{kind.name} has the column {twice[0]!r} more than once; rows could not be told apart."
        )
    missing = [name for name in columns or () if name not in names]
    if missing and kind.types != "values":
        raise _no_column(kind, missing[0])


def _no_column(kind: Kind, name: str) -> SchemaMismatchError:
    return SchemaMismatchError(f"{kind.name} has no column {name!r}. It has: {', '.join(kind.schema.names)}.")


def _joined(one: Column, other: Column) -> Column:
    """The column that has room for both, of the stricter of the two kinds."""
    strict, loose = sorted((one, other), key=lambda column: ("fixed", "values", "text").index(column.kind.types))
    here, there = strict.field.type, loose.field.type
    if here.equals(there):
        return strict
    kind = None if loose.kind.types == "fixed" else _room_for(strict, loose)
    if kind is None or (strict.kind.types == "fixed" and not kind.equals(here)):
        raise _unlike(one, other)
    owner = loose.kind if kind.equals(there) and strict.kind.types == loose.kind.types else strict.kind
    return Column(strict.field.with_type(kind), owner)


def _room_for(strict: Column, loose: Column) -> pa.DataType | None:
    try:
        return widened(strict.field.type, loose.field.type, strict.field.name)
    except TypeClashError:
        as_strings = strict.kind.types == "text" or pa.types.is_string(strict.field.type)
        return pa.string() if loose.kind.types == "text" and as_strings else None


def _unlike(one: Column, other: Column) -> SchemaMismatchError:
    name, here, there = one.field.name, one.field.type, other.field.type
    try:
        widened(here, there, name)
    except TypeClashError as clash:
        name, here, there = clash.field, clash.one, clash.other
    return SchemaMismatchError(
        f"The column {name!r} is {here} in {one.kind.name} and {there} in {other.kind.name}. "
        "Write one of them anew, or pass columns= without it."
    )
