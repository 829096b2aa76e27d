"""Parquet: a block is a row group, found from the footer and decoded alone."""

import json
from collections.abc import Sequence
from itertools import accumulate
from threading import Lock
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from midepoch.errors import DataFormatError
from midepoch.formats.base import Block, Range, Scan, as_read, read_as
from midepoch.storage.location import Location, open_file
from midepoch.storage.ranges import Span

MAPPED = False
TYPES: Literal["fixed"] = "fixed"
UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
TRUSTED = (
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_date32,
    pa.types.is_string,
    pa.types.is_large_string,
)


def scan(path: Location) -> Scan:
    """The schema and the row groups of a file, from its footer."""
    with _open(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        blocks = [(_offset(group), group.total_byte_size, group.num_rows) for group in groups]
        return Scan("parquet", as_read(file.schema_arrow), blocks)


def ranges(path: Location, columns: Sequence[pa.Field]) -> list[dict[str, Range]]:
    """For each row group, what the footer says of those of the columns of which it says something reliable."""
    with _open(path) as file:
        metadata = file.metadata
        leaves = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
        places = [(field, leaves.index(field.name)) for field in columns if leaves.count(field.name) == 1]
        flat = [(field, place) for field, place in places if field.name in file.schema_arrow.names]
        units = {place: _unit(metadata.schema.column(place)) for _, place in flat}
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return [
            {field.name: _range(group.column(place), group.num_rows, field.type, units[place]) for field, place in flat}
            for group in groups
        ]


def open_blocks(path: Location, own: pa.Schema, wanted: pa.Schema) -> "ParquetBlocks":
    """The file, with its footer read."""
    return ParquetBlocks(path, wanted)


class ParquetBlocks:
    """An open Parquet file. Each read decodes one row group, and of it only the columns asked for."""

    def __init__(self, path: Location, wanted: pa.Schema) -> None:
        self._path, self._wanted = path, wanted
        self._file = _open(path)
        self._leaves = _leaves(self._file.metadata, wanted.names)
        self._one_at_a_time = Lock()  # a file is read ahead in a thread, and Arrow's reader is not made for two

    def read(self, block: Block) -> pa.Table:
        """The row group with the block's number."""
        with self._one_at_a_time:
            return self._read(self._file, block)

    def spans(self, block: Block) -> list[Span]:
        """Where the columns of the row group lie that are asked for."""
        if block.number >= self._file.metadata.num_row_groups:
            raise DataFormatError(
                f"{self._path} has {self._file.metadata.num_row_groups} row groups, and was indexed with one numbered "
                f"{block.number} from zero: it is another file now. Restore it, or open the data set anew."
            )
        group = self._file.metadata.row_group(block.number)
        return [_span(group.column(leaf)) for leaf in self._leaves]

    def decode(self, block: Block, file: pa.NativeFile) -> pa.Table:
        """The row group, by a reader of its own, which knows the footer: any number of threads may do so."""
        return self._read(pq.ParquetFile(file, metadata=self._file.metadata, pre_buffer=False), block)

    def _read(self, file: pq.ParquetFile, block: Block) -> pa.Table:
        try:
            return read_as(
                file.read_row_group(block.number, columns=self._wanted.names, use_threads=False), self._wanted
            )
        except (pa.ArrowException, OSError) as error:
            raise DataFormatError(f"{self._path}: row group {block.number} cannot be decoded: {error}") from error

    def is_view(self, data: pa.Table | pa.RecordBatch) -> bool:
        """It never is."""
        return False


def _open(path: Location) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(open_file(path, mapped=True))
        _ = file.schema_arrow
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataFormatError(
            f"{path} is no whole Parquet file: {str(error).rstrip('.')}. It may be truncated; copy or write it again."
        ) from error
    return file


def _offset(group: pq.RowGroupMetaData) -> int:
    """Where the row group's first byte lies; a file of no columns has none."""
    if group.num_columns == 0:
        return 0
    return _span(group.column(0))[0]


def _leaves(metadata: pq.FileMetaData, names: Sequence[str]) -> list[int]:
    """The numbers of the columns of values that Arrow reads for these columns of rows."""
    paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    wanted = set(names)
    heads = ({*accumulate(path.split("."), "{}.{}".format)} for path in paths)
    return [number for number, some in enumerate(heads) if not wanted.isdisjoint(some)]


def _span(chunk: pq.ColumnChunkMetaData) -> Span:
    """Where a column of a row group lies: its dictionary comes first, if it has one."""
    begin = int(chunk.dictionary_page_offset or chunk.data_page_offset)
    return begin, begin + int(chunk.total_compressed_size)


def _unit(column: pq.ColumnSchema) -> str | None:
    """The unit in which a column of timestamps is stored, which need not be that of its Arrow type."""
    told = json.loads(column.logical_type.to_json())
    return UNITS.get(told.get("timeUnit", "")) if told.get("Type") == "Timestamp" else None


def _range(chunk: pq.ColumnChunkMetaData, rows: int, kind: pa.DataType, unit: str | None) -> Range:
    """The statistics of one column of a row group, as far as they are there and of a kind that can be trusted."""
    found = chunk.statistics
    if found is None or _is_nested(kind):
        return Range(None, None, None, rows)
    nulls = int(found.null_count) if found.has_null_count else None
    try:
        low, high = (_bound(found, name, kind, unit) for name in ("min", "max")) if found.has_min_max else (None, None)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        low = high = None
    if low is None or high is None or low.as_py() != low.as_py() or high.as_py() != high.as_py():  # NaN
        return Range(None, None, nulls, rows)
    return Range(low, high, nulls, rows)


def _bound(found: pq.Statistics, name: str, kind: pa.DataType, unit: str | None) -> pa.Scalar | None:
    if pa.types.is_timestamp(kind):
        raw = getattr(found, f"{name}_raw")
        return pa.scalar(raw, pa.timestamp(unit, kind.tz)).cast(kind) if unit is not None and type(raw) is int else None
    return pa.scalar(getattr(found, name), kind) if any(is_kind(kind) for is_kind in TRUSTED) else None


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))
