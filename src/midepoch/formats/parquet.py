"""Parquet: a block is a row group, found from the footer and decoded alone."""

from threading import Lock
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from midepoch.errors import DataFormatError
from midepoch.formats.block import Block, Scan, as_read, read_as
from midepoch.storage import open_file

MAPPED = False
TYPES: Literal["fixed"] = "fixed"


def scan(path: str) -> Scan:
    """The schema and the row groups of a file, from its footer."""
    with _open(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        blocks = [(_offset(group), group.total_byte_size, group.num_rows) for group in groups]
        return Scan("parquet", as_read(file.schema_arrow), blocks)


def open_blocks(path: str, own: pa.Schema, wanted: pa.Schema) -> "ParquetBlocks":
    """The file, with its footer read."""
    return ParquetBlocks(path, wanted)


class ParquetBlocks:
    """An open Parquet file. Each read decodes one row group, and of it only the columns asked for."""

    def __init__(self, path: str, wanted: pa.Schema) -> None:
        self._path, self._wanted = path, wanted
        self._file = _open(path)
        self._one_at_a_time = Lock()  # a file is read ahead in a thread, and Arrow's reader is not made for two

    def read(self, block: Block) -> pa.Table:
        """The row group with the block's number."""
        try:
            with self._one_at_a_time:
                table = self._file.read_row_group(block.number, columns=self._wanted.names, use_threads=False)
            return read_as(table, self._wanted)
        except (pa.ArrowException, OSError) as error:
            raise DataFormatError(f"{self._path}: row group {block.number} cannot be decoded: {error}") from error

    def is_view(self, data: pa.Table | pa.RecordBatch) -> bool:
        """It never is."""
        return False


def _open(path: str) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(open_file(path, mapped=True))
        _ = file.schema_arrow
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataFormatError(
            f"{path} is no whole Parquet file: {error}. It may be truncated; copy or write it again."
        ) from error
    return file


def _offset(group: pq.RowGroupMetaData) -> int:
    """Where the row group's first byte lies; a file of no columns has none."""
    if group.num_columns == 0:
        return 0
    first = group.column(0)
    return int(first.dictionary_page_offset or first.data_page_offset)
