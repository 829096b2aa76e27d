"""Packs of windows that are planned: where every document goes follows from the lengths that a survey knows.

All readers make the same plan, and each takes only the documents of the packs that it delivers. The packs are those
that the stages make without a survey. :mod:`midepoch.stages.pack.planned_stream` does the same for one stream.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from midepoch._common.text import count
from midepoch._common.types import I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import DataChangedError
from midepoch.stages.counted import CountedItems, Groups, Pieces, Wanted
from midepoch.stages.flow import Context, Flow, RowRun, SingleItem, compare_check
from midepoch.stages.pack.items import make_pack, pack_form
from midepoch.stages.pack.planned_reading import pack_keys, read_checked, runs_of_jobs
from midepoch.stages.pack.spec import PackSpec
from midepoch.stages.pack.strategies import Packs, Strategy, cumulative, pack
from midepoch.values.collate import join_others
from midepoch.values.forms import Form

DOCUMENTS_PLANNED = 1 << 15
"""Of a lane that is read, the plans of about this many documents are kept from counting until reading."""


class WindowPlan(NamedTuple):
    """The layout of one window."""

    packs: Packs
    lengths: I64
    """The lengths of its documents."""


class WindowJob(NamedTuple):
    """The packs to make of one window."""

    group: int
    plan: WindowPlan
    numbers: I64
    """The numbers of the packs in the window."""
    pieces: I64
    """The numbers of their pieces."""
    documents: I64
    """The numbers, in the window, of the documents in these packs."""


class PlannedWindows(Groups):
    """The packs of windows of documents."""

    def __init__(
        self,
        inputs: CountedItems,
        spec: PackSpec,
        strategy: Strategy,
        window: int,
        own_numbers: Cursor,
        context: Context,
    ) -> None:
        super().__init__(inputs, window, own_numbers)
        self.batched, self.members = False, 1
        self._spec, self._strategy, self._context = spec, strategy, context
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
            outputs = len(self._plan(group).packs)
            if self._shared is not None:
                self._shared.put(self.start(group)[0], outputs)
        return outputs

    def outputs(self, windows: int) -> list[tuple[int, int]]:
        """The position of the first document of each of the first windows, and its number of packs."""
        return [(self.start(window)[0], self._outputs(window)) for window in range(windows)]

    def _job(self, group: int, numbers: I64) -> WindowJob:
        """What is needed to make these packs of a window. Its windows are asked for in order."""
        plan = self._plan(group)
        packs, counted = plan.packs, self._ends[group] - self._before(group)
        if len(packs) != counted:
            raise DataChangedError(
                f"pack: a window has {count('pack', len(packs))}, and {self._shared} says {counted:,}. That file is "
                "damaged. Delete it: it is made again."
            )
        for earlier in [number for number in self._plans if number < group]:
            del self._plans[earlier]
        pieces = packs.pieces_of(numbers)
        return WindowJob(group, plan, numbers, pieces, np.unique(packs.documents[pieces]))

    def _plan(self, group: int) -> WindowPlan:
        """The layout of a window. The first ones are kept, because they are needed first."""
        if group in self._plans:
            return self._plans[group]
        members = self._members(group)
        lengths = self._inputs.lengths(members) if len(members) else members
        lengths = lengths + (self._spec.eos is not None)
        packs = pack(lengths, length=self._spec.length, strategy=self._strategy, overlong=self._spec.overlong)
        plan = WindowPlan(packs, lengths)
        if len(self._plans) < self._plans_kept:
            self._plans[group] = plan
        return plan

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        for check in self._own_numbers[1:]:
            compare_check(check, self._inputs.keys(self._members(0)), self._spec.number, self._context)
        jobs: deque[WindowJob] = deque()
        self._plans_kept = max(2, DOCUMENTS_PLANNED // self._size)

        def inputs() -> Iterator[I64]:
            for numbers in wanted:
                if not len(numbers):
                    yield numbers
                    continue
                for group, in_group in self._by_group(numbers):
                    jobs.append(self._job(group, in_group))
                    yield group * self._size + jobs[-1].documents

        flow = self._inputs.flow(opened, inputs())
        form = pack_form(flow)
        runs = runs_of_jobs(flow, jobs, lambda job: len(job.documents), self._spec, self._context)
        packs = (item for job, run in runs for item in self._packs(job, run, form))
        return Flow(single_items=packs, form=form, ragged=self._spec.is_ragged)

    def inputs_of(self, numbers: I64) -> Pieces:
        pieces = [Pieces(*[numbers[:0]] * 4)]
        for group, in_group in self._by_group(numbers):
            packs = self._plan(group).packs
            inside = packs.pieces_of(in_group)
            owners = np.searchsorted(packs.bounds, inside, "right") - 1
            items = np.searchsorted(numbers, owners + self._before(group) - self._delivered)
            documents = group * self._size + packs.documents[inside]
            pieces.append(Pieces(items, documents, packs.starts[inside], packs.stops[inside]))
        return Pieces._make(np.concatenate(columns) for columns in zip(*pieces, strict=True))

    def outputs_of(self, inputs: I64) -> I64:
        found = [inputs[:0]]
        for number in inputs.tolist():
            group, inside = divmod(number, self._size)
            self._counted_until(group)
            packs = self._plan(group).packs
            owners = np.searchsorted(packs.bounds, np.flatnonzero(packs.documents == inside), "right") - 1
            found.append(self._before(group) + owners - self._delivered)
        return np.unique(np.concatenate(found))

    def keys(self, numbers: I64) -> I64:
        keys = [np.empty(0, np.int64)]
        for group, in_group in self._by_group(numbers):
            keys.append(np.array(pack_keys(self._inputs.keys(np.array([group * self._size])), in_group)))
        return np.concatenate(keys)

    def _packs(self, job: WindowJob, run: RowRun, form: Form) -> Iterator[SingleItem]:
        (packs, lengths), pieces = job.plan, job.pieces
        numbers = job.group * self._size + job.documents
        documents = read_checked(run, lengths[job.documents], self._inputs, numbers, self._spec, self._context)
        inside = np.searchsorted(job.documents, packs.documents[pieces])
        begins = (np.cumsum(documents.lengths) - documents.lengths)[inside]
        starts, stops = (begins + packs.starts[pieces]).tolist(), (begins + packs.stops[pieces]).tolist()
        sizes, inside = packs.stops[pieces] - packs.starts[pieces], inside.tolist()
        ends = np.cumsum(packs.bounds[job.numbers + 1] - packs.bounds[job.numbers]).tolist()
        keys = pack_keys(self._inputs.keys(np.array([job.group * self._size])), job.numbers)
        for first, end, key in zip([0, *ends], ends, keys, strict=False):
            arrays = {
                name: [column[starts[piece] : stops[piece]] for piece in range(first, end)]
                for name, column in documents.columns.items()
            }
            item = make_pack(arrays, cumulative(sizes[first:end]), self._spec, form)
            for name, values in documents.others.items():
                item[name] = join_others(name, [values[document] for document in inside[first:end]], form)
            yield item, (), key
