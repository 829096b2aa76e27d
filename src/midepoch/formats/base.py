"""What every format gives: the blocks of a file, a reader of one block, and columns of the same kinds."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from midepoch.storage.location import Location
from midepoch.storage.ranges import Span


class Block(NamedTuple):
    """What one read fetches: a record batch, a row group, a run of lines. ``number`` counts the blocks of its file."""

    number: int
    offset: int
    length: int
    rows: int


@dataclass(frozen=True, slots=True)
class Scan:
    """A file's schema and the ``(offset, length, rows)`` of its blocks. A file without rows may have no schema.

    ``seeks`` is false where a block can be reached only by reading what is before it. ``version`` is that of an object
    of a store, its etag.
    """

    format: str
    schema: pa.Schema | None
    blocks: Sequence[tuple[int, int, int]]
    seeks: bool = True
    version: str = ""


class Range(NamedTuple):
    """What a file's statistics say of a column in one block. Bounds, and a number of nulls, may be unknown.

    The bounds need not be values that occur, and hold for all but nulls and NaN.
    """

    low: pa.Scalar | None
    high: pa.Scalar | None
    nulls: int | None
    rows: int


class BlockReader(Protocol):
    """An open file, for use in the process that opened it."""

    def read(self, block: Block) -> pa.Table | pa.RecordBatch:
        """The rows of a block."""

    def is_view(self, data: pa.Table | pa.RecordBatch) -> bool:
        """Whether what was read is a view of the file, which costs nothing to hold."""


@runtime_checkable
class SpannedReader(BlockReader, Protocol):
    """An open file that knows which bytes a block is made of, so that those of several can be fetched together."""

    def spans(self, block: Block) -> Sequence[Span]:
        """The bytes that are needed of a block."""

    def decode(self, block: Block, file: pa.NativeFile) -> pa.Table | pa.RecordBatch:
        """The rows of a block, out of a file that has these bytes."""


@runtime_checkable
class JoiningReader(BlockReader, Protocol):
    """An open file that reads several blocks with less effort than one after the other."""

    def read_all(self, blocks: Sequence[Block]) -> Iterator[pa.Table | pa.RecordBatch]:
        """The rows of each of these blocks."""


class Format(Protocol):
    """A file format: a module of this package with these names."""

    @property
    def MAPPED(self) -> bool:  # noqa: N802
        """Whether a block is a view of the file, which costs next to nothing to hold and to read again."""

    @property
    def TYPES(self) -> Literal["fixed", "values", "text"]:  # noqa: N802
        """How a file's types are known.

        "fixed": the file states them. "values": they are those of all its values, and a column may be missing.
        "text": they are a guess, and any column can also be read as strings.
        """

    def scan(self, path: Location) -> Scan:
        """The schema and blocks of a file, from its headers or footer alone where it has any."""

    def open_blocks(self, path: Location, own: pa.Schema, wanted: pa.Schema) -> BlockReader:
        """The file, which the scan found to have its ``own`` schema, opened to read blocks under the ``wanted`` one."""


def read_all(reader: BlockReader, blocks: Sequence[Block]) -> Iterable[pa.Table | pa.RecordBatch]:
    """The rows of each of these blocks, fetched together if the reader can."""
    return reader.read_all(blocks) if isinstance(reader, JoiningReader) else map(reader.read, blocks)


def as_read(schema: pa.Schema) -> pa.Schema:
    """The schema under which a file's rows are read.

    Whether a column may be null is forgotten: files of one data set often differ in that alone, and Arrow would not
    join their rows. Views are read as what they show, because Arrow cannot gather them.
    """
    return pa.schema(
        [field.with_type(_gatherable(field.type)).with_nullable(True) for field in schema], schema.metadata
    )


def read_as(data: "pa.Table | pa.RecordBatch", schema: pa.Schema) -> "pa.Table | pa.RecordBatch":
    """The columns of a block that a schema names, under that schema."""
    if data.schema.equals(schema):
        return data
    if not len(schema):
        return data.select([])
    columns = [data.column(field.name) for field in schema]
    same = [one if one.type == field.type else one.cast(field.type) for one, field in zip(columns, schema, strict=True)]
    return type(data).from_arrays(same, schema=schema)


def _gatherable(kind: pa.DataType) -> pa.DataType:
    """The type, with plain strings and bytes in place of views of them."""
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _gatherable(kind.value_type), kind.ordered)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_gatherable(field.type)) for field in kind])
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(
            key.with_type(_gatherable(key.type)), item.with_type(_gatherable(item.type)), keys_sorted=kind.keys_sorted
        )
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_gatherable(kind.value_type)), kind.list_size)
    for is_kind, make in (
        (pa.types.is_list, pa.list_),
        (pa.types.is_large_list, pa.large_list),
        (pa.types.is_list_view, pa.list_view),
        (pa.types.is_large_list_view, pa.large_list_view),
    ):
        if is_kind(kind):
            return make(kind.value_field.with_type(_gatherable(kind.value_type)))
    return kind
