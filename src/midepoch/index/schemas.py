"""One schema for all files of a dataset: they agree, or differ only where one type holds both.

Hive partitions add columns: folders named ``key=value`` are columns of the files in them.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from midepoch._common.checks import count
from midepoch.errors import NoDataError, SchemaMismatchError
from midepoch.formats import FORMATS, Block, BlockReader, read_all
from midepoch.formats.text.records import wider_type, with_items
from midepoch.index.index import Index, IndexView, WrappedIndex
from midepoch.storage.listing import Listing
from midepoch.storage.urls import is_url

TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
LONG = (pa.types.is_large_string, pa.types.is_large_binary, pa.types.is_large_list)
STRICTEST_FIRST = ("fixed", "values", "text")
NULL = "__HIVE_DEFAULT_PARTITION__"
INTEGER = re.compile(r"-?[0-9]+")
Constants = Mapping[str, pa.Scalar]


class FileSchema(NamedTuple):
    """A schema that files share. ``name`` is the first of them, ``types`` says how their format knows its types."""

    name: str
    types: Literal["fixed", "values", "text"]
    schema: pa.Schema


class MergedColumn(NamedTuple):
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
    merged: dict[str, MergedColumn] = {}
    for one in sorted(schemas, key=lambda one: STRICTEST_FIRST.index(one.types)):
        for field in one.schema:
            if wanted is None or field.name in wanted:
                column = MergedColumn(field, one)
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


def _readable(column: MergedColumn) -> pa.Field:
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


def _merge(one: MergedColumn, other: MergedColumn) -> MergedColumn:
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
    return MergedColumn(strict.field.with_type(common), loose.owner if is_loose else strict.owner)


def _common_type(strict: MergedColumn, loose: MergedColumn) -> pa.DataType | None:
    common = wider_type(strict.field.type, loose.field.type)
    as_strings = strict.owner.types == "text" or pa.types.is_string(strict.field.type)
    return pa.string() if common is None and loose.owner.types == "text" and as_strings else common


def _mismatch(one: MergedColumn, other: MergedColumn) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"The column {one.field.name!r} is {one.field.type} in {one.owner.name} and {other.field.type} in "
        f"{other.owner.name}. Write one of them again with the type of the other, or pass columns= without it."
    )


def promoted(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds all values of both, unchanged; None if there is none.

    Null yields to any type, integers and floats become wider ones of their kind, views and dictionaries of text become
    text. The same holds inside lists and structs. (Arrow's own promotions lose values: int64 and float become double.)
    """
    if one.equals(other) or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_dictionary(one) or pa.types.is_dictionary(other):
        return promoted(*(kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (one, other)))
    if pa.types.is_integer(one) and pa.types.is_integer(other):
        return _wider_integer(one, other)
    if pa.types.is_floating(one) and pa.types.is_floating(other):
        return max(one, other, key=lambda kind: kind.bit_width)
    for kinds, short, long in ((TEXT, pa.string(), pa.large_string()), (BYTES, pa.binary(), pa.large_binary())):
        if all(any(is_kind(kind) for is_kind in kinds) for kind in (one, other)):
            return long if _is_long(one) or _is_long(other) else short
    return _promoted_inside(one, other)


def _promoted_inside(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The same of two lists or structs."""
    fields = list(
        zip(*([kind.field(number) for number in range(kind.num_fields)] for kind in (one, other)), strict=False)
    )
    inside = [promoted(mine.type, theirs.type) for mine, theirs in fields]
    if one.num_fields != other.num_fields or not inside or None in inside:
        return None
    wider = [mine.with_type(kind) for (mine, _), kind in zip(fields, inside, strict=True)]
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return pa.struct(wider) if all(mine.name == theirs.name for mine, theirs in fields) else None
    if pa.types.is_fixed_size_list(one) and pa.types.is_fixed_size_list(other):
        return pa.list_(wider[0], one.list_size) if one.list_size == other.list_size else None
    if all(pa.types.is_list(kind) or pa.types.is_large_list(kind) for kind in (one, other)):
        return (pa.large_list if _is_long(one) or _is_long(other) else pa.list_)(wider[0])
    return None


def _is_long(kind: pa.DataType) -> bool:
    return any(is_long(kind) for is_long in LONG)


def _wider_integer(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if pa.types.is_signed_integer(one) == pa.types.is_signed_integer(other):
        return max(one, other, key=lambda kind: kind.bit_width)
    signed, unsigned = (one, other) if pa.types.is_signed_integer(one) else (other, one)
    wide = max(signed.bit_width, 2 * unsigned.bit_width)
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(wide)


class UnionIndex(WrappedIndex):
    """An index whose files have all columns that any of them has, or those of a given schema."""

    def __init__(self, inner: Index, given: pa.Schema | None = None) -> None:
        super().__init__(inner)
        self._given = given
        if given is not None:
            _check_given(inner.view, given)

    def __reduce__(self) -> tuple[Any, ...]:
        return UnionIndex, (self._inner, self._given)

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        if self._given is None:
            return schema_of(self.view, columns, union=True)
        missing = [name for name in columns or () if name not in self._given.names]
        if missing:
            raise SchemaMismatchError(
                f"The schema has no column {missing[0]!r}. It has: {', '.join(self._given.names)}."
            )
        return self._given if columns is None else pa.schema([self._given.field(name) for name in columns])

    def open(self, file: int, wanted: pa.Schema) -> BlockReader:
        own = self.view.schemas[file]
        lacking = [field for field in wanted if own is None or field.name not in own.names]
        if not lacking:
            return self._inner.open(file, wanted)
        present = [field for field in wanted if field not in lacking]
        inner = self._inner.open(file, pa.schema(present, wanted.metadata)) if present else None
        return WithConstants(inner, {field.name: pa.scalar(None, field.type) for field in lacking}, wanted)


def _check_given(view: IndexView, given: pa.Schema) -> None:
    """Raise unless the values of every file fit the types of a schema."""
    for one in file_schemas(view):
        for field in given:
            own = one.schema.field(field.name).type if field.name in one.schema.names else pa.null()
            if promoted(own, field.type) != field.type:
                raise SchemaMismatchError(
                    f"The column {field.name!r} is {own} in {one.name}, which does not fit {field.type} in the schema "
                    "without a loss. Pass a schema= with a wider type."
                )


class HiveIndex(WrappedIndex):
    """Another index, whose files get the columns that their folders name.

    These columns come last. Where a file has a column of the same name, the value of the folder is taken.
    """

    def __init__(self, inner: Index) -> None:
        super().__init__(inner)
        self.layout = {"partitioning": "hive"}
        first_files = {name.rpartition("/")[0]: name for name in reversed(self.view.names)}
        texts = {folder: _pairs(folder, name) for folder, name in first_files.items()}
        self._types = _types(texts, first_files, self.view.root)
        self._constants = {
            folder: {key: pa.scalar(_value(text, self._types[key]), self._types[key]) for key, text in pairs.items()}
            for folder, pairs in texts.items()
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return HiveIndex, (self._inner,)

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        in_files = None if columns is None else [name for name in columns if name not in self._types]
        own = self._inner.schema(in_files)
        fields = {field.name: field for field in own} | {key: pa.field(key, kind) for key, kind in self._types.items()}
        own_names = [name for name in own.names if name not in self._types]
        names = [*own_names, *self._types] if columns is None else columns
        return pa.schema([fields[name] for name in names], own.metadata)

    def constants(self, file: int) -> Constants:
        return self._constants[self.view.names[file].rpartition("/")[0]]

    def open(self, file: int, wanted: pa.Schema) -> BlockReader:
        """A file, whose blocks get the columns of its folders. If no others are wanted, it is not even opened."""
        own = [field for field in wanted if field.name not in self._types]
        inner = self._inner.open(file, pa.schema(own, wanted.metadata)) if own else None
        return WithConstants(inner, self.constants(file), wanted)


def below_hive_folders(listing: Listing) -> Listing:
    """A single file, named from above the folders key=value that it lies in. Other sources stay as they are."""
    if len(listing.names) != 1 or not listing.spec.endswith(listing.names[0]) or "/" in listing.names[0]:
        return listing
    separator = "/" if is_url(listing.root) else os.sep
    parts = listing.root.split(separator)
    first = next((number for number, part in enumerate(parts) if "=" in part), len(parts))
    if first == len(parts) or first == 0:
        return listing
    prefix = "/".join(parts[first:])
    names = tuple(f"{prefix}/{name}" for name in listing.names)
    return replace(listing, root=separator.join(parts[:first]) or separator, names=names)


class WithConstants:
    """The blocks of another reader with additional columns, each of one value."""

    def __init__(self, inner: BlockReader | None, constants: Constants, wanted: pa.Schema) -> None:
        self._inner, self._constants, self._wanted = inner, constants, wanted

    def read(self, block: Block) -> pa.Table | pa.RecordBatch:
        return next(self.read_all([block]))

    def read_all(self, blocks: Sequence[Block]) -> Iterator[pa.Table | pa.RecordBatch]:
        own_columns = repeat(None) if self._inner is None else read_all(self._inner, blocks)
        return (self._complete(block, own) for block, own in zip(blocks, own_columns, strict=False))

    def _complete(self, block: Block, own: pa.Table | pa.RecordBatch | None) -> pa.Table | pa.RecordBatch:
        columns = [
            pa.repeat(self._constants[field.name], block.rows)
            if own is None or field.name in self._constants
            else own.column(field.name)
            for field in self._wanted
        ]
        return (pa.RecordBatch if own is None else type(own)).from_arrays(columns, schema=self._wanted)


def _pairs(folder: str, name: str) -> dict[str, str | None]:
    """The keys and values in the path of a folder, in which ``name`` lies."""
    pairs: dict[str, str | None] = {}
    for level in folder.split("/"):
        key, sign, value = level.partition("=")
        key = unquote(key)
        if not sign or not key:
            continue
        if key in pairs:
            raise SchemaMismatchError(f"{name} lies in two folders {key}=…, so {key!r} has two values. Move it.")
        pairs[key] = None if value == NULL else unquote(value)
    return pairs


def _types(
    texts: Mapping[str, Mapping[str, str | None]], first_files: Mapping[str, str], root: str
) -> dict[str, pa.DataType]:
    """The type of each key: int64 if all its values are integers of 64 bits, else string."""
    keys = list(dict.fromkeys(key for pairs in texts.values() for key in pairs))
    if not keys:
        raise SchemaMismatchError(
            f"partitioning='hive', but below {root} no folder with files is named key=value. "
            "Pass the folder above the partitions, or leave partitioning out."
        )
    for folder, pairs in texts.items():
        for key in keys:
            if key not in pairs:
                raise SchemaMismatchError(
                    f"{first_files[folder]} lies in no folder {key}=…, but other files do, so its {key!r} is unknown. "
                    f"Move it into one, such as {key}={NULL} for null, or read it as another dataset."
                )
    return {key: _type([pairs[key] for pairs in texts.values()]) for key in keys}


def _type(values: Sequence[str | None]) -> pa.DataType:
    known = [value for value in values if value is not None]
    are_integers = all(INTEGER.fullmatch(value) and -(1 << 63) <= int(value) < 1 << 63 for value in known)
    return pa.int64() if known and are_integers else pa.string()


def _value(text: str | None, kind: pa.DataType) -> int | str | None:
    return int(text) if text is not None and pa.types.is_integer(kind) else text
