"""The blocks of a dataset: what an index is, and a view of the bytes in which files and blocks are listed.

The bytes are two Arrow streams, one of files and one of blocks, followed by a checksum. They are mapped, not read, so
a dataset of a million blocks opens at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from midepoch._common.checks import cached_property
from midepoch._common.files import framed, is_shared, map_trusted, trust_folder, unframed
from midepoch._common.hashing import I64, digest
from midepoch.checkpoint.fingerprint import FileFacts, data_fingerprint
from midepoch.errors import DataChangedError
from midepoch.formats import EMPTY, FORMATS, Block, BlockReader, Scan
from midepoch.order.windows import Blocks, bounds_of
from midepoch.storage.listing import Listing
from midepoch.storage.local import FileStamp
from midepoch.storage.store import Store
from midepoch.storage.urls import folder_prefix
from midepoch.values.arrow import numbers_of

MAGIC = b"MID6"
MOST_ROWS = 1 << 62
FILES = pa.schema(
    [(name, pa.string()) for name in ("names", "listed_versions", "versions", "formats")]
    + [(name, pa.int64()) for name in ("sizes", "times", "schema_numbers", "blocks")]
    + [(name, pa.bool_()) for name in ("seeks", "divisible")]
)
BLOCKS = pa.schema([(name, pa.int64()) for name in ("offset", "length", "rows")])
T = TypeVar("T")


class Index(ABC):
    """The blocks of a dataset, and how they are read. It can be pickled; the copy belongs to the same files.

    An index has a ``view`` of its files and blocks, and says how a file is opened and under which schema.
    """

    view: "IndexView"
    store: Store | None = None
    """The object store that holds the files; None if they are on this machine."""
    layout: Mapping[str, Any] = MappingProxyType({})
    """What a state remembers of columns that are not in the files."""

    @abstractmethod
    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        """The schema under which these columns, or all of them, are read from every file."""

    @abstractmethod
    def open(self, file: int, wanted: pa.Schema) -> BlockReader:
        """A file, opened to read its blocks under a schema."""

    def constants(self, file: int) -> Mapping[str, pa.Scalar]:
        """The columns of a file that are not in it and have the same value in all its rows."""
        return {}

    def stored_name(self, file: int, name: str) -> str | None:
        """The name that a column has in a file; None if the file does not have it."""
        return name

    def check(self, file: int) -> None:  # noqa: B027 - what is in memory does not change
        """Raise ``DataChangedError`` unless a file is the one that was indexed.

        Objects of a store are checked when they are read.
        """

    def rows(self, numbers: I64, wanted: pa.Schema) -> pa.RecordBatch | None:
        """Rows by number, if they can be made without reading blocks; else None."""
        return None


class WrappedIndex(Index):
    """The files and blocks of another index, with other columns: subclasses have ``schema`` and ``open``."""

    def __init__(self, inner: Index) -> None:
        self._inner, self.view, self.store, self.layout = inner, inner.view, inner.store, inner.layout

    def constants(self, file: int) -> Mapping[str, pa.Scalar]:
        return self._inner.constants(file)

    def stored_name(self, file: int, name: str) -> str | None:
        return self._inner.stored_name(file, name)

    def check(self, file: int) -> None:
        self._inner.check(file)


def _listed(column: str, _: type[T]) -> cached_property[list[T]]:
    """The attribute of a view that has a value for each file: a column of the same name."""

    def values(view: "IndexView") -> list[T]:
        return list(view._files[column].to_pylist())

    values.__name__ = column
    return cached_property(values)


class IndexView:
    """The files of a dataset and their blocks, as the bytes of an index list them.

    Files, blocks and rows are numbered from 0 over the whole dataset. Arrays of starts have one element more than
    there are files or blocks: the end.
    """

    def __init__(self, root: str, content: pa.Buffer, saved_at: str | None = None) -> None:
        """View the bytes of an index, which may be saved in a file; raise ``ValueError`` if they are damaged."""
        self.root, self._content, self.saved_at = root, content, saved_at
        body, self.checksum = unframed(content, MAGIC)
        streams = pa.BufferReader(pa.py_buffer(body))
        self._files = pa.ipc.open_stream(streams).read_all()
        self._blocks = pa.ipc.open_stream(streams).read_all()

    @classmethod
    def of(cls, listing: Listing, scans: Sequence[Scan]) -> "IndexView":
        """A view of listed files, from a scan of each."""
        return cls(listing.root, index_bytes(listing, scans))

    @classmethod
    def load(cls, root: str, path: str) -> "IndexView":
        """Map an index file. Raise ``ValueError`` if it is damaged, and ``OSError`` if it cannot be used."""
        content = map_trusted(Path(path))
        try:
            view = cls(root, content, path)
            view._check_bounds()
        except (pa.ArrowException, EOFError, LookupError, TypeError, OverflowError, MemoryError) as error:
            raise ValueError(f"it is damaged: {error}") from error
        return view

    def _check_bounds(self) -> None:
        """Raise ``ValueError`` unless all numbers and texts lie where they can, because nobody checks them again."""
        for table, schema in ((self._files, FILES), (self._blocks, BLOCKS)):
            if not table.schema.equals(schema):
                raise ValueError(f"it has the columns {', '.join(table.column_names)}")
            table.validate(full=True)
        if unknown := {*self.formats} - {*FORMATS, EMPTY}:
            raise ValueError(f"it names formats that are not registered here: {', '.join(map(repr, unknown))}")
        counts, rows = _numbers(self._files, "blocks"), self.block_rows
        offsets, lengths = self.block_offsets, self.block_lengths
        if min(column.min(initial=0) for column in (counts, rows, offsets, lengths)) < 0:
            raise ValueError("it has negative numbers")
        if counts.sum() != len(rows) or rows.sum(dtype=np.float64) >= MOST_ROWS:
            raise ValueError("its numbers of blocks and rows do not fit")
        schemas = _numbers(self._files, "schema_numbers")
        if len(schemas) and (schemas.min() < -1 or schemas.max() >= len(self.distinct_schemas)):
            raise ValueError("it names schemas that it does not have")
        mapped = np.repeat(np.array([name == "arrow" for name in self.formats], bool), counts)
        sizes = np.repeat(_numbers(self._files, "sizes"), counts)
        if (mapped & ((offsets > sizes) | (lengths > sizes - offsets))).any():
            raise ValueError("it has blocks beyond the end of their files")

    def __reduce__(self) -> tuple[Any, ...]:
        if self.saved_at is None:
            return IndexView, (self.root, self._content)
        return _from_file, (self.root, self.saved_at, self.checksum, is_shared(Path(self.saved_at)))

    names = _listed("names", str)
    """The names of the files below the root."""
    versions = _listed("versions", str)
    """The versions of the objects that were indexed; empty for files on this machine."""
    formats = _listed("formats", str)
    """The formats of the files."""
    seeks = _listed("seeks", bool)
    """For each file, whether a block can be read without reading those before it."""
    divisible = _listed("divisible", bool)
    """For each file, whether some rows of a block can be read alone."""
    schema_numbers = _listed("schema_numbers", int)
    """For each file, which of the distinct schemas it has; -1 if it has no columns."""

    def path(self, file: int) -> str:
        """The path or URL of a file."""
        return self._folder + self.names[file]

    @cached_property
    def _folder(self) -> str:
        return folder_prefix(self.root)

    @cached_property
    def stamps(self) -> list[FileStamp]:
        """What the listing said of the files when they were indexed."""
        columns = (self._files[name].to_pylist() for name in ("sizes", "times", "listed_versions"))
        return list(map(FileStamp, *columns))

    @cached_property
    def distinct_schemas(self) -> list[pa.Schema]:
        """The schemas that files have, each once."""
        stored = (self._files.schema.metadata or {}).get(b"schemas", b"").split()
        return [pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text.decode()))) for text in stored]

    @cached_property
    def schemas(self) -> list[pa.Schema | None]:
        """The schema of each file; None if it has no columns."""
        return [None if number < 0 else self.distinct_schemas[number] for number in self.schema_numbers]

    @cached_property
    def first_blocks(self) -> I64:
        """The first block of each file."""
        return bounds_of(_numbers(self._files, "blocks"))

    @cached_property
    def block_offsets(self) -> I64:
        """The offset of each block in its file."""
        return _numbers(self._blocks, "offset")

    @cached_property
    def block_lengths(self) -> I64:
        """The bytes of each block."""
        return _numbers(self._blocks, "length")

    @cached_property
    def block_rows(self) -> I64:
        """The rows of each block."""
        return _numbers(self._blocks, "rows")

    @cached_property
    def block_starts(self) -> I64:
        """The first row of each block."""
        return bounds_of(self.block_rows)

    @cached_property
    def blocks(self) -> Blocks:
        """The rows and bytes of each block, and whether some of its rows can be read alone."""
        divisible = np.repeat(np.array(self.divisible, bool), np.diff(self.first_blocks))
        return Blocks(self.block_starts, self.block_lengths, divisible)

    @cached_property
    def file_starts(self) -> I64:
        """The first row of each file."""
        return self.block_starts[self.first_blocks]

    @property
    def rows(self) -> int:
        """The number of rows of the dataset."""
        return int(self.block_starts[-1])

    @cached_property
    def row_bytes(self) -> int:
        """The average bytes of a row, at least 1."""
        return max(1, int(self.block_lengths.sum()) // max(1, self.rows))

    def file_of(self, block: int) -> int:
        """The file of a block."""
        return int(self.first_blocks.searchsorted(block, "right")) - 1

    def block(self, number: int) -> tuple[int, Block]:
        """The file of a block, and the block as it is numbered there."""
        file = self.file_of(number)
        return file, Block(
            number - int(self.first_blocks[file]),
            int(self.block_offsets[number]),
            int(self.block_lengths[number]),
            int(self.block_rows[number]),
        )

    def locate(self, row: int) -> tuple[str, int]:
        """The name of the file that holds a row, and the row's number in that file."""
        file = int(np.searchsorted(self.file_starts, row, "right")) - 1
        return self.names[file], row - int(self.file_starts[file])

    @cached_property
    def facts(self) -> list[FileFacts]:
        """What the fingerprint is made of: names, sizes and numbers of rows."""
        rows: list[int] = np.diff(self.file_starts).tolist()
        return list(zip(self.names, (stamp.size for stamp in self.stamps), rows, strict=True))

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What a state remembers of the data."""
        return data_fingerprint(self.facts, "+".join(sorted(set(self.formats) - {EMPTY})))

    @property
    def scans(self) -> Mapping[tuple[str, FileStamp], Scan]:
        """The scans that this index was made of, by the name and stamp of the file."""
        extents = list(zip(*(column.to_pylist() for column in self._blocks.columns), strict=True))
        bounds = self.first_blocks.tolist()
        return {
            (name, self.stamps[file]): Scan(
                self.formats[file],
                self.schemas[file],
                extents[bounds[file] : bounds[file + 1]],
                self.seeks[file],
                self.versions[file],
                self.divisible[file],
            )
            for file, name in enumerate(self.names)
        }

    @property
    def identity(self) -> str:
        """A digest of the fingerprint, and of the times or versions by which a rewritten file is noticed."""
        stamps = [(stamp.mtime_ns, version) for stamp, version in zip(self.stamps, self.versions, strict=True)]
        facts = self.fingerprint["digest"], self.fingerprint.get("format"), stamps
        return digest(repr(facts).encode(), size=16).hex()


class GoneView:
    """In place of an index that a new process cannot open: whatever is asked of it raises why.

    A process that fails while it unpickles its arguments ends without a word to its parent. A process that fails when
    it reads can report the error.
    """

    def __init__(self, error: DataChangedError) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return GoneView, (self._error,)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error


def _from_file(root: str, path: str, checksum: int, trust_shared: bool = False) -> "IndexView | GoneView":
    """The index that was pickled in another process; a ``GoneView`` if it or what it indexed is not there any more."""
    if trust_shared:
        trust_folder(Path(path).parent)
    try:
        view = IndexView.load(root, path)
    except (OSError, ValueError) as error:
        return GoneView(
            DataChangedError(
                f"The index of {root} is gone from {path} ({error}). It is removed when a file has changed. Open the "
                "dataset again; if this is another machine, with an index_dir that all machines share."
            )
        )
    if view.checksum != checksum:
        changed = f"The files below {root} changed and were indexed again. Open the dataset again."
        return GoneView(DataChangedError(changed))
    return view


def _numbers(table: pa.Table, column: str) -> I64:
    return numbers_of(table[column].combine_chunks())


def index_bytes(listing: Listing, scans: Sequence[Scan]) -> pa.Buffer:
    """The bytes of an index of the listed files, from a scan of each."""
    schemas: dict[bytes, int] = {}
    stored: list[str] = []
    for scan in scans:
        if scan.schema is not None and schemas.setdefault(_bare(scan.schema), len(stored)) == len(stored):
            stored.append(scan.schema.serialize().to_pybytes().hex())
    lines = [
        (
            *(name, stamp.version, scan.version, scan.format, stamp.size, stamp.mtime_ns),
            *(-1 if scan.schema is None else schemas[_bare(scan.schema)], len(scan.blocks)),
            *(scan.seeks, scan.divisible),
        )
        for name, stamp, scan in zip(listing.names, listing.stamps, scans, strict=True)
    ]
    columns = zip(*lines, strict=True) if lines else [()] * len(FILES)
    files = pa.table(list(map(pa.array, columns, FILES.types)), FILES.with_metadata({"schemas": " ".join(stored)}))
    extents = np.array([block for scan in scans for block in scan.blocks], np.int64).reshape(-1, 3)
    blocks = pa.table([np.ascontiguousarray(column) for column in extents.T], BLOCKS)
    return pa.py_buffer(framed(_stream(files) + _stream(blocks), MAGIC))


def _bare(schema: pa.Schema) -> bytes:
    return bytes(schema.remove_metadata().serialize())


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
