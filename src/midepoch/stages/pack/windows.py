"""Packs of windows of documents, read one window after the other, or planned from the lengths that a survey knows.

Where a document goes depends on the lengths in its window alone. So all readers make the same plan of a window, and
each reads only the documents of the packs that it delivers. Both ways of reading make the same packs. The cursor in a
window is that of any group: the window's start, and how many of its packs are delivered.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from midepoch._common.checks import count
from midepoch._common.hashing import I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import DataChangedError
from midepoch.stages.counted import CountedItems, Pieces, Wanted
from midepoch.stages.flow import Context, Flow, Idle, SingleItem, keys_inside, resume_groups, single_groups
from midepoch.stages.pack.documents import DocumentReader
from midepoch.stages.pack.packs import (
    NO_TOKENS,
    PackPlan,
    PackStage,
    PlannedPacks,
    make_packs,
    not_left_out,
    pack_form,
)
from midepoch.stages.pack.strategies import ASSIGN, Packs, Strategy, pack

DOCUMENTS_PLANNED = 1 << 15
"""Of a lane that is read, the plans of about this many documents are kept from counting until reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackWindows(PackStage):
    """Lay out whole documents, or pieces of long ones, inside windows of ``window`` rows."""

    strategy: Strategy
    window: int
    makes_windows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.strategy not in list(ASSIGN):
            choices = ", ".join(map(repr, (*ASSIGN, "concat")))
            raise ValueError(f"strategy is {self.strategy!r}; it can be {choices}.")
        if self.window < 1:
            raise ValueError(f"window is {self.window}; a window needs at least 1 document.")

    @property
    def group_size(self) -> int:
        return self.window

    def lay_out(self, lengths: I64) -> Packs:
        """Which documents of a window, by their lengths, share a pack."""
        return pack(lengths, length=self.spec.length, strategy=self.strategy, overlong=self.spec.overlong)

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        packs = self._read(inputs, cursor, context)
        return Flow(single_items=packs, form=pack_form(inputs), ragged=self.spec.is_ragged)

    def _read(self, inputs: Flow, cursor: Cursor, context: Context) -> Iterator[SingleItem]:
        """The packs of windows, one window after the other."""
        idle, form, reader = Idle(inputs.passes, NO_TOKENS), pack_form(inputs), DocumentReader(self.spec, context)
        windows = single_groups(reader.windows(inputs, self.window), self.window)
        for group in resume_groups(windows, cursor, inputs.skips, self.spec.number, context):
            documents = reader.read(group.inputs)
            layout = self.lay_out(documents.lengths)
            idle.note(len(layout) > 0, group.inputs.cursors[-1])
            cursors, keys = group.cursors_and_keys(len(layout))
            numbers = np.arange(group.delivered, len(layout))
            layout = layout.select(numbers)
            kept = not_left_out(group.inputs.keys[layout.documents], context)
            layout = layout if kept is None else layout.keep(kept)
            packs = make_packs(documents, layout, self.spec, form, context)
            of_packs = zip(packs, map(tuple, cursors[numbers].tolist()), keys[numbers].tolist(), strict=True)
            yield from ((pack, after, key) for pack, after, key in of_packs if pack is not None)

    def counted(self, inputs: CountedItems, cursor: Cursor, context: Context) -> CountedItems:
        return PlannedWindows(inputs, self, cursor[len(inputs.cursor(0)) :], context)

    def describe(self) -> dict[str, Any] | None:
        return self.spec.describe() | {"strategy": self.strategy, "window": self.window}


class PlannedWindows(PlannedPacks[tuple[Packs, list[int]]]):
    """The packs of windows of documents, counted."""

    def __init__(self, inputs: CountedItems, stage: PackWindows, own_numbers: Cursor, context: Context) -> None:
        super().__init__(inputs, stage.spec, stage.window, own_numbers, context)
        self._lay_out = stage.lay_out
        self._plans: dict[int, tuple[Packs, I64]] = {}
        """Of some windows, the layout and the lengths of the documents."""
        self._plans_kept = 1
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
            outputs = len(self._plan(group)[0])
            if self._shared is not None:
                self._shared.put(self._first_row(group), outputs)
        return outputs

    def outputs(self, windows: int) -> list[tuple[int, int]]:
        """The position of the first document of each of the first windows, and its number of packs."""
        return [(self._first_row(window), self._outputs(window)) for window in range(windows)]

    def _plan(self, group: int) -> tuple[Packs, I64]:
        """The layout of a window, and the lengths. A few plans are kept: what is counted is read soon after."""
        if group not in self._plans:
            while len(self._plans) >= self._plans_kept:
                del self._plans[next(iter(self._plans))]
            lengths = self._lengths_of(self._members(group))
            self._plans[group] = self._lay_out(lengths), lengths
        return self._plans[group]

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        self._plans_kept = max(2, DOCUMENTS_PLANNED // self._size)
        flow, read = self._planned(opened, wanted, self._members(0))
        form = pack_form(flow)
        packs = (
            (pack, (), key)
            for (layout, keys), documents in read
            for pack, key in zip(make_packs(documents, layout, self._spec, form, self._context), keys, strict=True)
        )
        return Flow(single_items=packs, form=form, ragged=self._spec.is_ragged)

    def _plans_of(self, numbers: I64) -> Iterator[PackPlan[tuple[Packs, list[int]]]]:
        """For each window of these packs, their documents, layout and keys. Windows are asked for in order."""
        for group, in_group in self._by_group(numbers):
            (layout, lengths), counted = self._plan(group), self._ends[group] - self._before(group)
            if len(layout) != counted:
                raise DataChangedError(
                    f"pack: a window has {count('pack', len(layout))}, and {self._shared} says {counted:,}. That file "
                    "is damaged. Delete it: it is made again."
                )
            layout = layout.select(in_group)
            documents, inside = np.unique(layout.documents, return_inverse=True)
            of_packs = replace(layout, documents=inside), self._keys(group, in_group).tolist()
            yield PackPlan(group * self._size + documents, lengths[documents], of_packs)

    def inputs_of(self, numbers: I64) -> Pieces:
        pieces = [Pieces(*[numbers[:0]] * 4)]
        done = 0
        for group, in_group in self._by_group(numbers):
            layout = self._plan(group)[0].select(in_group)
            documents = group * self._size + layout.documents
            pieces.append(Pieces(done + layout.owners, documents, layout.starts, layout.stops))
            done += len(in_group)
        return Pieces._make(np.concatenate(columns) for columns in zip(*pieces, strict=True))

    def outputs_of(self, inputs: I64) -> I64:
        found = [inputs[:0]]
        for number in inputs.tolist():
            group, inside = divmod(number, self._size)
            self._counted_until(group)
            layout, _ = self._plan(group)
            found.append(self._before(group) + layout.owners[layout.documents == inside] - self._delivered)
        return np.unique(np.concatenate(found))

    def keys(self, numbers: I64) -> I64:
        keys = (self._keys(group, in_group) for group, in_group in self._by_group(numbers))
        return np.concatenate([np.empty(0, np.int64), *keys])

    def _keys(self, group: int, in_group: I64) -> I64:
        return keys_inside(self._inputs.keys(np.array([group * self._size])), in_group)
