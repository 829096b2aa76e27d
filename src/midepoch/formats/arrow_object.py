"""The record batches of an Arrow object in a store: fetched whole, or only the bytes of some of their rows."""

import struct
from collections.abc import Callable, Sequence
from threading import Lock

import pyarrow as pa

from midepoch.errors import DataFormatError
from midepoch.formats.arrow_ranges import (
    Fetching,
    Layout,
    fetch_all,
    header_length,
    parse_layout,
    read_rows,
    shape_of,
    together,
)
from midepoch.formats.base import Block
from midepoch.formats.inflation import InflationError, check_message
from midepoch.storage.objects import LEAST_BYTES, Span, StoredFile

HEADER_BYTES = 4096
"""The length of most message headers is below this."""
KEPT_HEADER_BYTES = 1 << 20
"""The headers whose content is kept for each open object have at most this many bytes."""
SMALL_BATCH = 4 * LEAST_BYTES
"""A record batch of this many bytes is always fetched whole: ranges of it would take about as long."""


class ArrowObject:
    """The record batches of an object, without dictionaries. Any number of threads may read."""

    def __init__(self, file: StoredFile, schema: pa.Schema, names: Sequence[str], limit: int) -> None:
        self._file, self._schema, self._limit = file, schema, limit
        shapes = [shape_of(field.type) for field in schema]
        self._shapes = None if None in shapes else [shape for shape in shapes if shape is not None]
        self._wanted = {number: field for number, field in enumerate(schema) if field.name in names}
        self._layouts: dict[int, tuple[Layout | None, int]] = {}
        """Where the columns of record batches lie, by their offsets, with the lengths of their headers."""
        self._header_bytes = 0
        self._lock = Lock()

    def read_all(self, blocks: Sequence[Block]) -> list[pa.RecordBatch]:
        """The rows of each of these blocks. The bytes of all of them are fetched together, in two or three rounds."""
        by_batch: dict[int, list[Block]] = {}
        for block in blocks:
            by_batch.setdefault(block.offset, []).append(block)
        read = fetch_all(together([self._read(same) for same in by_batch.values()]), self._fetch)
        batches = {offset: iter(batches) for offset, batches in zip(by_batch, read, strict=True)}
        return [next(batches[block.offset]) for block in blocks]

    def _fetch(self, spans: Sequence[Span]) -> Callable[[int, int], pa.Buffer]:
        fetched = self._file.fetch(spans, exact=True)
        return lambda nbytes, offset: _without_rest(fetched.buffer_at(nbytes, offset))

    def _read(self, blocks: Sequence[Block]) -> Fetching[list[pa.RecordBatch]]:
        """Blocks that lie in one record batch. It is fetched whole where ranges of it would not be faster."""
        batch = blocks[0]
        try:
            layout = yield from self._layout(batch)
            if layout is not None and layout.cost([(block.first or 0, block.rows) for block in blocks]) < batch.length:
                return (yield from together([read_rows(layout, block.first or 0, block.rows) for block in blocks]))
            (data,) = yield [(batch.offset, batch.offset + batch.length)]
            check_message(lambda nbytes, offset: data.slice(offset, nbytes).to_pybytes(), data.size, self._limit)
            whole = pa.ipc.read_record_batch(data, self._schema)
            return [whole if block.first is None else self._copied(whole, block.first, block.rows) for block in blocks]
        except InflationError as error:
            raise DataFormatError(f"{self._file} at byte {batch.offset:,}: {error}.") from None
        except (pa.ArrowException, struct.error) as error:
            raise DataFormatError(f"{self._file} is broken at byte {batch.offset:,}: {error}") from error

    def _layout(self, block: Block) -> Fetching[Layout | None]:
        """The layout of a record batch; None if it is to be fetched whole."""
        if block.first is None or self._shapes is None or block.length <= SMALL_BATCH:
            return None
        kept = self._layouts.get(block.offset)
        if kept is not None:
            return kept[0]
        (head,) = yield [(block.offset, block.offset + min(HEADER_BYTES, block.length))]
        length = min(header_length(head.to_pybytes()), block.length)
        if length > head.size:
            (head,) = yield [(block.offset, block.offset + length)]
        layout = parse_layout(head[:length].to_pybytes(), block.offset, block.length, self._shapes, self._wanted)
        self._keep(block.offset, layout, length)
        return layout

    def _keep(self, offset: int, layout: Layout | None, length: int) -> None:
        with self._lock:
            self._header_bytes += length - self._layouts.pop(offset, (None, 0))[1]
            self._layouts[offset] = layout, length
            while self._header_bytes > KEPT_HEADER_BYTES and len(self._layouts) > 1:
                self._header_bytes -= self._layouts.pop(next(iter(self._layouts)))[1]

    def _copied(self, whole: pa.RecordBatch, first: int, rows: int) -> pa.RecordBatch:
        """Some rows without the memory of the others."""
        return pa.ipc.read_record_batch(whole.slice(first, rows).serialize(), self._schema)


def _without_rest(data: pa.Buffer) -> pa.Buffer:
    """A slice of what one request fetched, copied if it would hold the memory of much else.

    Runs of rows that share a request are used and dropped at different times.
    """
    fetched = data.parent
    return data if fetched is None or fetched.size <= 2 * data.size else pa.py_buffer(data.to_pybytes())
