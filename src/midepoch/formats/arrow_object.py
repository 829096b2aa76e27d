"""The record batches of an Arrow object in a store: fetched whole, or only the bytes of some of their rows."""

import struct
from collections.abc import Sequence
from threading import Lock

import pyarrow as pa

from midepoch.errors import DataFormatError
from midepoch.formats.arrow_ranges import (
    Fetching,
    Layout,
    can_read_rows,
    fetch_all,
    header_length,
    parse_layout,
    read_rows,
    together,
)
from midepoch.formats.base import Block
from midepoch.storage.objects import StoredFile
from midepoch.storage.ranges import LEAST_BYTES

HEADER_BYTES = 4096
"""The length of most message headers is below this."""
KEPT_HEADER_BYTES = 1 << 20
"""How many bytes of headers are kept for each open object."""
SMALL_BATCH = 4 * LEAST_BYTES
"""A record batch of this many bytes is always fetched whole: ranges of it would take about as long."""


class ArrowObject:
    """The record batches of an object, without dictionaries. Any number of threads may read."""

    def __init__(self, file: StoredFile, schema: pa.Schema, names: Sequence[str]) -> None:
        self._file, self._schema, self._names = file, schema, names
        self._by_rows = all(can_read_rows(field.type) for field in schema)
        self._headers: dict[int, bytes] = {}
        self._header_bytes = 0
        self._lock = Lock()

    def read_all(self, blocks: Sequence[Block]) -> list[pa.RecordBatch]:
        """The rows of each of these blocks. The bytes of all of them are fetched together, in two or three rounds."""
        by_batch: dict[int, list[Block]] = {}
        for block in blocks:
            by_batch.setdefault(block.offset, []).append(block)
        read = fetch_all(
            together([self._read(same) for same in by_batch.values()]),
            lambda spans: self._file.fetch(spans, exact=True).buffer_at,
        )
        batches = {offset: iter(batches) for offset, batches in zip(by_batch, read, strict=True)}
        return [next(batches[block.offset]) for block in blocks]

    def _read(self, blocks: Sequence[Block]) -> Fetching[list[pa.RecordBatch]]:
        """Blocks that lie in one record batch. It is fetched whole where ranges of it would not be faster."""
        batch = blocks[0]
        try:
            layout = yield from self._layout(batch)
            if layout is not None and sum(layout.cost(block.rows) for block in blocks) < batch.length:
                return (yield from together([read_rows(layout, block.first or 0, block.rows) for block in blocks]))
            (data,) = yield [(batch.offset, batch.offset + batch.length)]
            whole = pa.ipc.read_record_batch(data, self._schema)
            return [whole if block.first is None else self._copied(whole, block.first, block.rows) for block in blocks]
        except (pa.ArrowException, struct.error) as error:
            raise DataFormatError(f"{self._file} is broken at byte {batch.offset:,}: {error}") from error

    def _layout(self, block: Block) -> Fetching[Layout | None]:
        """The layout of a record batch; None if it is to be fetched whole."""
        if block.first is None or not self._by_rows or block.length <= SMALL_BATCH:
            return None
        header = self._headers.get(block.offset)
        if header is None:
            (head,) = yield [(block.offset, block.offset + min(HEADER_BYTES, block.length))]
            length = min(header_length(head.to_pybytes()), block.length)
            if length > head.size:
                (head,) = yield [(block.offset, block.offset + length)]
            header = head[:length].to_pybytes()
            self._keep(block.offset, header)
        return parse_layout(header, block.offset, block.length, self._schema, self._names)

    def _keep(self, offset: int, header: bytes) -> None:
        with self._lock:
            self._header_bytes += len(header) - len(self._headers.pop(offset, b""))
            self._headers[offset] = header
            while self._header_bytes > KEPT_HEADER_BYTES and len(self._headers) > 1:
                self._header_bytes -= len(self._headers.pop(next(iter(self._headers))))

    def _copied(self, whole: pa.RecordBatch, first: int, rows: int) -> pa.RecordBatch:
        """Some rows without the memory of the others."""
        return pa.ipc.read_record_batch(whole.slice(first, rows).serialize(), self._schema)
