"""Packs of windows of documents, read one window after the other, or planned from the lengths that a survey knows.

Where a document goes depends on the lengths in its window alone. So all readers make the same plan of a window, and
each reads only the documents of the packs that it delivers. Both ways of reading make the same packs.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from midepoch._common.text import count
from midepoch._common.types import I64
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
    Documents,
    not_left_out,
    read_documents,
    read_planned,
    runs_of_windows,
)
from midepoch.stages.pack.spec import PackSpec, make_pack, pack_form
from midepoch.stages.pack.strategies import Packs, cumulative
from midepoch.values.collate import join_others
from midepoch.values.forms import Form

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
        idle.note(len(layout) > 0)
        cursors, keys = group.cursors_and_keys(len(layout))
        numbers = np.arange(group.delivered, len(layout))
        layout = layout.select(numbers)
        kept = not_left_out(group.inputs.keys[layout.documents], context)
        packs = make_packs(documents, layout if kept is None else layout.keep(kept), spec, form)
        of_packs = zip(packs, map(tuple, cursors[numbers].tolist()), keys[numbers].tolist(), strict=True)
        yield from ((pack, after, key) for pack, after, key in of_packs if pack is not None)


def make_packs(documents: Documents, layout: Packs, spec: PackSpec, form: Form) -> Iterator[dict[str, Any] | None]:
    """The packs of a layout of these documents; None for one that has no pieces."""
    begins = (np.cumsum(documents.lengths) - documents.lengths)[layout.documents]
    starts, stops = (begins + layout.starts).tolist(), (begins + layout.stops).tolist()
    sizes, inside = layout.stops - layout.starts, layout.documents.tolist()
    for first, last in pairwise(layout.bounds.tolist()):
        if first == last:
            yield None
            continue
        pieces = {
            name: [column[starts[piece] : stops[piece]] for piece in range(first, last)]
            for name, column in documents.columns.items()
        }
        pack = make_pack(pieces, cumulative(sizes[first:last]), spec, form)
        for name, values in documents.others.items():
            pack[name] = join_others(name, [values[document] for document in inside[first:last]], form)
        yield pack


class WindowPlan(NamedTuple):
    """The layout of one window."""

    layout: Packs
    lengths: I64
    """The lengths of its documents."""


class WindowJob(NamedTuple):
    """Some packs of one window, and the documents in them."""

    documents: I64
    """The numbers of the documents."""
    lengths: I64
    layout: Packs
    """The packs, made of these documents alone."""
    keys: list[int]
    """The keys of the packs."""


class PlannedWindows(Groups):
    """The packs of windows of documents, counted."""

    def __init__(
        self, inputs: CountedItems, spec: PackSpec, lay_out: LayOut, window: int, own_numbers: Cursor, context: Context
    ) -> None:
        super().__init__(inputs, window, own_numbers)
        self.batched, self.members = False, 1
        self._spec, self._lay_out, self._context = spec, lay_out, context
        self._plans: dict[int, WindowPlan] = {}
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

    def start(self, window: int) -> Cursor:
        """The cursor of the documents at the start of a window."""
        return self._inputs.cursor(window * self._size)

    def known_outputs(self, window: int) -> int | None:
        """The number of packs in a window, if any process has counted them."""
        return None if self._shared is None else self._shared.get(self.start(window)[0])

    def _outputs(self, group: int) -> int:
        outputs = self.known_outputs(group)
        if outputs is None:
            outputs = len(self._plan(group).layout)
            if self._shared is not None:
                self._shared.put(self.start(group)[0], outputs)
        return outputs

    def outputs(self, windows: int) -> list[tuple[int, int]]:
        """The position of the first document of each of the first windows, and its number of packs."""
        return [(self.start(window)[0], self._outputs(window)) for window in range(windows)]

    def _plan(self, group: int) -> WindowPlan:
        """The layout of a window. The first ones are kept, because they are needed first."""
        if group in self._plans:
            return self._plans[group]
        members = self._members(group)
        lengths = self._inputs.lengths(members) if len(members) else members
        lengths = lengths + (self._spec.eos is not None)
        plan = WindowPlan(self._lay_out(lengths), lengths)
        if len(self._plans) < self._plans_kept:
            self._plans[group] = plan
        return plan

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        for check in self._own_numbers[1:]:
            compare_check(check, self._inputs.keys(self._members(0)), self._spec.number, self._context)
        self._plans_kept = max(2, DOCUMENTS_PLANNED // self._size)
        jobs = (self._jobs(numbers) for numbers in wanted)
        flow, read = read_planned(self._inputs, opened, jobs, self._spec, self._context)
        form = pack_form(flow)
        packs = (
            (pack, (), key)
            for job, documents in read
            for pack, key in zip(make_packs(documents, job.layout, self._spec, form), job.keys, strict=True)
        )
        return Flow(single_items=packs, form=form, ragged=self._spec.is_ragged)

    def _jobs(self, numbers: I64) -> Iterator[WindowJob]:
        """What is needed to make these packs. Windows are asked for in order."""
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
            keys = self._keys(group, in_group).tolist()
            yield WindowJob(group * self._size + documents, lengths[documents], replace(layout, documents=inside), keys)

    def inputs_of(self, numbers: I64) -> Pieces:
        pieces = [Pieces(*[numbers[:0]] * 4)]
        done = 0
        for group, in_group in self._by_group(numbers):
            layout = self._plan(group).layout.select(in_group)
            items = np.repeat(np.arange(done, done + len(in_group)), np.diff(layout.bounds))
            pieces.append(Pieces(items, group * self._size + layout.documents, layout.starts, layout.stops))
            done += len(in_group)
        return Pieces._make(np.concatenate(columns) for columns in zip(*pieces, strict=True))

    def outputs_of(self, inputs: I64) -> I64:
        found = [inputs[:0]]
        for number in inputs.tolist():
            group, inside = divmod(number, self._size)
            self._counted_until(group)
            layout = self._plan(group).layout
            owners = np.searchsorted(layout.bounds, np.flatnonzero(layout.documents == inside), "right") - 1
            found.append(self._before(group) + owners - self._delivered)
        return np.unique(np.concatenate(found))

    def keys(self, numbers: I64) -> I64:
        keys = (self._keys(group, in_group) for group, in_group in self._by_group(numbers))
        return np.concatenate([np.empty(0, np.int64), *keys])

    def _keys(self, group: int, in_group: I64) -> I64:
        return keys_inside(self._inputs.keys(np.array([group * self._size])), in_group)
