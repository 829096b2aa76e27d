"""Hive partitions: folders named ``key=value`` are columns of the files in them."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from midepoch.errors import SchemaMismatchError
from midepoch.formats import Block, BlockReader, read_all
from midepoch.index.index import Index, WrappedIndex
from midepoch.storage.listing import Listing
from midepoch.storage.urls import is_url

NULL = "__HIVE_DEFAULT_PARTITION__"
INTEGER = re.compile(r"-?[0-9]+")
Constants = Mapping[str, pa.Scalar]


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
