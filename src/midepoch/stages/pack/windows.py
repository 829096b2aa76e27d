"""Packs of windows of documents, read one window after the other, or planned from the lengths that a survey knows.

Where a document goes depends on the lengths in its window alone. So all readers make the same plan of a window, and
each reads only the documents of the packs that it delivers. Both ways of reading make the same packs.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from midepoch._common.checks import count
from midepoch._common.hashing import I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import DataChangedError
from midepoch.stages.counted import CountedItems, Groups, Pieces, Wanted
from midepoch.stages.flow import (
    Context,
    Flow,
    Idle,
    SingleItem,
    compare_check,
    keys_inside,
    resume_groups,
    single_groups,
)
from midepoch.stages.pack.documents import (
    NO_TOKENS,
    Plan,
    read_documents,
    read_planned,
    runs_of_windows,
)
from midepoch.stages.pack.items import make_packs, not_left_out, pack_form
from midepoch.stages.pack.spec import PackSpec
from midepoch.stages.pack.strategies import Packs

DOCUMENTS_PLANNED = 1 << 15
"""Of a lane that is read, the plans of about this many documents are kept from counting until reading."""

LayOut = Callable[[I64], Packs]
"""Takes the lengths of the documents of a window, and says which of them share a pack."""


def read_windows(
    inputs: Flow, cursor: Cursor, window: int, lay_out: LayOut, spec: PackSpec, context: Context
) -> Iterator[SingleItem]:
    """The packs of windows of ``window`` documents, from the cursor on."""
    idle, form = Idle(inputs.passes, NO_TOKENS), pack_form(inputs)
    windows = single_groups(runs_of_windows(inputs, window, spec, context), window)
    for group in resume_groups(windows, cursor, inputs.skips, spec.number, context):
        documents = read_documents(group.inputs, spec, context)
        layout = lay_out(documents.lengths)
        idle.note(len(layout) > 0, group.inputs.cursors[-1])
        cursors, keys = group.cursors_and_keys(len(layout))
        numbers = np.arange(group.delivered, len(layout))
        layout = layout.select(numbers)
        kept = not_left_out(group.inputs.keys[layout.documents], context)
        packs = make_packs(documents, layout if kept is None else layout.keep(kept), spec, form)
        of_packs = zip(packs, map(tuple, cursors[numbers].tolist()), keys[numbers].tolist(), strict=True)
        yield from ((pack, after, key) for pack, after, key in of_packs if pack is not None)


class PlannedWindows(Groups):
    """The packs of windows of documents, counted."""

    def __init__(
        self, inputs: CountedItems, spec: PackSpec, lay_out: LayOut, window: int, own_numbers: Cursor, context: Context
    ) -> None:
        super().__init__(inputs, window, own_numbers)
        self.batched, self.members = False, 1
        self._spec, self._lay_out, self._context = spec, lay_out, context
        self._plans: dict[int, tuple[Packs, I64]] = {}
        """Of some windows, the layout and the lengths of the documents."""
        self._plans_kept = 1
        # Numbers are shared by the position of a window's first row, which must be all that its cursor has.
        shared = context.output_counts is not None and len(inputs.cursor(0)) == 1
        self._shared = context.output_counts() if shared and context.output_counts is not None else None

    @property
    def is_shared(self) -> bool:
        """True if processes share the numbers of packs."""
        return self._shared is not None

    @property
    def size(self) -> int:
        """The number of documents in a window."""
        return self._size

    def windows(self) -> int:
        """The number of windows."""
        return max(1, -(-self._inputs.total() // self._size))

    def documents(self, windows: range) -> int:
        """The number of documents in some windows."""
        return min(windows.stop * self._size, self._inputs.total()) - windows.start * self._size

    def start(self, window: int) -> Cursor:
        """The cursor of the documents at the start of a window."""
        return self._inputs.cursor(window * self._size)

    def known_outputs(self, window: int) -> int | None:
        """The number of packs in a window, if any process has counted them."""
        return None if self._shared is None else self._shared.get(self.start(window)[0])

    def _outputs(self, group: int) -> int:
        outputs = self.known_outputs(group)
        if outputs is None:
            outputs = len(self._plan(group)[0])
            if self._shared is not None:
                self._shared.put(self.start(group)[0], outputs)
        return outputs

    def outputs(self, windows: int) -> list[tuple[int, int]]:
        """The position of the first document of each of the first windows, and its number of packs."""
        return [(self.start(window)[0], self._outputs(window)) for window in range(windows)]

    def _plan(self, group: int) -> tuple[Packs, I64]:
        """The layout of a window, and the lengths. The first plans are kept, because they are needed first."""
        if group in self._plans:
            return self._plans[group]
        members = self._members(group)
        lengths = self._inputs.lengths(members) if len(members) else members
        lengths = lengths + (self._spec.eos is not None)
        plan = self._lay_out(lengths), lengths
        if len(self._plans) < self._plans_kept:
            self._plans[group] = plan
        return plan

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        for check in self._own_numbers[1:]:
            compare_check(check, self._inputs.keys(self._members(0)), self._spec.number, self._context)
        self._plans_kept = max(2, DOCUMENTS_PLANNED // self._size)
        plans = (self._plans_of(numbers) for numbers in wanted)
        flow, read = read_planned(self._inputs, opened, plans, self._spec, self._context)
        form = pack_form(flow)
        packs = (
            (pack, (), key)
            for (layout, keys), documents in read
            for pack, key in zip(make_packs(documents, layout, self._spec, form), keys, strict=True)
        )
        return Flow(single_items=packs, form=form, ragged=self._spec.is_ragged)

    def _plans_of(self, numbers: I64) -> Iterator[Plan[tuple[Packs, list[int]]]]:
        """For each window of these packs, their documents, layout and keys. Windows are asked for in order."""
        for group, in_group in self._by_group(numbers):
            (layout, lengths), counted = self._plan(group), self._ends[group] - self._before(group)
            if len(layout) != counted:
                raise DataChangedError(
                    f"pack: a window has {count('pack', len(layout))}, and {self._shared} says {counted:,}. That file "
                    "is damaged. Delete it: it is made again."
                )
            for earlier in [number for number in self._plans if number < group]:
                del self._plans[earlier]
            layout = layout.select(in_group)
            documents, inside = np.unique(layout.documents, return_inverse=True)
            of_packs = replace(layout, documents=inside), self._keys(group, in_group).tolist()
            yield Plan(group * self._size + documents, lengths[documents], of_packs)

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
