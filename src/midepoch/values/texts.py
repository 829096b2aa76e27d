"""Texts of several blocks as one column: any rows of them are copied once, straight from the blocks.

Arrow gathers only from a single array, so that the blocks would have to be put together first. But its string views say
of each text where it lies, in one of several buffers. Views of 16 bytes are picked in place of the texts, and Arrow
makes plain strings of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from midepoch._common.types import I32, I64

SHORT = 12
"""Texts of so many bytes are part of their view."""
MOST_BYTES = (1 << 31) - 1
"""Views find texts in buffers of at most this many bytes, and a column of plain strings has at most as many."""
ROWS_OF_PART = 64
"""With fewer rows in a block it is faster to put the blocks together."""
VIEWS = {
    kind.id: (view, offset)
    for kind, view, offset in (
        (pa.string(), pa.string_view(), np.int32),
        (pa.large_string(), pa.string_view(), np.int64),
        (pa.binary(), pa.binary_view(), np.int32),
        (pa.large_binary(), pa.binary_view(), np.int64),
    )
}
"""For each type of texts its views, and the type of its offsets."""


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of several arrays, none of them copied."""

    kind: pa.DataType
    views: I32
    """For each text its length, four bytes that nobody reads, the number of its buffer, and where it begins there. A
    short one has its length and its bytes."""
    buffers: tuple[pa.Buffer, ...]

    def take(self, indices: I64) -> pa.Array | None:
        """The texts at ``indices``; None if they are too many for one array."""
        chosen = np.take(self.views, indices, axis=0)
        if chosen[:, 0].sum(dtype=np.int64) > MOST_BYTES:
            return None
        memory = [None, pa.py_buffer(chosen), *self.buffers]
        return pa.Array.from_buffers(VIEWS[self.kind.id][0], len(indices), memory, 0).cast(self.kind)


def texts_of(parts: Sequence[tuple[pa.Array, I64 | None]]) -> Texts | None:
    """The values of several arrays of texts in their order, or of each array those at some indices.

    None if they are no texts of one type, or one of them is null.
    """
    kind = parts[0][0].type
    if kind.id not in VIEWS or any(column.type != kind or column.null_count for column, _ in parts):
        return None
    counts = [len(column if indices is None else indices) for column, indices in parts]
    if sum(counts) < ROWS_OF_PART * len(parts):
        return None
    views, buffers = np.zeros((sum(counts), 4), np.int32), list[pa.Buffer]()
    begin = 0
    for (column, indices), count in zip(parts, counts, strict=True):
        if count:
            _, offsets, data = column.buffers()
            if data is None or data.size > MOST_BYTES:
                return None
            ends = np.frombuffer(offsets, VIEWS[kind.id][1])[column.offset : column.offset + len(column) + 1]
            bounds = (ends[:-1], ends[1:]) if indices is None else (ends[indices], ends[indices + 1])
            _write_views(views[begin : begin + count], *bounds, data, len(buffers))
            begin += count
            buffers.append(data)
    return Texts(kind, views, tuple(buffers))


def _write_views(views: I32, starts: npt.NDArray[Any], stops: npt.NDArray[Any], data: pa.Buffer, number: int) -> None:
    lengths = stops - starts
    views[:, 0], views[:, 2], views[:, 3] = lengths, number, starts
    short = np.flatnonzero(lengths <= SHORT)
    if len(short):
        letters = np.frombuffer(data, np.uint8) if data.size else np.zeros(1, np.uint8)
        at = starts[short, None] + np.arange(SHORT)
        inside = np.arange(SHORT) < lengths[short, None]
        found = np.where(inside, letters[np.minimum(at, len(letters) - 1)], 0).astype(np.uint8)
        views[short, 1:] = found.view(np.int32)
