"""ORC: a block is a stripe, decoded alone."""

from threading import Lock

import pyarrow as pa
from pyarrow import orc

from midepoch.errors import DataFormatError
from midepoch.formats.base import MAX_RECORD_BYTES, Block, Format, Scan, check_inflation, read_as
from midepoch.storage.objects import Location, open_file


def scan(path: Location, limit: int = MAX_RECORD_BYTES) -> Scan:
    """The schema and the stripes of a file.

    pyarrow does not report the rows of a stripe, so the narrowest column is decoded to count them. A single stripe has
    all the rows of the footer. Each value counts as eight bytes in memory: numbers that repeat may be stored once.
    """
    file = _open(path)
    total = int(file.nrows)
    try:
        rows = [total] if file.nstripes == 1 else [_rows(file, number) for number in range(file.nstripes)]
    except (pa.ArrowException, OSError) as error:
        raise DataFormatError(f"{path} is a damaged ORC file: {error}. Copy or write it again.") from error
    # pyarrow does not report where a stripe lies. Blocks are read by number; the lengths only say how large a row is.
    blocks = [(0, file.content_length * count // max(1, total), count) for count in rows]
    for number, (_, length, count) in enumerate(blocks):
        check_inflation(f"{path}, stripe {number}", length, 8 * len(file.schema) * count, limit)
    return Scan("orc", file.schema, blocks)


class OrcBlocks:
    """An open ORC file. Each read decodes one stripe, and of it only the columns asked for."""

    def __init__(self, path: Location, own: pa.Schema, wanted: pa.Schema) -> None:
        self._path, self._wanted, self._file = path, wanted, _open(path)
        self._lock = Lock()

    def read(self, block: Block) -> pa.RecordBatch:
        names = self._wanted.names or [_narrowest(self._file.schema)]
        try:
            with self._lock:  # a thread may read ahead while another reads
                batch = self._file.read_stripe(block.number, columns=names)
            return read_as(batch, self._wanted)
        except (pa.ArrowException, OSError) as error:
            raise DataFormatError(f"{self._path}: stripe {block.number} cannot be decoded: {error}") from error


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
    block="stripe",
    has_magic=lambda head: head.startswith(b"ORC"),
    scan=scan,
    open_blocks=OrcBlocks,
)
