"""What several workers send, in the order of the rank's turns: one turn of each worker, and so on round."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from math import lcm
from typing import Any, Protocol

import numpy as np

from midepoch.delivery.layout import Chunk
from midepoch.delivery.progress import EMPTY, Turns


class Port(Protocol):
    """Where the turns of one worker arrive."""

    def chunk(self, *, wait: bool) -> Chunk | None:
        """The turns that are next; None at the end, or, without ``wait``, if none have arrived yet."""


class Arrivals:
    """The turns of one worker, to be taken one after the other."""

    def __init__(self, port: Port) -> None:
        self._port, self._chunk, self._taken = port, Chunk([], ()), 0

    def ready(self, *, wait: bool) -> int:
        """How many turns of one kind can be taken at once; 0 at the end, or if none have arrived and we do not wait."""
        if self._taken == len(self._chunk.items):
            self._chunk, self._taken = self._port.chunk(wait=wait) or Chunk([], ()), 0
        return len(self._chunk.items) - self._taken

    @property
    def is_empty(self) -> bool:
        """True if the turns that are ready are at lanes that have run out."""
        return not self._chunk.cursors

    @property
    def are_large(self) -> bool:
        """True if the turns that are ready came one by one: a worker sends several that are small at once."""
        return len(self._chunk.items) == 1

    def take(self, count: int) -> Chunk:
        """The next turns, of which no more are taken than are ready."""
        begin, self._taken = self._taken, self._taken + count
        whole = self._chunk
        if begin == 0 and count == len(whole.items):
            self._chunk, self._taken = Chunk([], ()), 0
            return whole
        return Chunk(whole.items[begin : self._taken], whole.cursors[begin : self._taken])


def in_turn(
    ports: Sequence[Port], rotation: int, *, tracks_cursors: bool, on_device: bool = False, has_hashes: bool = False
) -> Iterator[Turns | None]:
    """The turns of all workers, many at a time where they have arrived. ``rotation`` is the rank's number of lanes.

    There is a None before each wait, so that who is one ahead can hand over what it has. With ``on_device``, what
    arrives is on its way to a device, whose memory is small: items that are sent one by one, because they are large,
    are not taken before their turn. With ``has_hashes``, the last number of each cursor that arrives is what its item
    adds to a digest.
    """
    arrivals = [Arrivals(port) for port in ports]
    first, ended, passed_over = 0, 0, 0
    while ended < len(ports):
        order = arrivals[first:] + arrivals[:first]
        if not order[0].ready(wait=False):
            yield None
        if not order[0].ready(wait=True):  # all lanes of this worker have run out
            ended, passed_over = ended + 1, passed_over + 1
            first = (first + 1) % len(ports)
            continue
        for _ in range(passed_over):
            yield _empty_turn(has_hashes)
        ended = passed_over = 0
        if order[0].is_empty:
            order[0].take(1)
            yield _empty_turn(has_hashes)
            first = (first + 1) % len(ports)
            continue
        ready = [1] if on_device and len(ports) > 1 and order[0].are_large else _ready(order)
        chunks = [arrived.take(min(ready)) for arrived in order[: len(ready)]]
        first = (first + len(chunks)) % len(ports)
        hashes = None
        if has_hashes:
            hashes = np.array(_interleaved([[end[-1] for end in one.cursors] for one in chunks]), np.int64)
            chunks = [Chunk(one.items, [end[:-1] for end in one.cursors]) for one in chunks]
        turns = _joined(chunks, rotation) if tracks_cursors else Turns(_interleaved([one.items for one in chunks]), ())
        del chunks
        yield turns._replace(hashes=None if hashes is None else hashes.view(np.uint64))
        del turns


def without_waits(all_turns: Generator[Turns | None, None, None]) -> Generator[Turns, None, None]:
    """The turns, for who is not ahead."""
    with closing(all_turns):
        for turns in all_turns:
            if turns is not None:
                yield turns
            del turns  # so that the next items are made in their memory


def _ready(order: Sequence[Arrivals]) -> list[int]:
    """How many turns with items each of the next workers has ready: one turn, unless all workers have some."""
    ready: list[int] = []
    for number, arrived in enumerate(order):
        count = arrived.ready(wait=number == 0)
        if not count or arrived.is_empty:
            return [1] * len(ready)
        ready.append(count)
    return ready


def _empty_turn(has_hashes: bool) -> Turns:
    return Turns((EMPTY,), ((),), np.zeros(1, np.uint64) if has_hashes else None)


def _interleaved(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """The first of each part, then the second of each, and so on. All parts are equally long."""
    if len(parts) == 1:
        return parts[0] if isinstance(parts[0], list) else list(parts[0])
    joined: list[Any] = [None] * (len(parts) * len(parts[0]))
    for number, part in enumerate(parts):
        joined[number :: len(parts)] = part
    return joined


def _joined(chunks: Sequence[Chunk], rotation: int) -> Turns:
    """The turns of several workers as turns that go round the lanes of the rank."""
    items = _interleaved([chunk.items for chunk in chunks])
    cursors = _interleaved([chunk.cursors for chunk in chunks])
    lanes = min(lcm(rotation, len(chunks)), len(cursors))
    return Turns(items, [cursors[number::lanes] for number in range(lanes)])
