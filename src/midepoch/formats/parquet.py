"""Parquet: a block is a row group, found from the footer and decoded alone."""

import json
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from midepoch._common.checks import count
from midepoch.errors import DataFormatError
from midepoch.formats.base import (
    MAX_RECORD_BYTES,
    Block,
    Format,
    Range,
    Scan,
    SpannedReader,
    check_inflation,
    read_as,
)
from midepoch.storage.objects import Location, Span, open_file

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

WIDTHS = {"INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
"""The bytes of a number in memory, by its physical type, and of the offset of a text."""


def scan(path: Location, limit: int = MAX_RECORD_BYTES) -> Scan:
    """The schema and the row groups of a file, from its footer."""
    with _opened(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        for number, group in enumerate(groups):
            _check_size(f"{path}, row group {number}", group, limit)
        blocks = [(_offset(group), group.total_byte_size, group.num_rows) for group in groups]
        return Scan("parquet", file.schema_arrow, blocks)


def ranges(path: Location, columns: Sequence[pa.Field]) -> list[dict[str, Range]]:
    """For each row group, the statistics of the columns that are not nested, from the footer."""
    with _opened(path) as file:
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


class ParquetBlocks(SpannedReader):
    """A Parquet file whose footer is known. Each read decodes one row group, and of it only the columns asked for."""

    def __init__(self, path: Location, own: pa.Schema, wanted: pa.Schema) -> None:
        with _opened(path) as file:
            self.path, self._wanted, self._footer = path, wanted, file.metadata
        self._leaves = _leaves(self._footer, wanted.names)

    def spans(self, block: Block) -> list[Span]:
        """Where the wanted columns of the row group lie."""
        groups = self._footer.num_row_groups
        if block.number >= groups:
            raise DataFormatError(
                f"{self.path} has {count('row group', groups)}, and the index knows row "
                f"group {block.number}, counted from 0: the file was changed. Restore it, or open the dataset again."
            )
        group = self._footer.row_group(block.number)
        return [_span(group.column(leaf)) for leaf in self._leaves]

    def decode(self, block: Block, file: pa.NativeFile) -> pa.Table:
        """The row group, by a reader of its own: Arrow's reader allows only one thread."""
        try:
            reader = pq.ParquetFile(file, metadata=self._footer, pre_buffer=False, page_checksum_verification=True)
            data = reader.read_row_group(block.number, columns=self._wanted.names, use_threads=False)
            return read_as(data, self._wanted)
        except (pa.ArrowException, OSError) as error:
            raise DataFormatError(f"{self.path}: row group {block.number} cannot be decoded: {error}") from error


def _opened(path: Location) -> pq.ParquetFile:
    """A reader of the file, which has read the footer."""
    try:
        file = pq.ParquetFile(open_file(path))
        _ = file.schema_arrow
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataFormatError(
            f"{path} is damaged or no Parquet file: {str(error).rstrip('.')}. It may be truncated: copy or write it "
            "again."
        ) from error
    return file


def _offset(group: pq.RowGroupMetaData) -> int:
    """The offset of the row group's first byte; 0 in a file without columns."""
    if group.num_columns == 0:
        return 0
    return _span(group.column(0))[0]


def _span(chunk: pq.ColumnChunkMetaData) -> Span:
    """Where a column of a row group lies. Its dictionary comes first, if it has one."""
    begin, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
    if dictionary is not None and 0 < dictionary < begin:
        begin = dictionary
    return begin, begin + max(0, chunk.total_compressed_size)


def _check_size(where: str, group: pq.RowGroupMetaData, limit: int) -> None:
    """Raise if a row group becomes too large, as the footer says. Numbers that repeat may be stored once: all count."""
    if max(group.total_byte_size, 8 * group.num_rows * group.num_columns) <= limit:
        return
    chunks = [group.column(number) for number in range(group.num_columns)]
    inflated = (max(one.total_uncompressed_size, WIDTHS.get(one.physical_type, 0) * one.num_values) for one in chunks)
    check_inflation(where, sum(one.total_compressed_size for one in chunks), sum(inflated), limit)


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
    block="row group",
    has_magic=lambda head: head.startswith(b"PAR1"),
    scan=scan,
    open_blocks=ParquetBlocks,
    has_spans=True,
    ranges=ranges,
)
