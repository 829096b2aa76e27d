"""Items across a process border: a worker writes them to shared memory, and the main process copies them out once.

Only numbers go through the connection: where a message is. The main process answers when it has copied the items, and
their place is used again. How far a worker is ahead is bounded by bytes, or by items where the user says how many.
"""

import struct
import time
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple, Protocol

import numpy as np

from midepoch.checkpoint.lanes import Cursor
from midepoch.delivery.layout import ALIGNED, Chunk, Destination, FileChecks, Layout, read_layout, size_of, stream_size
from midepoch.delivery.progress import Turns
from midepoch.delivery.reader import turn_by_turn
from midepoch.delivery.ring import Places, SharedMemory
from midepoch.values.collate import standalone
from midepoch.values.file_checks import Check, all_checks
from midepoch.values.gather import WideBatches
from midepoch.values.row_items import RowItems, RowRounds
from midepoch.values.tensor_dicts import batch_description
from midepoch.values.wire import dump

MESSAGE_BYTES = 1 << 20
"""A message has about this many bytes, or one item that is larger."""
ROW_MESSAGE_BYTES = 2 << 20
"""The same for rows that are sent as columns: to send and to receive a message takes as long as 100 rows of text."""
LARGE_MESSAGE_BYTES = 8 << 20
"""The most bytes of a message of several large items."""
LARGE_ITEMS = 16
"""So many large items are sent together, if they do not have more bytes: to receive a message takes time."""
MESSAGE_ITEMS = 1024
"""The most items of a message."""
AHEAD_BYTES = 32 << 20
"""How far a worker is ahead, unless the user says how many items: what it has made and nobody has received."""
MOST_AHEAD_BYTES = 512 << 20
"""How far it is ahead at most: more than AHEAD_BYTES only if all that was taken while it made the next window."""
AHEAD_ITEMS = 2
"""Large items that a worker may always be ahead, whatever their bytes."""
AHEAD_MESSAGES = 128
"""The most messages that a worker is ahead. The connection has room for all of them, so that nobody waits to send."""
WINDOW_SECONDS = 0.05
"""Turns that took longer than this number of seconds are the first of a window: others follow faster."""
PAUSE = 0.002
"""An item that took longer than this number of seconds is sent at once, with those before it, unless the main process
has much to do: then messages become as large as they may be, because each takes time to receive."""
NO_TURN = -1
TO_OWN_MEMORY = Destination()
PLACE = struct.Struct("<qqqqq")
"""The first turn of a message, and where it is in memory: start and size, and start and end of the layout in it."""


class Outbox(Protocol):
    """A worker's connection to the main process."""

    def send_place(self, place: bytes) -> None:
        """Say where a message is."""

    def received(self, *, wait: bool) -> Sequence[int]:
        """Where the messages are that the main process has received since the last call; at least 1 with ``wait``."""


class Sender:
    """Writes the turns of a worker to shared memory and says where they are.

    The turns of a message are every ``step``-th of the rank from its first one on.
    """

    def __init__(
        self,
        memory: SharedMemory,
        outbox: Outbox,
        places: Places,
        *,
        ahead: int | None,
        step: int = 1,
        copies_tensors: bool = False,
    ) -> None:
        """``ahead`` is the number of items that the worker may be ahead; None bounds the bytes instead.

        ``copies_tensors`` means that tensors go on from the shared memory to a device or to pinned memory.
        """
        self._memory, self._outbox, self._places, self._ahead = memory, outbox, places, ahead
        self._step, self._copies_tensors = step, copies_tensors
        self.turn = NO_TURN
        """The first turn that was not sent; ``NO_TURN`` until it is known where the turns begin."""
        self._sent: dict[int, int] = {}  # how many turns messages have that are not received yet, by where those are
        self._most_items = MESSAGE_ITEMS if ahead is None else max(1, ahead // 2)
        self._layout: Layout | None = None
        self._checks = FileChecks()
        self._start = 0
        self._rows = 1  # how many rows the next message may have
        self.idle = 0.0
        """Seconds in which the worker was as far ahead as it may be."""
        self._last_sent = self._last_done = time.monotonic()
        self._most_bytes, self._was_full = AHEAD_BYTES, False

    def send(self, turns: Turns) -> None:
        """Write some turns. They are sent at once if they took long to make, else when there are enough of them."""
        seconds = time.monotonic() - self._last_done
        if seconds > WINDOW_SECONDS:
            self._note_window()
        self._write(turns)
        if seconds > PAUSE and self._layout is not None and self._is_wanted():
            self.flush()  # the next ones may take as long
        self._last_done = time.monotonic()

    def _note_window(self) -> None:
        """Be further ahead from now on, if all was taken while this window was made, and there was no room for more."""
        self._note_received(wait=False)
        if self._was_full and not self._places:
            self._most_bytes = min(2 * self._most_bytes, MOST_AHEAD_BYTES)
        self._was_full = False

    def _write(self, turns: Turns) -> None:
        check: Check | None = None
        hashes = None if turns.hashes is None else turns.hashes.view(np.int64).tolist()
        if isinstance(turns.items, RowItems | RowRounds):
            parts = turns.items.parts if isinstance(turns.items, RowRounds) else (turns.items,)
            if parts[0].are_columns(tensors=not self._copies_tensors) and len(parts) <= self._most_items:
                self._write_rows(parts, turns.cursors, hashes)
                return
            wide = [batches for part in parts if (batches := part.wide_batches())]
            if len(wide) == len(parts):
                self._write_batches(wide, turns.cursors, hashes)
                return
            check = all_checks(part.rows.check for part in parts)
            turns = turns._replace(items=turns.items.for_transport())  # type: ignore[arg-type]
        more = repeat(()) if hashes is None else zip(hashes, strict=True)
        for (cursor, item), one in zip(turn_by_turn(iter((turns,))), more, strict=False):
            self._add(item, None if cursor is None else (*cursor, *one), check)
            if self._is_due():
                self.flush()

    def _add(self, item: Any, cursor: Cursor | None, check: Check | None) -> None:
        if cursor is None:
            self._room_for(0, 1).add_empty()
            return
        pickled = dump(standalone(item))
        numbers = 4 + len(cursor) + 2 * (1 + len(pickled.memory))
        size = size_of(pickled)
        layout = self._room_for(size, numbers, min(LARGE_ITEMS * size, LARGE_MESSAGE_BYTES))
        layout.add_pickled(pickled, cursor, check)

    def _write_batches(
        self, lanes: Sequence[WideBatches], cursors: Sequence[Sequence[Sequence[int]]], hashes: Sequence[int] | None
    ) -> None:
        """The same as ``_add`` of all batches, with less to do for each: only their numbers differ."""
        ends = _ends(cursors, hashes, len(lanes), 0, len(lanes[0]))
        heads = [batch_description(batches) for batches in lanes]  # lists of one lane may be longer than of another
        sizes = [
            sum(count + ALIGNED for count in (len(head), *batches.byte_counts))
            for head, batches in zip(heads, lanes, strict=True)
        ]
        numbers = 4 + len(ends[0]) + 2 * (1 + len(lanes[0].columns))
        for number, end in enumerate(ends):
            of_lane, lane = divmod(number, len(lanes))
            size = sizes[lane]
            layout = self._room_for(size, numbers, min(LARGE_ITEMS * size, LARGE_MESSAGE_BYTES))
            layout.add_batch(heads[lane], lanes[lane], of_lane, end)
            if self._is_due():
                self.flush()

    def _is_due(self) -> bool:
        assert self._layout is not None
        if self._layout.items >= self._most_items:
            return True
        return self._is_wanted() and time.monotonic() - self._last_sent > PAUSE

    def _is_wanted(self) -> bool:
        """True unless the main process has much to do before it gets to the message under way."""
        has_much = self._places.bytes >= self._most_bytes // 2  # even if a quarter is received and not told
        return not has_much or self._is_first()

    def _is_first(self) -> bool:
        """True if the main process has received all messages that were sent."""
        return not self._sent

    def _write_rows(
        self, parts: Sequence[RowItems], cursors: Sequence[Sequence[Sequence[int]]], hashes: Sequence[int] | None
    ) -> None:
        """Write rows of each lane as columns: few at first, then about as many as make a message of the usual size."""
        done, items, rows = 0, len(parts[0]), len(parts) * (parts[0].size or 1)
        while done < items:
            free = self._most_items - (0 if self._layout is None else self._layout.items)
            if free < len(parts):
                self.flush()
                continue
            rounds = min(max(1, self._rows // rows), free // len(parts), items - done)
            batches = [part.slice(done, done + rounds).batch() for part in parts]
            ends = _ends(cursors, hashes, len(parts), done, done + rounds)
            size = stream_size(batches)
            check = all_checks(part.rows.check for part in parts)
            layout = self._room_for(size, 8 + len(ends) * len(ends[0]), ROW_MESSAGE_BYTES)
            layout.add_rows(batches, parts[0].size, parts[0].rows.form, ends, check)
            if self._is_due():
                self.flush()
            done += rounds
            usual = max(1, ROW_MESSAGE_BYTES * sum(batch.num_rows for batch in batches) // size)
            self._rows = min(2 * self._rows, usual) if self._rows < usual else usual

    def _room_for(self, size: int, numbers: int, wanted: int = 0) -> Layout:
        """The layout of the message under way, or of a new one if there is no room: of ``wanted`` bytes, or more."""
        if self._layout is not None and not self._layout.fits(size, numbers):
            self.flush()
        if self._layout is None:
            size = max(MESSAGE_BYTES, 2 * self._most_bytes // AHEAD_MESSAGES, wanted, size + 8 * numbers + 4 * 64)
            while not self._may_be_ahead(size):
                begun = time.perf_counter()
                self._was_full = True
                self._note_received(wait=True)
                self.idle += time.perf_counter() - begun
            self._start = self._places.find(size)
            self._memory.grow(self._start + size)
            self._layout = Layout(self._memory.view(self._start, self._start + size), self._checks)
        return self._layout

    def _may_be_ahead(self, size: int) -> bool:
        if self._is_first():
            return True
        items = sum(self._sent.values())
        if self._ahead is not None:
            return items < self._ahead and len(self._places) < AHEAD_MESSAGES
        is_small = self._places.bytes + size <= self._most_bytes and len(self._places) < AHEAD_MESSAGES
        return is_small or items < AHEAD_ITEMS

    def flush(self) -> None:
        """Send what is written."""
        if self._layout is not None:
            layout = self._layout.finish()
            used = self._layout.used
            self._places.take(self._start, used)
            self._sent[self._start] = self._layout.items
            place = PLACE.pack(self.turn, self._start, used, *layout)
            self.turn, self._layout = self.turn + self._step * self._layout.items, None
            self._outbox.send_place(place)
        self._note_received(wait=False)
        self._last_sent = time.monotonic()

    def _note_received(self, *, wait: bool) -> None:
        for start in self._outbox.received(wait=wait):
            self._places.release(start)
            self._sent.pop(start, None)  # it may be of an earlier round


def _ends(
    cursors: Sequence[Sequence[Sequence[int]]], hashes: Sequence[int] | None, lanes: int, start: int, stop: int
) -> list[list[int]]:
    """The cursor of each item of the rounds from ``start`` to ``stop``, and what it adds to a digest.

    Cursors have no numbers if they follow from counts.
    """
    by_lane = [np.asarray(lane[start:stop]).tolist() for lane in cursors] or [[[]] * (stop - start)] * lanes
    ends = list(chain.from_iterable(zip(*by_lane, strict=True)))
    if hashes is None:
        return ends
    more = hashes[start * lanes : stop * lanes]
    return [[*end, one] for end, one in zip(ends, more, strict=True)]


class Message(NamedTuple):
    """Where the turns of a message are, in memory that the worker shares."""

    turn: int
    start: int
    size: int
    layout: tuple[int, int]

    @classmethod
    def at(cls, place: bytes) -> "Message":
        """The message of which a worker has sent the place."""
        turn, start, size, *layout = PLACE.unpack(place)
        return cls(turn, start, size, (layout[0], layout[1]))

    def receive(self, memory: SharedMemory, destination: Destination = TO_OWN_MEMORY) -> Iterator[Chunk]:
        """The turns, in memory of their own. An error of one comes after those before it."""
        return read_layout(memory.view(self.start, self.start + self.size), self.layout, destination)
