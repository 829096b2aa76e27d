"""How the items of a message lie in memory, with their turns and cursors. The layout is a list of integers.

A message has turns in their order. A turn has an item and the cursor after it, or is empty: its lane has run out.
Items are pickled one by one, or many rows of files come as one Arrow stream and become values where they are received.
"""

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from midepoch.delivery.progress import EMPTY
from midepoch.values.file_checks import Check
from midepoch.values.forms import FORMS, Form
from midepoch.values.gather import PickedArray, WideBatches
from midepoch.values.received import TensorRuns
from midepoch.values.row_items import RowItems, RowRounds
from midepoch.values.rows import Rows
from midepoch.values.tensor_lists import JoinedList
from midepoch.values.wire import Pickled, load

EMPTY_TURN, PICKLED, ROWS, PLAIN = range(4)
"""Kinds of turns. A plain item is pickled too: when its tensors are where they belong, it is finished."""
ALIGNED = 64
RECENT_SECONDS = 0.01
"""Files that were checked so recently are not checked again before a copy."""


class Chunk(NamedTuple):
    """Consecutive turns that were received: either all of them have items, or all are empty."""

    items: list[Any]
    cursors: Sequence[Sequence[int]]
    """The cursor after each item; none if the turns are empty."""


class FileChecks:
    """Looks whether files have changed, before arrays are copied from them and before what was copied is sent."""

    def __init__(self) -> None:
        self._due: dict[Check, None] = {}
        self._passed: dict[Check, None] = {}
        self._passed_at = 0.0

    def before(self, check: Check) -> None:
        """Check files before a copy, because a map of a truncated one cannot be read; not if that was just done."""
        if check in self._due:
            return
        if check not in self._passed or time.monotonic() - self._passed_at > RECENT_SECONDS:
            check()
        self._due[check] = None

    def after(self) -> None:
        """Check all files of which something was copied."""
        for check in self._due:
            check()
        self._passed, self._due, self._passed_at = self._due, {}, time.monotonic()


class Layout:
    """What has been written to a part of memory, from its start on."""

    def __init__(self, view: memoryview, checks: FileChecks | None = None) -> None:
        self._view, self.used, self.items = view, 0, 0
        self._numbers, self._checks = array("q"), checks or FileChecks()

    def fits(self, size: int, numbers: int) -> bool:
        """True if there is room for ``size`` bytes more, and ``numbers`` more integers about them."""
        return self.used + size + 8 * (len(self._numbers) + numbers) + 2 * ALIGNED <= len(self._view)

    def add_empty(self) -> None:
        """Write an empty turn."""
        self._numbers.append(EMPTY_TURN)
        self.items += 1

    def add_pickled(self, item: Pickled, cursor: Sequence[int], check: Check | None = None) -> None:
        """Write an item and the cursor after it. ``check`` raises if a file has changed of which it is a view."""
        places: list[int] = []
        if check is not None:
            self._checks.before(check)
        for memory in (memoryview(item.head), *item.memory):
            start = self._next(len(memory))
            if isinstance(memory, memoryview):
                self._view[start : self.used] = memory
            else:
                self._write_later(memory, start)
            places += (start, self.used)
        # Only now is it part of the message: a file of which it is a copy may have changed.
        kind = PLAIN if item.is_plain else PICKLED
        self._numbers.extend([kind, len(cursor), *cursor, item.arrays, 1 + len(item.memory), *places])
        self.items += 1

    def _write_later(self, values: PickedArray | JoinedList, start: int) -> None:
        """Write what is copied only here."""
        if isinstance(values, PickedArray) and values.check is not None:
            self._checks.before(values.check)
        values.write_to(self._view[start : self.used])

    def add_batch(self, head: bytes, batches: WideBatches, number: int, cursor: Sequence[int]) -> None:
        """Write a batch and the cursor after it, as ``add_pickled`` does. ``head`` is the description of each batch."""
        start = self._next(len(head))
        self._view[start : self.used] = head
        places = [start, self.used]
        if batches.check is not None:
            self._checks.before(batches.check)
        for column, size in zip(batches.columns.values(), batches.byte_counts, strict=True):
            start = self._next(size)
            batches.write_to(self._view[start : self.used], number, column)
            places += (start, self.used)
        self._numbers.extend([PLAIN, len(cursor), *cursor, len(batches.columns), 1 + len(batches.columns), *places])
        self.items += 1

    def add_rows(
        self,
        batches: Sequence[pa.RecordBatch],
        size: int | None,
        form: Form,
        cursors: Sequence[Sequence[int]],
        check: Check | None = None,
    ) -> None:
        """Write rows that make one item for each of the ``cursors``: the first of each batch, then the second, …

        ``check`` raises if a file has changed of which they are a view.
        """
        length = stream_size(batches)
        start = self._next(length)
        with (
            pa.FixedSizeBufferWriter(pa.py_buffer(self._view[start : start + length])) as file,
            pa.ipc.new_stream(file, batches[0].schema) as stream,
        ):
            for batch in batches:
                stream.write_batch(batch)
        if check is not None:
            check()  # only after it are they part of the message
        kind = [ROWS, FORMS.index(form)]
        self._numbers.extend([*kind, len(batches), len(cursors), len(cursors[0]), size or 0, start, self.used])
        for cursor in cursors:
            self._numbers.extend(cursor)
        self.items += len(cursors)

    def _next(self, size: int) -> int:
        """Take the next ``size`` bytes, which begin where processors like it."""
        start = -(-self.used // ALIGNED) * ALIGNED
        self.used = start + size
        return start

    def finish(self) -> tuple[int, int]:
        """Write the layout itself after the items, and return where it is. Raises if a file has changed meanwhile."""
        self._checks.after()
        start = self._next(8 * len(self._numbers))
        self._view[start : self.used] = memoryview(self._numbers).cast("B")
        return start, self.used


def size_of(item: Pickled) -> int:
    """The most bytes that an item takes."""
    return sum(len(memory) + ALIGNED for memory in (item.head, *item.memory))


def stream_size(batches: Sequence[pa.RecordBatch]) -> int:
    """The most bytes of an Arrow stream of some record batches."""
    schema = int(batches[0].schema.serialize().size)
    return schema + sum(int(pa.ipc.get_record_batch_size(batch)) for batch in batches) + 2 * ALIGNED


class Destination(NamedTuple):
    """Where the items of a message go: by default to memory of their own."""

    new_tensor: Callable[[Any], Any] | None = None
    """Copies a tensor, which is a view of shared memory. It may be the memory of several small ones."""
    finish: Callable[[Any], Any] | None = None
    """Changes every item that is not plain, if there is such a function."""


def read_layout(view: memoryview, layout: tuple[int, int], destination: Destination) -> Iterator[Chunk]:
    """The turns of a message, in new memory. An error comes after the turns before it."""
    chunks: list[Chunk] = []
    try:
        for chunk in _read_chunks(view, layout, destination):
            if chunks and bool(chunks[-1].cursors) == bool(chunk.cursors):
                chunks[-1] = Chunk(chunks[-1].items + chunk.items, [*chunks[-1].cursors, *chunk.cursors])
            else:
                chunks.append(chunk)
    except Exception:
        yield from chunks
        raise
    yield from chunks


def _read_chunks(view: memoryview, layout: tuple[int, int], destination: Destination) -> Iterator[Chunk]:
    numbers = array("q")
    numbers.frombytes(view[slice(*layout)])
    at = 0
    while at < len(numbers):
        kind = numbers[at]
        if kind == EMPTY_TURN:
            chunk, at = Chunk([EMPTY], ()), at + 1
        elif kind in (PICKLED, PLAIN):
            chunk, at = _read_pickled(view, numbers, at + 1, destination.new_tensor)
        else:
            chunk, at = _read_rows(view, numbers, at + 1)
        if destination.finish is not None and chunk.cursors and kind != PLAIN:
            chunk.items[:] = map(destination.finish, chunk.items)
        yield chunk


def _read_pickled(
    view: memoryview, numbers: Sequence[int], at: int, new_tensor: Callable[[Any], Any] | None
) -> tuple[Chunk, int]:
    width = numbers[at]
    cursor = tuple(numbers[at + 1 : at + 1 + width])
    at += 1 + width
    arrays, parts = numbers[at : at + 2]
    at += 2
    head, *memory = [view[numbers[part] : numbers[part + 1]] for part in range(at, at + 2 * parts, 2)]
    runs = None
    if new_tensor is not None:
        spans = [(numbers[part], numbers[part + 1]) for part in range(at + 2, at + 2 + 2 * arrays, 2)]
        runs = TensorRuns(view, spans, new_tensor)
    return Chunk([load(head, memory, arrays, runs)], [cursor]), at + 2 * parts


def _read_rows(view: memoryview, numbers: Sequence[int], at: int) -> tuple[Chunk, int]:
    form, lanes, count, width, size, start, stop = numbers[at : at + 7]
    at += 7
    flat = numbers[at : at + count * width]
    cursors = [tuple(flat[number * width : (number + 1) * width]) for number in range(count)]
    stream = pa.ipc.open_stream(pa.py_buffer(view[start:stop]))
    parts = tuple(RowItems(Rows(stream.read_next_batch(), FORMS[form]), size or None) for _ in range(lanes))
    return Chunk(list(parts[0] if lanes == 1 else RowRounds(parts)), cursors), at + count * width
