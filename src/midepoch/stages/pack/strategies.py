"""Which pieces of which documents share a pack of limited length. Lengths in, numbers out, no I/O.

A document that is longer than a pack is cut into pieces, dropped, or put into a pack of its own. A strategy assigns the
pieces of a window to packs. The result is in the order of the documents: packs are ordered by their first piece, and
the pieces in a pack by their position.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from midepoch._common.hashing import I64

Strategy = Literal["best_fit", "first_fit", "balanced", "concat"]
Overlong = Literal["cut", "drop", "alone"]
OVERLONG: tuple[str, ...] = get_args(Overlong)
FILLERS = (0.2, 0.35, 0.5)
"""The shares of a window's tokens, in its shortest pieces, that may fill gaps instead of evening out costs."""


@dataclass(frozen=True, slots=True)
class Packs:
    """The pieces of each pack. Piece ``p`` is the tokens ``starts[p]`` to ``stops[p]`` of ``documents[p]``.

    Pack ``k`` holds the pieces from ``bounds[k]`` to ``bounds[k + 1]``.
    """

    documents: I64
    starts: I64
    stops: I64
    bounds: I64

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def owners(self) -> I64:
        """The number of each piece's pack."""
        return np.repeat(np.arange(len(self)), np.diff(self.bounds))

    def select(self, packs: I64) -> "Packs":
        """These packs alone."""
        sizes = self.bounds[packs + 1] - self.bounds[packs]
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        pieces = np.repeat(self.bounds[packs] - bounds[:-1], sizes) + np.arange(bounds[-1])
        return Packs(self.documents[pieces], self.starts[pieces], self.stops[pieces], bounds)

    def keep(self, pieces: npt.NDArray[np.bool_]) -> "Packs":
        """The same packs with only the pieces where the mask is true. A pack may have none of them."""
        bounds = np.concatenate([[0], np.cumsum(pieces)])[self.bounds]
        return Packs(self.documents[pieces], self.starts[pieces], self.stops[pieces], bounds)


def pack(lengths: I64, *, length: int, strategy: Strategy, overlong: Overlong = "cut") -> Packs:
    """Lay out documents of these lengths in packs of ``length`` tokens. Empty documents are left out."""
    documents, starts, sizes = _pieces(lengths, length, overlong)
    if not len(sizes):
        return Packs(documents, starts, starts, np.zeros(1, np.int64))
    assign = ASSIGN[strategy]
    full = sizes >= length  # these leave no room for others; one long document can have very many of them
    assigned = np.arange(len(sizes)) + len(sizes)
    if not full.all():
        assigned[~full] = assign(sizes[~full], length)
    _, firsts, packs = np.unique(assigned, return_index=True, return_inverse=True)
    ranks = np.empty(len(firsts), np.int64)
    ranks[np.argsort(firsts)] = np.arange(len(firsts))
    ranked = ranks[packs]
    order = np.argsort(ranked, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(ranked))])
    return Packs(documents[order], starts[order], (starts + sizes)[order], bounds)


def cut(lengths: I64, ends: I64, starts: I64, stops: I64) -> Packs:
    """Cut packs from a stream of documents: the tokens from ``starts`` to ``stops``.

    ``ends`` says where in the stream each document ends. Documents may be missing where no pack is cut.
    """
    firsts = np.searchsorted(ends, starts, "right")
    sizes = np.searchsorted(ends, stops, "left") - firsts + 1
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    documents = np.repeat(firsts - bounds[:-1], sizes) + np.arange(bounds[-1])
    of_documents = lengths[documents]
    begins = ends[documents] - of_documents
    first_tokens = np.maximum(np.repeat(starts, sizes) - begins, 0)
    return Packs(documents, first_tokens, np.minimum(np.repeat(stops, sizes) - begins, of_documents), bounds)


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
    """The pieces by falling size; pieces of the same size by position."""
    order: list[int] = np.argsort(-sizes, kind="stable").tolist()
    return order


def _best_fit(sizes: I64, length: int) -> I64:
    """Longest piece first, each into the pack in which it leaves the least room."""
    count, packs = len(sizes), 0
    least = int(sizes.min())
    assigned = np.empty(count, np.int64)
    size_of: list[int] = sizes.tolist()
    rooms: list[int] = []  # room * count + pack, rising: packs with room for at least the smallest piece
    for piece in _falling(sizes):
        size = size_of[piece]
        tightest = bisect_left(rooms, size * count)
        if tightest < len(rooms):
            room, number = divmod(rooms.pop(tightest), count)
        else:
            room, number, packs = length, packs, packs + 1
        assigned[piece] = number
        if room - size >= least:
            insort(rooms, (room - size) * count + number)
    return assigned


def _first_fit(sizes: I64, length: int) -> I64:
    """In order of arrival, each piece into the first pack with room. A tree holds the most room below each node."""
    leaves = 1 << max(0, int(len(sizes) - 1).bit_length())
    most = [length] * (2 * leaves)
    assigned = np.empty(len(sizes), np.int64)
    for piece, size in enumerate(sizes.tolist()):
        node = 1
        while node < leaves:
            node *= 2
            if most[node] < size:
                node += 1
        assigned[piece] = node - leaves
        most[node] -= size
        while node > 1:
            node //= 2
            room = max(most[2 * node], most[2 * node + 1])
            if most[node] == room:
                break
            most[node] = room
    return assigned


def _balanced(sizes: I64, length: int) -> I64:
    """Even out the packs' cost of attention (the sum of squares), with nearly as few packs as best fit needs.

    If more of the short pieces only fill gaps, fewer packs are needed, and they are less even. The first try lets few
    of them do so. If it needs over 0.5 % more packs than best fit, the next one lets more of them do so.
    """
    least = int(_best_fit(sizes, length).max()) + 1
    rising = np.sort(sizes)
    reached = np.cumsum(rising)
    tries: list[tuple[int, I64]] = []
    for share in FILLERS:
        filler = int(rising[np.searchsorted(reached, int(share * reached[-1]))])
        tries.append(_even_fit(sizes, length, packs=least, filler=filler))
        if tries[-1][0] <= least + least // 200:
            break
    return min(tries, key=lambda packs_assigned: packs_assigned[0])[1]


def _even_fit(sizes: I64, length: int, *, packs: int, filler: int) -> tuple[int, I64]:
    """Longest piece first, each into the cheapest of ``packs`` packs so far; pieces below ``filler`` by best fit."""
    count = len(sizes)
    room, cost = np.full(count, -1, np.int64), np.zeros(count)
    room[:packs] = length
    assigned = np.empty(count, np.int64)
    size_of: list[int] = sizes.tolist()
    for piece in _falling(sizes):
        size = size_of[piece]
        measure = cost[:packs] if size >= filler else room[:packs]
        number = int(np.where(room[:packs] >= size, measure, np.inf).argmin())
        if room[number] < size:
            number, packs = packs, packs + 1
            room[number] = length
        assigned[piece] = number
        room[number] -= size
        cost[number] += size * size
    return packs, assigned


Assign = Callable[[I64, int], I64]
"""Takes the sizes of pieces, none of them a full pack, and a pack's length; returns the number of each piece's pack."""
ASSIGN: dict[Strategy, Assign] = {"best_fit": _best_fit, "first_fit": _first_fit, "balanced": _balanced}
"""The strategies that lay out windows. "concat" cuts a stream of tokens, wherever documents end."""
