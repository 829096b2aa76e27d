"""The files of a data set and the blocks in them: a view of an index, wherever its bytes are.

The bytes are two Arrow streams, the files and their blocks, followed by a checksum. They are mapped, not read,
so a data set of a million blocks opens at once.
"""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from midepoch._common.files import framed, remove, unframed
from midepoch._common.types import I64
from midepoch.checkpoint.fingerprint import FileFacts, data_fingerprint
from midepoch.errors import DataChangedError, NoDataError
from midepoch.formats import EMPTY, FORMATS, Block, BlockReader, Scan
from midepoch.index.remote import StoredBlocks
from midepoch.index.schemas import Kind, common_schema
from midepoch.order.orders import Sequential
from midepoch.storage.listing import Listing
from midepoch.storage.local import FileStamp, check_unchanged
from midepoch.storage.location import Location
from midepoch.storage.maps import KeptMaps
from midepoch.storage.objects import StoredFile
from midepoch.storage.store import Store
from midepoch.values.numbers import numbers_of

MAGIC = b"MID3"


class Index:
    """Which blocks a data set has, without any of their data."""

    def __init__(self, root: str, content: pa.Buffer, source: str | None = None, store: Store | None = None) -> None:
        """Open the bytes of an index, which lie in the file ``origin``; raise ``ValueError`` if they are broken.

        The ``store`` of the files is known in memory alone: nothing of it is in those bytes.
        """
        self.root, self._content, self._source, self.store = root, content, source, store
        body, self._checksum = unframed(content, MAGIC)
        self._maps = KeptMaps()
        streams = pa.BufferReader(pa.py_buffer(body))
        self._files = pa.ipc.open_stream(streams).read_all()
        self._blocks = pa.ipc.open_stream(streams).read_all()

    @classmethod
    def load(cls, root: str, path: str, store: Store | None = None) -> "Index":
        """Map an index file."""
        with pa.memory_map(path) as file:
            return cls(root, file.read_buffer(), path, store)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._source is None:
            return _from_bytes, (self.root, self._content.to_pybytes(), self.store)
        return _from_file, (self.root, self._source, self._checksum, self.store)

    layout: Mapping[str, Any] = MappingProxyType({})
    """What a state remembers of how columns were found, if not in the files."""

    @property
    def source(self) -> str | None:
        """Where the index lies, if that is on disk."""
        return self._source

    @property
    def checksum(self) -> int:
        """What tells this index from others."""
        return int(self._checksum)

    @cached_property
    def names(self) -> list[str]:
        """The files' names below the root."""
        return list(self._files["name"].to_pylist())

    @cached_property
    def stamps(self) -> list[FileStamp]:
        """The files' sizes and times of change when they were indexed."""
        return list(map(FileStamp, self._files["size"].to_pylist(), self._files["mtime_ns"].to_pylist()))

    @cached_property
    def formats(self) -> list[str]:
        """The files' formats."""
        return list(self._files["format"].to_pylist())

    @cached_property
    def seeks(self) -> list[bool]:
        """Whether a block of the file can be reached without reading those before it."""
        return list(self._files["seeks"].to_pylist())

    @cached_property
    def versions(self) -> list[str]:
        """The versions of the objects that were indexed; files on this machine have none."""
        told = self._files["version"].to_pylist() if "version" in self._files.column_names else []
        return list(told) or [""] * len(self.names)

    @cached_property
    def first_blocks(self) -> I64:
        """The number, through the whole data set, of each file's first block, and at last that of all blocks."""
        return _starts(_numbers(self._files, "blocks"))

    @cached_property
    def block_starts(self) -> I64:
        """The first row of each block, and at last the number of all rows."""
        return _starts(_numbers(self._blocks, "rows"))

    @cached_property
    def file_starts(self) -> I64:
        """The first row of each file, and at last the number of all rows."""
        return self.block_starts[self.first_blocks]

    @cached_property
    def places(self) -> tuple[I64, I64, I64]:
        """The offsets, lengths and rows of all blocks."""
        return (
            _numbers(self._blocks, "offset"),
            _numbers(self._blocks, "length"),
            _numbers(self._blocks, "rows"),
        )

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.block_starts[-1])

    @cached_property
    def row_bytes(self) -> int:
        """How many bytes a row has on average, at least one."""
        return max(1, int(self.places[1].sum()) // max(1, self.rows))

    def block(self, number: int) -> tuple[int, Block]:
        """The file, and the place in it, of a block numbered through the whole data set."""
        file = int(self.first_blocks.searchsorted(number, "right")) - 1
        offsets, lengths, rows = self.places
        first = int(self.first_blocks[file])
        return file, Block(number - first, int(offsets[number]), int(lengths[number]), int(rows[number]))

    def locate(self, row: int) -> tuple[str, int]:
        """The file that holds a row, and the row's number in it."""
        file = int(np.searchsorted(self.file_starts, row, "right")) - 1
        return self.names[file], row - int(self.file_starts[file])

    def path(self, file: int) -> str:
        """Where a file lies."""
        return os.path.join(self.root, self.names[file])

    def location(self, file: int) -> Location:
        """A file as formats take it: a path, or the object of a store that was indexed."""
        if self.store is None:
            return self.path(file)
        return StoredFile(self.store, self.path(file), size=self.stamps[file].size, version=self.versions[file])

    def open(self, file: int, wanted: pa.Schema) -> BlockReader:
        """A file, opened to read its blocks under a schema."""
        opened, location = FORMATS[self.formats[file]].open_blocks, self.location(file)
        if isinstance(location, str):
            reader = opened(location, self.schemas[file], wanted)
            if self.is_mapped(file):
                self._maps.keep(location, self.stamps[file].size)
            return reader
        return StoredBlocks(location, lambda: opened(location, self.schemas[file], wanted), self.forget)

    def is_mapped(self, file: int) -> bool:
        """Whether the blocks of a file are views of it."""
        return self.store is None and FORMATS[self.formats[file]].MAPPED

    def constants(self, file: int) -> Mapping[str, pa.Scalar]:
        """The columns of a file that have one value, which is not in it: none."""
        return {}

    @property
    def column_names(self) -> list[str]:
        """The columns that any file has."""
        return list(dict.fromkeys(name for schema in self.kinds for name in schema.names))

    def check(self, file: int) -> None:
        """Raise unless a file is the one that was indexed. An object of a store is compared as it is read."""
        if self.store is None:
            check_unchanged(self.path(file), self.stamps[file])

    def forget(self) -> None:
        """Remove this index, and others of its source, from the disk.

        A listing tells an object by size and second; where that was not enough, the same index would be found again.
        """
        if self._source is not None:
            path = Path(self._source)
            for one in path.parent.glob(f"{path.name.partition('-')[0]}-*.index"):
                remove(one)

    def order(self) -> Sequential:
        """File order, row order."""
        return Sequential(self.file_starts, self.block_starts)

    @cached_property
    def facts(self) -> list[FileFacts]:
        """What the fingerprint is made of."""
        rows: list[int] = np.diff(self.file_starts).tolist()
        return list(zip(self.names, (stamp.size for stamp in self.stamps), rows, strict=True))

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What a state remembers of this data."""
        return data_fingerprint(self.facts, "+".join(sorted(set(self.formats) - {EMPTY})))

    def matches(self, listing: Listing) -> bool:
        """Whether these are exactly the files listed, unchanged."""
        return self.names == list(listing.names) and self.stamps == list(listing.stamps)

    def scans(self) -> Mapping[tuple[str, FileStamp], Scan]:
        """What is known of each version of a file, so that it need not be scanned again."""
        blocks = np.stack(self.places, axis=1).tolist()
        bounds = self.first_blocks.tolist()
        return {
            (name, self.stamps[file]): Scan(
                self.formats[file],
                self.schemas[file],
                [tuple(row) for row in blocks[bounds[file] : bounds[file + 1]]],
                self.seeks[file],
                self.versions[file],
            )
            for file, name in enumerate(self.names)
        }

    @cached_property
    def _schema_numbers(self) -> list[int]:
        return list(self._files["schema"].to_pylist())

    @cached_property
    def schemas(self) -> list[pa.Schema | None]:
        """The files' own schemas; none where a file has no columns at all."""
        return [None if number < 0 else self.kinds[number] for number in self._schema_numbers]

    @cached_property
    def kinds(self) -> list[pa.Schema]:
        """The schemas that files have."""
        stored = (self._files.schema.metadata or {}).get(b"schemas", b"").split()
        return [pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text.decode()))) for text in stored]

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        """The schema under which these columns, or all, of every file are read."""
        kinds: dict[tuple[int, str], Kind] = {}
        for file, schema in enumerate(self.schemas):
            key = self._schema_numbers[file], self.formats[file]
            if schema is not None and key not in kinds:
                kinds[key] = Kind(self.names[file], FORMATS[self.formats[file]].TYPES, schema)
        if not kinds:
            size = self.stamps[0].size
            raise NoDataError(
                f"{self.path(0)} is empty ({size:,} bytes), and so is every other file of the source: there are no "
                "columns to read. Write the files again."
            )
        return common_schema(list(kinds.values()), columns)


def index_bytes(listing: Listing, scans: Sequence[Scan]) -> pa.Buffer:
    """An index of these files, as bytes."""
    kinds: dict[bytes, int] = {}
    stored: list[str] = []
    numbers = []
    for scan in scans:
        if scan.schema is None:
            numbers.append(-1)
            continue
        bare = scan.schema.remove_metadata().serialize().to_pybytes()
        if bare not in kinds:
            kinds[bare] = len(kinds)
            stored.append(scan.schema.serialize().to_pybytes().hex())
        numbers.append(kinds[bare])
    files = pa.table(
        {
            "name": pa.array(listing.names, pa.string()),
            "size": pa.array([stamp.size for stamp in listing.stamps], pa.int64()),
            "mtime_ns": pa.array([stamp.mtime_ns for stamp in listing.stamps], pa.int64()),
            "format": pa.array([scan.format for scan in scans], pa.string()),
            "seeks": pa.array([scan.seeks for scan in scans], pa.bool_()),
            "schema": pa.array(numbers, pa.int64()),
            "blocks": pa.array([len(scan.blocks) for scan in scans], pa.int64()),
        }
    ).replace_schema_metadata({"schemas": " ".join(stored)})
    if any(scan.version for scan in scans):
        files = files.append_column("version", pa.array([scan.version for scan in scans], pa.string()))
    places = np.array([block for scan in scans for block in scan.blocks], np.int64).reshape(-1, 3)
    columns = {
        name: np.ascontiguousarray(places[:, number]) for number, name in enumerate(("offset", "length", "rows"))
    }
    return pa.py_buffer(framed(_stream(files) + _stream(pa.table(columns)), MAGIC))


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _from_bytes(root: str, content: bytes, store: Store | None) -> Index:
    return Index(root, pa.py_buffer(content), None, store)


def _from_file(root: str, source: str, checksum: int, store: Store | None) -> Index:
    """Open the index that another process holds, not one that has since taken its place."""
    try:
        index = Index.load(root, source, store)
    except (OSError, ValueError) as error:
        raise DataChangedError(
            f"The index of {root} is gone from {source} ({error}). Open the data set again."
        ) from error
    if index._checksum != checksum:
        raise DataChangedError(f"The files below {root} changed and were indexed anew. Open the data set again.")
    return index


def _numbers(table: pa.Table, column: str) -> I64:
    return numbers_of(table[column].combine_chunks())


def _starts(counts: I64) -> I64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
