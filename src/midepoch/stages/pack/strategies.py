"""Packing: which pieces of which documents go together into packs of limited length. Lengths in, numbers out, no I/O.

A document that is longer than a pack is cut into pieces, left out, or has a pack of its own. The pieces of a window are
laid out by one of three strategies, and what comes out is in the order of the documents: packs by their first piece,
pieces by their place.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from midepoch._common.types import I32, I64

Strategy = Literal["best_fit", "first_fit", "balanced", "concat"]
Overlong = Literal["cut", "drop", "alone"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)
OVERLONG: tuple[str, ...] = get_args(Overlong)
FILLERS = (0.2, 0.35, 0.5)
"""Which part of a window's tokens, in its shortest pieces, may fill gaps instead of evening out costs."""


@dataclass(frozen=True, slots=True)
class Packs:
    """The pieces of each pack: piece ``p`` is the tokens ``starts[p]`` to ``stops[p]`` of ``documents[p]``.

    Pack ``k`` holds the pieces from ``bounds[k]`` to ``bounds[k + 1]``.
    """

    documents: I64
    starts: I64
    stops: I64
    bounds: I64

    def __len__(self) -> int:
        return len(self.bounds) - 1


def pack(lengths: I64, *, length: int, strategy: Strategy, overlong: Overlong = "cut") -> Packs:
    """Lay out documents of these lengths in packs of ``length`` tokens. Empty documents are in none."""
    documents, starts, sizes = _pieces(lengths, length, overlong)
    if not len(sizes):
        return Packs(documents, starts, starts, np.zeros(1, np.int64))
    place: Callable[[I64, int], I64] = {"first_fit": _first_fit, "balanced": _balanced}.get(strategy, _best_fit)
    full = sizes >= length  # those that leave no room for others: there may be very many, of one long document
    placed = np.arange(len(sizes)) + len(sizes)
    if not full.all():
        placed[~full] = place(sizes[~full], length)
    _, firsts, packs = np.unique(placed, return_index=True, return_inverse=True)
    ranks = np.empty(len(firsts), np.int64)
    ranks[np.argsort(firsts)] = np.arange(len(firsts))
    ranked = ranks[packs]
    order = np.argsort(ranked, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(ranked))])
    return Packs(documents[order], starts[order], (starts + sizes)[order], bounds)


def _pieces(lengths: I64, length: int, overlong: Overlong) -> tuple[I64, I64, I64]:
    """The document, the start and the size of each piece."""
    if overlong == "cut":
        counts = -(-lengths // length)
        documents = np.repeat(np.arange(len(lengths)), counts)
        starts = (np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)) * length
        return documents, starts, np.minimum(length, lengths[documents] - starts)
    kept = (lengths > 0) & (lengths <= length) if overlong == "drop" else lengths > 0
    documents = np.flatnonzero(kept)
    return documents, np.zeros_like(documents), lengths[documents]


def _falling(sizes: I64) -> list[int]:
    """The pieces by falling size, those of one size by their place."""
    order: list[int] = np.argsort(-sizes, kind="stable").tolist()
    return order


def _best_fit(sizes: I64, length: int) -> I64:
    """Longest first, each into the pack that it fills best."""
    count, packs = len(sizes), 0
    least = int(sizes.min())
    placed = np.empty(count, np.int64)
    known: list[int] = sizes.tolist()
    rooms: list[int] = []  # room * count + pack, rising: packs that still have room for something
    for piece in _falling(sizes):
        size = known[piece]
        at = bisect_left(rooms, size * count)
        if at < len(rooms):
            room, number = divmod(rooms.pop(at), count)
        else:
            room, number, packs = length, packs, packs + 1
        placed[piece] = number
        if room - size >= least:
            insort(rooms, (room - size) * count + number)
    return placed


def _first_fit(sizes: I64, length: int) -> I64:
    """In the order of arrival, each into the first pack with room, found in a tree of the most room below each node."""
    leaves = 1 << max(0, int(len(sizes) - 1).bit_length())
    most = [length] * (2 * leaves)
    placed = np.empty(len(sizes), np.int64)
    for piece, size in enumerate(sizes.tolist()):
        node = 1
        while node < leaves:
            node *= 2
            if most[node] < size:
                node += 1
        placed[piece] = node - leaves
        most[node] -= size
        while node > 1:
            node //= 2
            room = max(most[2 * node], most[2 * node + 1])
            if most[node] == room:
                break
            most[node] = room
    return placed


def _balanced(sizes: I64, length: int) -> I64:
    """As few packs as best fit needs, or nearly, with the cost of attention, the sum of squares, evened out.

    The more of the short pieces only fill gaps, the fewer packs are needed and the less even they are. One pack more
    in two hundred is taken for evenness; where the strictest try needs more, others are made.
    """
    least = int(_best_fit(sizes, length).max()) + 1
    rising = np.sort(sizes)
    reached = np.cumsum(rising)
    found: list[tuple[int, I64]] = []
    for share in FILLERS:
        filler = int(rising[np.searchsorted(reached, int(share * reached[-1]))])
        found.append(_even_fit(sizes, length, packs=least, filler=filler))
        if found[-1][0] <= least + least // 200:
            break
    return min(found, key=lambda packs_placed: packs_placed[0])[1]


def _even_fit(sizes: I64, length: int, *, packs: int, filler: int) -> tuple[int, I64]:
    """Longest first, each into that of ``packs`` packs that costs least so far; those below ``filler`` by best fit."""
    count = len(sizes)
    room, cost = np.full(count, -1, np.int64), np.zeros(count)
    room[:packs] = length
    placed = np.empty(count, np.int64)
    known: list[int] = sizes.tolist()
    for piece in _falling(sizes):
        size = known[piece]
        measure = cost[:packs] if size >= filler else room[:packs]
        number = int(np.where(room[:packs] >= size, measure, np.inf).argmin())
        if room[number] < size:
            number, packs = packs, packs + 1
            room[number] = length
        placed[piece] = number
        room[number] -= size
        cost[number] += size * size
    return packs, placed


def cumulative(sizes: I64) -> I32:
    """Where the pieces of a pack begin, and where the last one ends: what attention calls ``cu_seqlens``."""
    ends = np.zeros(len(sizes) + 1, np.int32)
    ends[1:] = sizes.cumsum()
    return ends


def ids_within(ends: I32, total: int) -> tuple[I32, I32]:
    """For each token of a pack its place in its piece and the number of that; 0 and -1 on padding up to ``total``."""
    sizes, real = ends[1:] - ends[:-1], int(ends[-1])
    positions, numbers = np.empty(total, np.int32), np.empty(total, np.int32)
    np.subtract(np.arange(real, dtype=np.int32), ends[:-1].repeat(sizes), out=positions[:real])
    numbers[:real] = np.arange(len(sizes), dtype=np.int32).repeat(sizes)
    positions[real:], numbers[real:] = 0, -1
    return positions, numbers
