"""Parquet: a block is a row group, found from the footer and decoded alone."""

import json
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from midepoch._common.checks import count
from midepoch.errors import DataFormatError
from midepoch.formats.base import Block, Format, Range, Scan, as_read, read_as
from midepoch.formats.dictionary_pages import (
    WIDTHS,
    Decoding,
    coded_bytes,
    decoding_of,
    leaves_of,
    span_of,
    stored_bytes,
)
from midepoch.formats.inflation import MAX_RECORD_BYTES, NO_LIMIT, InflationError, check_inflation
from midepoch.storage.location import Location, open_file
from midepoch.storage.ranges import Span

UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
JOINED_BYTES = 128 << 20
"""A row group that is decoded in steps becomes one record batch if it has fewer bytes: others would be in memory twice
for a moment."""
TRUSTED = (
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_date32,
    pa.types.is_string,
    pa.types.is_large_string,
)


def scan(path: Location, limit: int = MAX_RECORD_BYTES) -> Scan:
    """The schema and the row groups of a file, from its footer."""
    with _open(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        blocks = [(_offset(group), group.total_byte_size, group.num_rows) for group in groups]
        for number, group in enumerate(groups):
            try:
                _check_size(group, limit)
            except InflationError as error:
                raise DataFormatError(f"{path}, row group {number}: {error}.") from None
        return Scan("parquet", as_read(file.schema_arrow), blocks)


def ranges(path: Location, columns: Sequence[pa.Field]) -> list[dict[str, Range]]:
    """For each row group, the statistics of the columns that are not nested, from the footer."""
    with _open(path) as file:
        metadata = file.metadata
        leaves = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
        known = [field for field in columns if leaves.count(field.name) == 1]
        flat = [(field, leaves.index(field.name)) for field in known if field.name in file.schema_arrow.names]
        units = {leaf: _unit(metadata.schema.column(leaf)) for _, leaf in flat}
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return [
            {field.name: _range(group.column(leaf), group.num_rows, field.type, units[leaf]) for field, leaf in flat}
            for group in groups
        ]


def open_blocks(path: Location, own: pa.Schema, wanted: pa.Schema, limit: int = MAX_RECORD_BYTES) -> "ParquetBlocks":
    """Open a file and read its footer."""
    return ParquetBlocks(path, wanted, limit)


class ParquetBlocks:
    """An open Parquet file. Each read decodes one row group, and of it only the columns asked for."""

    def __init__(self, path: Location, wanted: pa.Schema, limit: int = MAX_RECORD_BYTES) -> None:
        self._path, self._wanted, self._limit = path, wanted, limit
        self._source, self._file = _opened(path)
        self._leaves = leaves_of(self._file.metadata, _leaves(self._file.metadata, wanted.names))
        self._idle = deque([self._file])
        """Readers of the same bytes that no thread uses now: Arrow's reader allows only one thread."""
        self._decodings: dict[int, Decoding] = {}
        """How each row group is decoded, as far as that is known."""

    def read(self, block: Block) -> pa.Table:
        """The row group. Any number of threads may read at once, each with a reader of its own."""
        try:
            file = self._idle.pop()
        except IndexError:
            source = self._source if isinstance(self._path, str) else open_file(self._path)
            file = _reader(source, self._path, self._file.metadata)
        try:
            return self._read(file, self._source, block)
        finally:
            self._idle.append(file)

    def spans(self, block: Block) -> list[Span]:
        """Where the wanted columns of the row group lie."""
        groups = self._file.metadata.num_row_groups
        if block.number >= groups:
            raise DataFormatError(
                f"{self._path} has {count('row group', groups)}, and the index knows row "
                f"group {block.number}, counted from 0: the file was changed. Restore it, or open the dataset again."
            )
        group = self._file.metadata.row_group(block.number)
        return [span_of(group.column(leaf.number)) for leaf in self._leaves]

    def decode(self, block: Block, file: pa.NativeFile) -> pa.Table:
        """The row group, by its own reader that knows the footer: any number of threads may decode at once."""
        metadata = self._file.metadata
        reader = pq.ParquetFile(file, metadata=metadata, pre_buffer=False, page_checksum_verification=True)
        return self._read(reader, file, block)

    def _read(self, file: pq.ParquetFile, source: pa.NativeFile, block: Block) -> pa.Table:
        try:
            rows, coded = self._decoding(source, block.number)
            if coded:
                file = self._with_codes(source, coded)
            if rows is None:
                data = file.read_row_group(block.number, columns=self._wanted.names, use_threads=False)
            else:
                data = self._read_slowly(file, block.number, rows)
            if coded:
                check_inflation(self._stored(block.number), coded_bytes(data), self._limit)
            return read_as(data, self._wanted)
        except InflationError as error:
            raise DataFormatError(f"{self._path}, row group {block.number}: {error}.") from None
        except (pa.ArrowException, OSError) as error:
            raise DataFormatError(f"{self._path}: row group {block.number} cannot be decoded: {error}") from error

    def _decoding(self, source: pa.NativeFile, number: int) -> Decoding:
        """How a row group is decoded. Its pages are looked at once, unless the file is trusted."""
        known = self._decodings.get(number)
        if known is None:
            metadata = self._file.metadata
            if number >= metadata.num_row_groups or self._limit == NO_LIMIT:
                return Decoding()
            known = self._decodings[number] = decoding_of(source, metadata, number, self._leaves, self._limit)
        return known

    def _with_codes(self, source: pa.NativeFile, coded: tuple[str, ...]) -> pq.ParquetFile:
        """A reader that decodes some texts as dictionaries, which hold each text once."""
        return pq.ParquetFile(
            source,
            metadata=self._file.metadata,
            read_dictionary=list(coded),
            pre_buffer=False,
            page_checksum_verification=True,
        )

    def _stored(self, number: int) -> int:
        return stored_bytes(self._file.metadata.row_group(number), self._leaves)

    def _read_slowly(self, file: pq.ParquetFile, number: int, step: int) -> pa.Table:
        """A row group, some rows at a time, so that it is given up before it fills the memory."""
        batches, inflated, stored = list[pa.RecordBatch](), 0, self._stored(number)
        names = self._wanted.names
        for batch in file.iter_batches(batch_size=step, row_groups=[number], columns=names, use_threads=False):
            batches.append(batch)
            inflated += batch.nbytes
            check_inflation(stored, inflated, self._limit)
        data = pa.Table.from_batches(batches)
        return data.combine_chunks() if inflated <= JOINED_BYTES else data

    def is_view(self, data: pa.Table | pa.RecordBatch) -> bool:
        return False


def _open(path: Location) -> pq.ParquetFile:
    return _opened(path)[1]


def _opened(path: Location) -> tuple[pa.NativeFile, pq.ParquetFile]:
    """The open file and its reader, which has read the footer."""
    try:
        source = open_file(path)
        file = _reader(source, path)
        _ = file.schema_arrow
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataFormatError(
            f"{path} is damaged or no Parquet file: {str(error).rstrip('.')}. It may be truncated: copy or write it "
            "again."
        ) from error
    return source, file


def _reader(source: pa.NativeFile, path: Location, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """A reader of an open file. Of a local one, nothing is gained by requesting bytes before they are decoded."""
    is_local = isinstance(path, str)
    return pq.ParquetFile(source, metadata=metadata, pre_buffer=not is_local, page_checksum_verification=True)


def _offset(group: pq.RowGroupMetaData) -> int:
    """The offset of the row group's first byte; 0 in a file without columns."""
    if group.num_columns == 0:
        return 0
    return span_of(group.column(0))[0]


def _check_size(group: pq.RowGroupMetaData, limit: int) -> None:
    """Raise if a row group would take too much memory. Repeated numbers may be stored once, so they are counted."""
    if max(group.total_byte_size, 8 * group.num_rows * group.num_columns) <= limit:
        return
    chunks = [group.column(number) for number in range(group.num_columns)]
    numbers = sum(max(one.total_uncompressed_size, WIDTHS.get(one.physical_type, 0) * one.num_values) for one in chunks)
    check_inflation(sum(one.total_compressed_size for one in chunks), numbers, limit)


def _leaves(metadata: pq.FileMetaData, names: Sequence[str]) -> list[int]:
    """The numbers of the leaf columns that Arrow reads for these columns of the schema."""
    paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    wanted = set(names)
    heads = ({*accumulate(path.split("."), "{}.{}".format)} for path in paths)
    return [number for number, above in enumerate(heads) if not wanted.isdisjoint(above)]


def _unit(column: pq.ColumnSchema) -> str | None:
    """The unit in which a column of timestamps is stored, which can differ from that of its Arrow type."""
    logical = json.loads(column.logical_type.to_json())
    return UNITS.get(logical.get("timeUnit", "")) if logical.get("Type") == "Timestamp" else None


def _range(chunk: pq.ColumnChunkMetaData, rows: int, kind: pa.DataType, unit: str | None) -> Range:
    """The statistics of one column of a row group, as far as they exist and their type can be trusted."""
    stored = chunk.statistics
    if stored is None or pa.types.is_nested(kind):
        return Range(None, None, None, rows)
    nulls = int(stored.null_count) if stored.has_null_count else None
    try:
        bounds = [_bound(stored, name, kind, unit) if stored.has_min_max else None for name in ("min", "max")]
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        bounds = [None, None]
    if any(bound is None or bound.as_py() != bound.as_py() for bound in bounds):  # NaN differs from itself
        return Range(None, None, nulls, rows)
    return Range(bounds[0], bounds[1], nulls, rows)


def _bound(stored: pq.Statistics, name: str, kind: pa.DataType, unit: str | None) -> pa.Scalar | None:
    if pa.types.is_timestamp(kind):
        raw = getattr(stored, f"{name}_raw")
        return pa.scalar(raw, pa.timestamp(unit, kind.tz)).cast(kind) if unit is not None and type(raw) is int else None
    return pa.scalar(getattr(stored, name), kind) if any(is_kind(kind) for is_kind in TRUSTED) else None


FORMAT = Format(
    name="parquet",
    suffixes=(".parquet", ".pq"),
    types="fixed",
    has_magic=lambda head: head.startswith(b"PAR1"),
    scan=scan,
    open_blocks=open_blocks,
    has_spans=True,
    ranges=ranges,
)
