"""Hive partitions: folders named ``key=value`` as columns of the files in them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from midepoch.errors import SchemaMismatchError
from midepoch.formats import Block, BlockReader, read_all
from midepoch.index.index import Index

NULL = "__HIVE_DEFAULT_PARTITION__"
WHOLE_NUMBER = re.compile(r"-?[0-9]+")
Values = Mapping[str, pa.Scalar]


class HiveIndex(Index):
    """An index whose files also have the columns that their folders name.

    Those come last. Where a file has one of the same name, the folder's is taken.
    """

    layout: Mapping[str, Any] = MappingProxyType({"partitioning": "hive"})

    def __init__(self, plain: Index) -> None:
        super().__init__(plain.root, plain._content, plain._source, plain.store)
        self._plain = plain
        folders = {name.rpartition("/")[0]: name for name in reversed(self.names)}
        texts = {folder: _pairs(folder, name) for folder, name in folders.items()}
        self._types = _types(texts, folders, self.root)
        self._values = {
            folder: {key: pa.scalar(_value(text, self._types[key]), self._types[key]) for key, text in pairs.items()}
            for folder, pairs in texts.items()
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return HiveIndex, (self._plain,)

    def constants(self, file: int) -> Values:
        """The values that a file's folders give its columns."""
        return self._values[self.names[file].rpartition("/")[0]]

    @property
    def column_names(self) -> list[str]:
        """The columns of the files, then those of the folders."""
        return [name for name in super().column_names if name not in self._types] + list(self._types)

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        """The schema under which these columns, or all, are read."""
        asked = None if columns is None else [name for name in columns if name not in self._types]
        own = super().schema(asked)
        fields = {field.name: field for field in own} | {key: pa.field(key, kind) for key, kind in self._types.items()}
        kept = [name for name in own.names if name not in self._types]
        chosen = [*kept, *self._types] if columns is None else columns
        return pa.schema([fields[name] for name in chosen], own.metadata)

    def open(self, file: int, wanted: pa.Schema) -> BlockReader:
        """A file, whose blocks get the columns of its folders. If no others are wanted, it is not even opened."""
        own = [field for field in wanted if field.name not in self._types]
        inner = super().open(file, pa.schema(own, wanted.metadata)) if own else None
        return WithConstants(inner, self.constants(file), wanted)


class WithConstants:
    """Blocks with columns more, each of one value."""

    def __init__(self, inner: BlockReader | None, values: Values, wanted: pa.Schema) -> None:
        self._inner, self._values, self._wanted = inner, values, wanted
        self._own = [name for name in wanted.names if name not in values]

    def read(self, block: Block) -> pa.Table | pa.RecordBatch:
        """The rows of a block."""
        return next(self.read_all([block]))

    def read_all(self, blocks: Sequence[Block]) -> Iterator[pa.Table | pa.RecordBatch]:
        """The rows of each of these blocks."""
        read = repeat(None) if self._inner is None else read_all(self._inner, blocks)
        return (self._completed(block, data) for block, data in zip(blocks, read, strict=False))

    def _completed(self, block: Block, data: pa.Table | pa.RecordBatch | None) -> pa.Table | pa.RecordBatch:
        columns = [
            pa.repeat(self._values[field.name], block.rows)
            if data is None or field.name in self._values
            else data.column(field.name)
            for field in self._wanted
        ]
        return (pa.RecordBatch if data is None else type(data)).from_arrays(columns, schema=self._wanted)

    def is_view(self, data: pa.Table | pa.RecordBatch) -> bool:
        """Whether what comes from the file is."""
        return self._inner is not None and self._inner.is_view(data.select(self._own))


def _pairs(folder: str, name: str) -> dict[str, str | None]:
    """The keys and values that a folder's path names."""
    pairs: dict[str, str | None] = {}
    for part in folder.split("/"):
        key, sign, value = part.partition("=")
        key = unquote(key)
        if not sign or not key:
            continue
        if key in pairs:
            raise SchemaMismatchError(f"{name} lies in two folders {key}=…, so {key!r} has two values. Move it.")
        pairs[key] = None if value == NULL else unquote(value)
    return pairs


def _types(
    texts: Mapping[str, Mapping[str, str | None]], examples: Mapping[str, str], root: str
) -> dict[str, pa.DataType]:
    """The type of each key: whole numbers where all values are, else strings."""
    keys = list(dict.fromkeys(key for pairs in texts.values() for key in pairs))
    if not keys:
        raise SchemaMismatchError(
            f"partitioning='hive', but below {root} no folder with files is named key=value. "
            "Pass the folder above those, or leave partitioning out."
        )
    for folder, pairs in texts.items():
        for key in keys:
            if key not in pairs:
                raise SchemaMismatchError(
                    f"{examples[folder]} lies in no folder {key}=…, and other files do, so its {key!r} is not known. "
                    f"Move it into one, such as {key}={NULL} for null, or read it as another data set."
                )
    return {key: _type([pairs[key] for pairs in texts.values()]) for key in keys}


def _type(values: Sequence[str | None]) -> pa.DataType:
    known = [value for value in values if value is not None]
    whole = all(WHOLE_NUMBER.fullmatch(value) and -(1 << 63) <= int(value) < 1 << 63 for value in known)
    return pa.int64() if known and whole else pa.string()


def _value(text: str | None, kind: pa.DataType) -> int | str | None:
    return int(text) if text is not None and pa.types.is_integer(kind) else text
