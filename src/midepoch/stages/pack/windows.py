"""Packs of windows of documents, read one window after the other, or planned from the lengths that a survey knows.

Which pieces of which documents share a pack depends on the lengths in the window alone. So all readers make the same
plan of a window, and each reads only the documents of the packs that it delivers. Both ways of reading make the same
packs. The cursor in a window is that of any group: the window's start, and how many of its packs are delivered.

A document that is longer than a pack is cut into pieces, dropped, or put into a pack of its own. A strategy assigns the
pieces of a window to packs. Packs are ordered by their first piece, and the pieces in a pack by their position.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, ClassVar, Literal

import numpy as np

from midepoch._common.checks import count
from midepoch._common.hashing import I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import DataChangedError
from midepoch.stages.counted import CountedItems, Wanted
from midepoch.stages.flow import Context, Flow, SingleItem, resume_groups
from midepoch.stages.pack.documents import DocumentReader, OverlongRow
from midepoch.stages.pack.packs import Packs, PackStage, Planned, PlannedPacks, pack_form

Strategy = Literal["best_fit", "first_fit", "balanced", "concat"]
FILLERS = (0.2, 0.35, 0.5)
"""The shares of a window's tokens, in its shortest pieces, that may fill gaps instead of evening out costs."""
DOCUMENTS_PLANNED = 1 << 15
"""Of a lane that is read, the plans of about this many documents are kept from counting until reading."""


class PlannedWindows(PlannedPacks[Packs]):
    """The packs of windows of documents, counted."""

    def __init__(self, inputs: CountedItems, stage: "PackWindows", own_numbers: Cursor, context: Context) -> None:
        super().__init__(inputs, stage, own_numbers, context)
        self._lay_out = stage.lay_out
        # Numbers are shared by the position of a window's first row, which must be all that its cursor has.
        shared = context.output_counts is not None and len(inputs.cursor(0)) == 1
        self._shared = context.output_counts() if shared and context.output_counts is not None else None

    def unknown(self, documents: int) -> Iterator[tuple[Cursor, int, int]]:
        """Runs of windows that have about this many documents, and are not counted by any process that shares counts.

        Of each, its cursor, and the number of windows and documents.
        """
        total, at_once = self._inputs.total(), self._size * max(1, documents // self._size)
        for first in range(0, max(1, total) if self._shared is not None else 0, at_once):
            windows = range(first // self._size, -(-min(first + at_once, max(1, total)) // self._size))
            if any(self._known_outputs(window) is None for window in windows):
                cursor = (*self._inputs.cursor(first), 0)
                yield cursor, len(windows), min(first + at_once, total) - first

    def _known_outputs(self, window: int) -> int | None:
        """The number of packs in a window, if any process has counted them."""
        return None if self._shared is None else self._shared.get(self._first_row(window))

    def _first_row(self, window: int) -> int:
        return self._inputs.cursor(window * self._size)[0]

    def _outputs(self, group: int) -> int:
        outputs = self._known_outputs(group)
        if outputs is None:
            outputs = len(self._known_of(group))
            if self._shared is not None:
                self._shared.put(self._first_row(group), outputs)
        return outputs

    def outputs(self, windows: int) -> list[tuple[int, int]]:
        """The position of the first document of each of the first windows, and its number of packs."""
        return [(self._first_row(window), self._outputs(window)) for window in range(windows)]

    def _look_up(self, group: int) -> Packs:
        """The layout of a window."""
        lengths, first = self._lengths_of(self._members(group)), group * self._size
        return self._lay_out(lengths, lambda document: self._place(first + document))

    def _begun(self, documents: int, delivered: int) -> tuple[I64, I64]:
        layout = self._known_of(documents // self._size).select(np.arange(delivered))
        return documents + layout.documents, layout.stops - layout.starts

    def _packs_before(self, documents: int, delivered: int, tokens: int) -> int:
        groups = -(-documents // self._size)
        self._counted_until(groups - 1)
        return self._before(groups) + delivered

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        self._groups_kept = max(2, DOCUMENTS_PLANNED // self._size)
        return super().flow(opened, wanted)

    def _plans(self, numbers: I64) -> Iterator[Planned]:
        """For each window of these packs, those that it has. Windows are asked for in order."""
        for group, in_group in self._by_group(numbers):
            layout, counted = self._known_of(group), self._ends[group] - self._before(group)
            if len(layout) != counted:
                raise DataChangedError(
                    f"{self._spec.op}: a window has {count('pack', len(layout))}, and {self._shared} says {counted:,}. "
                    "That file is damaged. Delete it: it is made again."
                )
            layout, first = layout.select(in_group), group * self._size
            yield Planned(replace(layout, documents=first + layout.documents), np.full(len(in_group), first), in_group)

    def _outputs_with(self, group: int, inside: int) -> I64:
        layout = self._known_of(group)
        outputs: I64 = layout.owners[layout.documents == inside]
        return self._before(group) - self._delivered + outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class PackWindows(PackStage):
    """Lay out whole documents, or pieces of long ones, inside windows of ``window`` rows."""

    strategy: Strategy = "best_fit"
    window: int
    makes_windows: ClassVar[bool] = True
    planned: ClassVar[type[PlannedPacks[Any]]] = PlannedWindows

    def __post_init__(self) -> None:
        if self.strategy not in list(ASSIGN):
            choices = ", ".join(map(repr, (*ASSIGN, "concat")))
            raise ValueError(f"strategy is {self.strategy!r}; it can be {choices}.")
        if self.window < 1:
            raise ValueError(f"window is {self.window}; a window needs at least 1 document.")

    @property
    def group_size(self) -> int:
        return self.window

    def lay_out(self, lengths: I64, place: Callable[[int], str]) -> Packs:
        """Which documents of a window, by their lengths, share a pack. ``place`` says where one comes from."""
        return pack(lengths, length=self.spec.length, strategy=self.strategy, overlong=self.spec.overlong)

    def read(self, inputs: Flow, cursor: Cursor, context: Context) -> Iterator[SingleItem]:
        form, reader = pack_form(inputs), DocumentReader(self.spec, context)
        windows = Flow(row_runs=reader.runs(inputs, repeat(self.window))).groups(self.window)
        for group in resume_groups(windows, cursor, inputs.skips, self.spec.number, context):
            documents = reader.read(group.inputs)
            layout = self.lay_out(documents.lengths, partial(self._place, documents.keys, context))
            cursors, keys = group.cursors_and_keys(len(layout))
            left = np.arange(group.delivered, len(layout))
            yield from self.make_items(documents, layout.select(left), cursors[left], keys[left], form, context)

    def _place(self, keys: I64, context: Context, row: int) -> str:
        return context.name_row(self.spec.number, int(keys[row]), single=True)

    def describe(self) -> dict[str, Any] | None:
        return self.spec.describe() | {"strategy": self.strategy, "window": self.window}


def pack(lengths: I64, *, length: int, strategy: Strategy, overlong: OverlongRow = "cut") -> Packs:
    """Lay out documents of these lengths in packs of ``length`` tokens. Empty documents are left out."""
    documents, starts, sizes = pieces(lengths, length, overlong)
    if not len(sizes):
        return Packs(documents, starts, starts, np.zeros(1, np.int64))
    full = sizes >= length  # these leave no room for others; one long document can have very many of them
    owners = np.arange(len(sizes)) + len(sizes)
    if not full.all():
        owners[~full] = ASSIGN[strategy](sizes[~full], length)
    _, firsts, packs = np.unique(owners, return_index=True, return_inverse=True)
    ranks = np.empty(len(firsts), np.int64)
    ranks[np.argsort(firsts)] = np.arange(len(firsts))
    return assigned(documents, starts, sizes, ranks[packs])


def assigned(documents: I64, starts: I64, sizes: I64, owners: I64) -> Packs:
    """The layout in which each of these pieces is in the pack of its owner's number."""
    order = np.argsort(owners, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(owners))])
    return Packs(documents[order], starts[order], (starts + sizes)[order], bounds)


def pieces(lengths: I64, length: int, overlong: OverlongRow) -> tuple[I64, I64, I64]:
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
