"""One schema for all files of a dataset: they agree, or differ only where one type holds both."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

import pyarrow as pa

from midepoch._common.text import count
from midepoch.errors import NoDataError, SchemaMismatchError
from midepoch.formats import FORMATS
from midepoch.formats.text.records import TypeClashError, widened, with_items
from midepoch.index.index import IndexView
from midepoch.index.promotion import promoted

STRICTEST_FIRST = ("fixed", "values", "text")


class FileSchema(NamedTuple):
    """A schema that files share. ``name`` is the first of them, ``types`` says how their format knows its types."""

    name: str
    types: Literal["fixed", "values", "text"]
    schema: pa.Schema


class Column(NamedTuple):
    """A column as merged so far, and the schema that decided its type."""

    field: pa.Field
    owner: FileSchema


def schema_of(view: IndexView, columns: Sequence[str] | None, *, union: bool = False) -> pa.Schema:
    """The schema under which these columns, or all of them, are read from every file of an index."""
    return common_schema(file_schemas(view), columns, union=union)


def file_schemas(view: IndexView) -> list[FileSchema]:
    """The schemas that the files of an index have, each once for each format."""
    schemas: dict[tuple[int, str], FileSchema] = {}
    for file, schema in enumerate(view.schemas):
        key = view.schema_numbers[file], view.formats[file]
        if schema is not None and key not in schemas:
            schemas[key] = FileSchema(view.names[file], FORMATS[view.formats[file]].types, schema)
    if not schemas:
        raise NoDataError(
            f"{view.path(0)} is empty ({count('byte', view.stamps[0].size)}), and so is every other file of the "
            "source: there are no columns to read. Write the files again."
        )
    return list(schemas.values())


def common_schema(schemas: Sequence[FileSchema], columns: Sequence[str] | None, *, union: bool = False) -> pa.Schema:
    """The schema under which these columns, or all of them, can be read from files of each of the schemas.

    With ``union`` a file may lack columns that another has.
    """
    for one in schemas:
        _check_names(one, None if union else columns)
    wanted = None if columns is None else {*columns}
    merged: dict[str, Column] = {}
    for one in sorted(schemas, key=lambda one: STRICTEST_FIRST.index(one.types)):
        for field in one.schema:
            if wanted is None or field.name in wanted:
                column = Column(field, one)
                merged[field.name] = _merge(merged[field.name], column) if field.name in merged else column
    for one in schemas:
        own = {*one.schema.names}
        missing = [name for name in merged if name not in own]
        if missing and one.types != "values" and not union:
            present = merged[missing[0]]
            raise SchemaMismatchError(
                f"{present.owner.name} has a column {missing[0]!r} ({present.field.type}) that {one.name} does not "
                "have. Pass schema='union' to read nulls where a file has no such column, or columns= to read only "
                "what they share."
            )
    for name in columns or ():
        if name not in merged:
            raise _no_column(schemas[0], name)
    in_order = dict.fromkeys(name for one in schemas for name in one.schema.names)
    names = in_order if columns is None else columns
    return pa.schema([_readable(merged[name]) for name in names], schemas[0].schema.metadata)


def _readable(column: Column) -> pa.Field:
    field = column.field
    return field.with_type(with_items(field.type)) if column.owner.types == "values" else field


def _check_names(one: FileSchema, columns: Sequence[str] | None) -> None:
    names = one.schema.names
    repeated = sorted(name for name, times in Counter(names).items() if times > 1)
    if repeated:
        raise SchemaMismatchError(
            f"{one.name} has the column {repeated[0]!r} more than once, so it cannot be read by name. "
            "Write the file again with one name for each column."
        )
    known = {*names}
    missing = [name for name in columns or () if name not in known]
    if missing and one.types != "values":
        raise _no_column(one, missing[0])


def _no_column(one: FileSchema, name: str) -> SchemaMismatchError:
    columns = ", ".join(one.schema.names)
    return SchemaMismatchError(f"{one.name} has no column {name!r}. It has: {columns}.{hive_advice(one.name, name)}")


def hive_advice(file: str, column: str) -> str:
    """What to do if a missing column is the key of a folder of this file; else nothing."""
    is_key = any(folder.startswith(f"{column}=") for folder in file.split("/")[:-1])
    return f" Its folder is named {column}=…: pass partitioning='hive' to read that as a column." if is_key else ""


def _merge(one: Column, other: Column) -> Column:
    """The column that holds the values of both. Its owner is the one whose types are stricter."""
    strict, loose = sorted((one, other), key=lambda column: STRICTEST_FIRST.index(column.owner.types))
    strict_type, loose_type = strict.field.type, loose.field.type
    if strict_type.equals(loose_type):
        return strict
    both_fixed = loose.owner.types == "fixed"
    common = promoted(strict_type, loose_type) if both_fixed else _common_type(strict, loose)
    may_widen = both_fixed or strict.owner.types != "fixed"
    if common is None or (not may_widen and not common.equals(strict_type)):
        raise _mismatch(one, other)
    is_loose = common.equals(loose_type) and strict.owner.types == loose.owner.types
    return Column(strict.field.with_type(common), loose.owner if is_loose else strict.owner)


def _common_type(strict: Column, loose: Column) -> pa.DataType | None:
    try:
        return widened(strict.field.type, loose.field.type, strict.field.name)
    except TypeClashError:
        as_strings = strict.owner.types == "text" or pa.types.is_string(strict.field.type)
        return pa.string() if loose.owner.types == "text" and as_strings else None


def _mismatch(one: Column, other: Column) -> SchemaMismatchError:
    name, one_type, other_type = one.field.name, one.field.type, other.field.type
    try:
        widened(one_type, other_type, name)
    except TypeClashError as clash:
        name, one_type, other_type = clash.field, clash.one, clash.other
    return SchemaMismatchError(
        f"The column {name!r} is {one_type} in {one.owner.name} and {other_type} in {other.owner.name}. "
        "Write one of them again with the type of the other, or pass columns= without it."
    )
