"""ORC: a block is a stripe, decoded alone."""

from threading import Lock

import pyarrow as pa
from pyarrow import orc

from midepoch.errors import DataFormatError
from midepoch.formats.base import Block, Format, Scan, as_read, read_as
from midepoch.formats.inflation import MAX_RECORD_BYTES, InflationError, check_inflation
from midepoch.storage.objects import Location, open_file


def scan(path: Location, limit: int = MAX_RECORD_BYTES) -> Scan:
    """The schema and the stripes of a file.

    pyarrow does not report the rows of a stripe, so the narrowest column is decoded to count them. A single stripe has
    all the rows of the footer. Each value counts as eight bytes in memory: numbers that repeat are stored once.
    """
    file = _open(path)
    total = int(file.nrows)
    try:
        rows = [total] if file.nstripes == 1 else [_rows(file, number) for number in range(file.nstripes)]
    except (pa.ArrowException, OSError) as error:
        raise DataFormatError(f"{path} is a damaged ORC file: {error}. Copy or write it again.") from error
    width = 8 * len(file.schema)
    for number, count in enumerate(rows):
        try:
            check_inflation(file.content_length * count // max(1, total), width * count, limit)
        except InflationError as error:
            raise DataFormatError(f"{path}, stripe {number}: {error}.") from None
    # Nor does it report where a stripe lies. Blocks are read by number; the lengths only say how large a row is.
    blocks = [(0, file.content_length * count // max(1, total), count) for count in rows]
    return Scan("orc", as_read(file.schema), blocks)


def open_blocks(path: Location, own: pa.Schema, wanted: pa.Schema, limit: int = MAX_RECORD_BYTES) -> "OrcBlocks":
    """Open a file and read its footer."""
    return OrcBlocks(path, wanted, limit)


class OrcBlocks:
    """An open ORC file. Each read decodes one stripe, and of it only the columns asked for."""

    def __init__(self, path: Location, wanted: pa.Schema, limit: int = MAX_RECORD_BYTES) -> None:
        self._path, self._wanted, self._limit = path, wanted, limit
        self._file = _open(path)
        self._lock = Lock()

    def read(self, block: Block) -> pa.RecordBatch:
        names = self._wanted.names or [_narrowest(self._file.schema)]
        try:
            with self._lock:  # a thread may read ahead while another reads
                batch = self._decoded(block, names)
            return read_as(batch, self._wanted)
        except InflationError as error:
            raise DataFormatError(f"{self._path}, stripe {block.number}: {error}.") from None
        except (pa.ArrowException, OSError) as error:
            raise DataFormatError(f"{self._path}: stripe {block.number} cannot be decoded: {error}") from error

    def _decoded(self, block: Block, names: list[str]) -> pa.RecordBatch:
        """Columns of a stripe, one after the other, so that it is given up if they become too large.

        Only decoding says how large texts are, which may be stored once and repeated: a column may have up to 2 GiB.
        """
        if block.rows * block.length <= self._limit:
            return self._file.read_stripe(block.number, columns=names)
        columns, inflated = list[pa.Array](), 0
        for name in names:
            column = self._file.read_stripe(block.number, columns=[name]).column(0)
            inflated += column.nbytes
            check_inflation(block.length, inflated, self._limit)
            columns.append(column)
        return pa.record_batch(columns, names)

    def is_view(self, data: pa.Table | pa.RecordBatch) -> bool:
        return False


def _open(path: Location) -> orc.ORCFile:
    try:
        file = orc.ORCFile(open_file(path))
        _ = file.schema
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataFormatError(
            f"{path} is damaged or no ORC file: {error}. It may be truncated: copy or write it again."
        ) from error
    return file


def _rows(file: orc.ORCFile, stripe: int) -> int:
    return int(file.read_stripe(stripe, columns=[_narrowest(file.schema)]).num_rows)


def _narrowest(schema: pa.Schema) -> str:
    """The column that costs least to decode."""

    def width(field: pa.Field) -> int:
        return field.type.bit_width if pa.types.is_primitive(field.type) else 1 << 10

    return str(min(schema, key=width).name)


FORMAT = Format(
    name="orc",
    suffixes=(".orc",),
    types="fixed",
    has_magic=lambda head: head.startswith(b"ORC"),
    scan=scan,
    open_blocks=open_blocks,
)
