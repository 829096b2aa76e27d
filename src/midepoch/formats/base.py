"""What every format provides: the blocks of a file, a reader of one block, and columns of the same types."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from midepoch.errors import DataFormatError
from midepoch.storage.objects import Location, Span, open_file

MAX_RECORD_BYTES = 512 << 20
"""The default of ``max_record_bytes``."""
NO_LIMIT = (1 << 63) - 1
"""The limit of files that are trusted."""
MOST_TIMES = 100
"""A block that grows less than this many times has no limit: no small file becomes large by that."""
LISTS = (
    (pa.types.is_list, pa.list_),
    (pa.types.is_large_list, pa.large_list),
    (pa.types.is_list_view, pa.list_view),
    (pa.types.is_large_list_view, pa.large_list_view),
)


class Block(NamedTuple):
    """What one read fetches: a record batch, a row group, a run of lines. ``number`` counts the blocks of its file."""

    number: int
    offset: int
    length: int
    rows: int


@dataclass(frozen=True, slots=True)
class Scan:
    """A file's schema and the ``(offset, length, rows)`` of its blocks. A file without rows may have no schema.

    ``seeks`` is false if a block can be reached only by reading all bytes before it. ``divisible`` is true if some rows
    of a block can be read alone. ``version`` is the etag of an object in a store.
    """

    format: str
    schema: pa.Schema | None
    blocks: Sequence[tuple[int, int, int]]
    seeks: bool = True
    version: str = ""
    divisible: bool = False


class Range(NamedTuple):
    """The statistics of a column in one block. Bounds and the number of nulls may be unknown.

    The bounds need not be values that occur. They hold for all values but nulls and NaN.
    """

    low: pa.Scalar | None
    high: pa.Scalar | None
    nulls: int | None
    rows: int


class BlockReader(Protocol):
    """An open file, for use in the process that opened it."""

    def read(self, block: Block) -> pa.Table | pa.RecordBatch:
        """The rows of a block."""


class SpannedReader(ABC):
    """An open file that knows which bytes make up a block, so that the bytes of several blocks are fetched together."""

    path: Location

    def read(self, block: Block) -> pa.Table | pa.RecordBatch:
        """The rows of a block. Any number of threads may read at once: each opens the file for itself."""
        with open_file(self.path) as file:
            return self.decode(block, file)

    @abstractmethod
    def spans(self, block: Block) -> Sequence[Span]:
        """The bytes that a block needs."""

    @abstractmethod
    def decode(self, block: Block, file: pa.NativeFile) -> pa.Table | pa.RecordBatch:
        """The rows of a block, from a file that has these bytes."""


@runtime_checkable
class JoiningReader(BlockReader, Protocol):
    """An open file that reads several blocks with less effort than one after the other."""

    def read_all(self, blocks: Sequence[Block]) -> Iterator[pa.Table | pa.RecordBatch]:
        """The rows of each of these blocks."""


class TextHead(NamedTuple):
    """What is known of a text file before it is scanned."""

    begins: bytes
    """Its first bytes, decompressed, without a byte order mark and leading blank space."""
    asked: str | None
    """The format that the user asked for."""
    assumed: str | None
    """The format to use if the bytes do not decide: the one asked for, else the one that the file's name says."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A file format: how its files are recognised, where their blocks are, and how one block is read."""

    name: str
    suffixes: tuple[str, ...]
    """How the names of its files end. A format that only reads the files of others has none."""
    scan: Callable[[Location, int], Scan]
    """Finds the schema and blocks of a file, from its headers or footer alone where it has any.

    Its second argument is ``max_record_bytes``: how large a record of text or a decompressed block may be.
    """
    open_blocks: Callable[[Location, pa.Schema, pa.Schema], BlockReader]
    """Opens a file, given its own schema as the scan found it, to read blocks under another schema."""
    has_magic: Callable[[bytes], bool] | None = None
    """For a binary format: true if a file that begins with these bytes is of this format."""
    is_text: Callable[[TextHead], bool] | None = None
    """For a text format: true if a file with this head is of this format."""
    is_named: bool = False
    """True if every file with such a name is of this format, unless it has the magic number of another one."""
    types: Literal["fixed", "values", "text"] = "fixed"
    """Where a file's types come from.

    "fixed": the file states them. "values": they fit all its values, and a column may be missing. "text": they are
    guessed, and any column can also be read as strings.
    """
    includes: tuple[str, ...] = ()
    """Other formats that users mean by this name too."""
    block: str = "block"
    """What a block is called in messages."""
    is_mapped: bool = False
    """True if the blocks of a local file are views of it, which cost next to nothing to hold and to read again."""
    has_spans: bool = False
    """True if its readers are :class:`SpannedReader`."""
    ranges: Callable[[Location, Sequence[pa.Field]], Sequence[Mapping[str, Range]]] | None = None
    """Reads, for each block of a file, the statistics of some columns, if the format stores any."""


def check_inflation(where: str, stored: int, inflated: int, limit: int) -> None:
    """Raise if a file says that a block becomes so large that it can be meant to fill the memory."""
    if inflated > limit and inflated > MOST_TIMES * stored:
        raise DataFormatError(
            f"{where}: {stored:,} bytes become {inflated:,} bytes once decompressed, more than max_record_bytes "
            f"({limit:,}). If the file is trusted, pass a larger max_record_bytes to read, or None."
        )


def read_all(reader: BlockReader, blocks: Sequence[Block]) -> Iterable[pa.Table | pa.RecordBatch]:
    """The rows of each of these blocks, fetched together if the reader can."""
    return reader.read_all(blocks) if isinstance(reader, JoiningReader) else map(reader.read, blocks)


def as_read(schema: pa.Schema) -> pa.Schema:
    """The schema under which a file's rows are read.

    Every column is nullable: files of one dataset often differ in that alone, and Arrow would not join their rows.
    String and binary views become plain strings and binaries, because Arrow cannot gather views.
    """
    return pa.schema(
        [field.with_type(_gatherable(field.type)).with_nullable(True) for field in schema], schema.metadata
    )


def read_as(data: "pa.Table | pa.RecordBatch", schema: pa.Schema) -> "pa.Table | pa.RecordBatch":
    """The columns of a block that a schema names, cast to its types."""
    if data.schema.equals(schema):
        return data
    if not len(schema):
        return data.select([])
    columns = [data.column(field.name) for field in schema]
    same = [one if one.type == field.type else one.cast(field.type) for one, field in zip(columns, schema, strict=True)]
    return type(data).from_arrays(same, schema=schema)


def _gatherable(kind: pa.DataType) -> pa.DataType:
    """The type, with plain strings and binaries in place of views."""
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _gatherable(kind.value_type), kind.ordered)
    return with_inner(kind, _gatherable)


def with_inner(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A list, map or struct with its inner types changed. Any other type stays as it is."""
    fields = [kind.field(number) for number in range(kind.num_fields)]
    changed = [field.with_type(change(field.type)) for field in fields]
    if changed == fields:  # a damaged file may have lists of size 0, which cannot be made
        return kind
    if pa.types.is_map(kind):
        return pa.map_(*changed[0].type, keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(changed[0], kind.list_size)
    if pa.types.is_struct(kind):
        return pa.struct(changed)
    return next((make(changed[0]) for is_kind, make in LISTS if is_kind(kind)), kind)
