"""Messages: the turns of a worker as bytes in shared memory, and back.

A message is a sequence of frames. A frame holds one of three things:

- one item: a pickle of protocol 5, and beside it the memory of its arrays and tensors;
- many rows of files, which no function has touched: an Arrow stream, which becomes values where it is received;
- an empty turn, at a lane that has run out.

What arrives equals what was sent, as with pickle alone: types, order of memory, and whether an array may be written to.
"""

import pickle
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from midepoch.delivery.turns import Turns, one_by_one
from midepoch.values.arrow import standalone
from midepoch.values.columns import Form, is_plain_tensor
from midepoch.values.rows import RowItems, RowRounds, Rows

MESSAGE_BYTES = 2 << 20
"""A message has about this many bytes, or one item that is larger."""
ALIGNED = 64
LENGTH = struct.Struct("<q")

Piece = bytes | memoryview | list[pa.RecordBatch]
"""What a frame has in memory: bytes, or record batches of one schema, which are written as an Arrow stream."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Turns that are written together. Nothing is copied before that."""

    turns: int
    size: int
    head: bytes
    pieces: list[Piece]

    @classmethod
    def of(cls, turns: Turns, pieces: list[Piece], rows: tuple[Form, int | None, int] | None = None) -> "Frame":
        """The frame of turns whose items are in the pieces, of which there are none if it is an empty turn.

        Of rows it says their form, the number of rows of a batch, and the number of lanes, one record batch each.
        """
        sizes = [_stream_size(piece) if isinstance(piece, list) else len(piece) for piece in pieces]
        head = pickle.dumps((turns.cursors, turns.hashes, turns.empty, sizes, rows), protocol=5)
        return cls(turns.number, _aligned(LENGTH.size + len(head)) + sum(map(_aligned, sizes)), head, pieces)

    def write(self, view: memoryview) -> None:
        """Write the frame to memory of its size."""
        LENGTH.pack_into(view, 0, len(self.head))
        at = LENGTH.size + len(self.head)
        view[LENGTH.size : at] = self.head
        for piece in self.pieces:
            at = _aligned(at)
            if isinstance(piece, list):
                _write_stream(view[at:], piece)
            else:
                view[at : at + len(piece)] = piece
                at += len(piece)


def frames_of(turns: Turns, most: int) -> Iterator[Frame]:
    """Turns as frames of ``most`` turns or fewer. A frame of rows has about as many bytes as a message."""
    parts = turns.items.parts if isinstance(turns.items, RowItems | RowRounds) else ()
    if parts and len(parts) <= most and all(part.are_columns for part in parts):
        yield from _row_frames(turns, parts, most)
        return
    for one in one_by_one((turns,)):
        pieces = [piece for item in one.items for piece in dump(standalone(item))]
        yield Frame.of(one._replace(cursors=[tuple(map(int, cursor)) for cursor in one.cursors]), [*pieces])


def _row_frames(turns: Turns, parts: Sequence[RowItems], most: int) -> Iterator[Frame]:
    """The rows of each lane as columns. The turns go round the lanes, which have equally many items."""
    items, lanes, size = len(parts[0]), len(parts), parts[0].size
    batches: list[Any] = [part.rows.data for part in parts]
    at_once = max(1, min(most // lanes, items * MESSAGE_BYTES // max(1, sum(batch.nbytes for batch in batches))))
    numbers = turns._replace(items=range(len(turns.items)))  # in place of the items, which are not made here
    for start in range(0, items, at_once):
        stop = min(start + at_once, items)
        rows = [batch.slice(start * (size or 1), (stop - start) * (size or 1)) for batch in batches]
        yield Frame.of(numbers.cut(start * lanes, stop * lanes), [rows], (parts[0].rows.form, size, lanes))


def read_message(view: memoryview) -> Iterator[Turns]:
    """The turns of a message, in memory of their own. An error about one of them comes after those before it."""
    at = 0
    while at < len(view):
        (length,) = LENGTH.unpack_from(view, at)
        cursors, hashes, empty, sizes, rows = pickle.loads(view[at + LENGTH.size : at + LENGTH.size + length])
        at = _aligned(at + LENGTH.size + length)
        pieces = []
        for size in sizes:
            pieces.append(view[at : at + size])
            at += _aligned(size)
        items = [] if empty else [load(pieces)] if rows is None else _read_rows(pieces[0], *rows)
        yield Turns(items, cursors, hashes, empty)


def _read_rows(content: memoryview, form: Form, size: int | None, lanes: int) -> list[Any]:
    """The items of rows: Python values and tensors are copies of Arrow's memory, and so of ``content``."""
    stream = pa.ipc.open_stream(pa.py_buffer(content))
    parts = tuple(RowItems(Rows(stream.read_next_batch(), form), size) for _ in range(lanes))
    return list(RowRounds(parts))


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _stream_size(batches: Sequence[pa.RecordBatch]) -> int:
    """The most bytes of an Arrow stream of some record batches."""
    schema = int(batches[0].schema.serialize().size)
    return schema + sum(int(pa.ipc.get_record_batch_size(batch)) for batch in batches) + 2 * ALIGNED


def _write_stream(view: memoryview, batches: Sequence[pa.RecordBatch]) -> None:
    with (
        pa.FixedSizeBufferWriter(pa.py_buffer(view)) as file,
        pa.ipc.new_stream(file, batches[0].schema) as stream,
    ):
        for batch in batches:
            stream.write_batch(batch)


def dump(item: Any) -> list[bytes | memoryview]:
    """An item as its pickle, and the memory that is sent beside it, which is not copied."""
    file, buffers = BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(item)
    return [file.getvalue(), *(buffer.raw() for buffer in buffers)]


def load(pieces: Sequence[memoryview]) -> Any:
    """The item that was sent as these pieces, in memory of its own."""
    return pickle.loads(pieces[0], buffers=map(bytearray, pieces[1:]))


class _Pickler(pickle.Pickler):
    """Takes the memory of tensors out of the pickle, as NumPy does with that of arrays."""

    def reducer_override(self, value: Any) -> Any:
        if is_plain_tensor(value):  # torch's own way has no empty tensors of uint16, uint32 and uint64
            return (_tensor, _memory_of(value)) if value.numel() else (_empty, (tuple(value.shape), value.dtype))
        if type(value) is pa.FixedSizeListType:  # its own way forgets the name of its values
            return pa.list_, (value.value_field, value.list_size)
        return NotImplemented


def _memory_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The memory of a tensor, and what else is needed to make it again."""
    axes = None
    if not tensor.is_contiguous():  # such as images whose channels come last
        strides = tensor.stride()
        axes = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
        tensor = tensor.permute(axes).contiguous()
    flat = tensor.reshape(-1)
    if flat.stride(0) != 1:  # one value, which has any stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    memory: Any = flat.view(torch.uint8).numpy()
    return pickle.PickleBuffer(memory), tensor.dtype, tuple(tensor.shape), axes


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def _tensor(memory: Any, dtype: torch.dtype, shape: tuple[int, ...], axes: list[int] | None) -> torch.Tensor:
    tensor = torch.frombuffer(memory, dtype=dtype).view(shape)
    return tensor if axes is None else tensor.permute(np.argsort(axes).tolist())
