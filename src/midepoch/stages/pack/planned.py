"""Packs that are planned: where every document goes follows from the lengths that a survey knows.

All readers make the same plan, and each takes only the documents of the packs that it delivers. The packs are those
that the stages make without a survey. What is read is compared with the survey.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from midepoch._common.hashing import keys_of, mix64
from midepoch._common.text import count
from midepoch._common.types import I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import DataChangedError, SurveyMismatchError
from midepoch.stages.counted import CHUNK, CountedItems, Groups, Wanted
from midepoch.stages.flow import Context, Flow, RowRun, SingleItem, concat_runs
from midepoch.stages.pack.documents import Documents, read_documents, row_run_of, select_pack_columns
from midepoch.stages.pack.items import StreamCuts, make_pack, pack_form, seqlens_between, stacked_packs
from midepoch.stages.pack.spec import PackSpec
from midepoch.stages.pack.strategies import Packs, Strategy, cumulative, pack
from midepoch.stages.stacked import StackedRun
from midepoch.stages.traced import TracedRows, join_traced
from midepoch.values.collate import join_others
from midepoch.values.forms import Form

DOCUMENTS_PLANNED = 1 << 15
"""Of a lane that is read, the plans of about this many documents are kept from counting until reading."""
PACKS_AT_ONCE = 1 << 10
"""The documents of this many packs of a stream are looked up together for their keys."""


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
        self, inputs: CountedItems, spec: PackSpec, strategy: Strategy, window: int, delivered: int, context: Context
    ) -> None:
        super().__init__(inputs, window, delivered)
        self._spec, self._strategy, self._context = spec, strategy, context
        self._plans: dict[int, WindowPlan] = {}
        self._last_costs: tuple[int, I64] | None = None
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
        sizes = packs.bounds[numbers + 1] - packs.bounds[numbers]
        pieces = np.repeat(packs.bounds[numbers + 1] - np.cumsum(sizes), sizes) + np.arange(sizes.sum())
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
        runs = _runs_of_jobs(flow, jobs, lambda job: len(job.documents), self._spec, self._context)
        packs = (item for job, run in runs for item in self._packs(job, run, form))
        return Flow(single_items=packs, form=form, ragged=self._spec.is_ragged)

    def costs(self, numbers: I64) -> I64:
        costs = [np.empty(0, np.int64)]
        for group, in_group in self._by_group(numbers):
            if self._last_costs is None or self._last_costs[0] != group:
                packs = self._plan(group).packs
                self._last_costs = group, np.add.reduceat((packs.stops - packs.starts) ** 2, packs.bounds[:-1])
            costs.append(self._last_costs[1][in_group])
        return np.concatenate(costs)

    def trace(self, numbers: I64) -> TracedRows:
        traced = []
        for group, in_group in self._by_group(numbers):
            job, before = self._job(group, in_group), self._before(group) - self._delivered
            packs, documents = job.plan.packs, job.plan.packs.documents[job.pieces]
            owners = np.searchsorted(packs.bounds, job.pieces, "right") - 1
            rows = self._inputs.trace(group * self._size + job.documents)
            of_pieces = rows.take(np.searchsorted(job.documents, documents))
            traced.append(
                of_pieces.with_columns(
                    items=np.searchsorted(numbers, owners + before),
                    documents=job.pieces - packs.bounds[owners],
                    starts=packs.starts[job.pieces],
                    stops=packs.stops[job.pieces],
                )
            )
        return join_traced(traced)

    def find(self, file: str, row: int) -> I64:
        found = [np.empty(0, np.int64)]
        for number in self._inputs.find(file, row).tolist():
            group, inside = divmod(number, self._size)
            self._counted_until(group)
            packs = self._plan(group).packs
            owners = np.searchsorted(packs.bounds, np.flatnonzero(packs.documents == inside), "right") - 1
            found.append(self._before(group) + owners - self._delivered)
        numbers = np.unique(np.concatenate(found))
        return numbers[numbers >= 0]

    def keys(self, numbers: I64) -> I64:
        keys = [np.empty(0, np.int64)]
        for group, in_group in self._by_group(numbers):
            keys.append(np.array(_pack_keys(self._inputs.keys(np.array([group * self._size])), in_group)))
        return np.concatenate(keys)

    def _packs(self, job: WindowJob, run: RowRun, form: Form) -> Iterator[SingleItem]:
        (packs, lengths), pieces = job.plan, job.pieces
        numbers = job.group * self._size + job.documents
        documents = _read_checked(run, lengths[job.documents], self._inputs, numbers, self._spec, self._context)
        inside = np.searchsorted(job.documents, packs.documents[pieces])
        begins = (np.cumsum(documents.lengths) - documents.lengths)[inside]
        starts, stops = (begins + packs.starts[pieces]).tolist(), (begins + packs.stops[pieces]).tolist()
        sizes, inside = packs.stops[pieces] - packs.starts[pieces], inside.tolist()
        ends = np.cumsum(packs.bounds[job.numbers + 1] - packs.bounds[job.numbers]).tolist()
        keys = _pack_keys(self._inputs.keys(np.array([job.group * self._size])), job.numbers)
        for first, end, key in zip([0, *ends], ends, keys, strict=False):
            arrays = {
                name: [column[starts[piece] : stops[piece]] for piece in range(first, end)]
                for name, column in documents.columns.items()
            }
            item = make_pack(arrays, cumulative(sizes[first:end]), self._spec, form)
            for name, values in documents.others.items():
                item[name] = join_others(name, [values[document] for document in inside[first:end]], form)
            yield item, (), key


class StreamJob(NamedTuple):
    """Consecutive documents of a stream, or several runs of them, and the packs to cut from them."""

    documents: I64
    """The numbers of the documents that have tokens to pack."""
    lengths: I64
    begins: I64
    """The position in the stream of each document's first token."""
    starts: I64
    """The position of each pack's first token."""
    stops: I64
    """The position after each pack's last token."""

    def pieces(self) -> "StreamPieces":
        """The pieces of documents in the packs."""
        ends = self.begins + self.lengths
        firsts = np.searchsorted(ends, self.starts, "right")
        sizes = np.searchsorted(ends, self.stops, "left") - firsts + 1
        items = np.repeat(np.arange(len(self.starts)), sizes)
        places = np.arange(len(items)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        documents = firsts[items] + places
        begins = self.begins[documents]
        starts = np.maximum(self.starts[items], begins) - begins
        stops = np.minimum(self.stops[items], ends[documents]) - begins
        return StreamPieces(items, places, documents, starts, stops)


class StreamPieces(NamedTuple):
    """The pieces of documents in some packs of a stream: which pack, the place in it, which document, which tokens."""

    items: I64
    places: I64
    documents: I64
    starts: I64
    stops: I64


class PlannedStream(CountedItems):
    """The packs of one stream of tokens. The tokens are counted in chunks of documents, each when it is needed."""

    def __init__(self, inputs: CountedItems, spec: PackSpec, delivered: int, context: Context) -> None:
        """``delivered`` tokens of the first document come before the first pack."""
        self._inputs, self._spec, self._delivered, self._context = inputs, spec, delivered, context
        self.is_endless = inputs.is_endless
        self._ends: list[int] = []
        """For each chunk of documents that is counted, the number of tokens up to its end."""
        self._complete = False
        self._last: tuple[int, I64] = (-1, np.empty(0, np.int64))

    def _tokens_until(self, tokens: int) -> bool:
        """Count chunks until there are more than ``tokens`` tokens. False if there are not."""
        while not self._complete and (not self._ends or self._ends[-1] <= tokens):
            chunk = len(self._ends)
            self._complete = not self._inputs.has((chunk + 1) * CHUNK)
            self._ends.append(self._before(chunk) + int(self._lengths(chunk).sum()))
        return self._ends[-1] > tokens

    def _before(self, chunk: int) -> int:
        return self._ends[chunk - 1] if chunk else 0

    def _lengths(self, chunk: int) -> I64:
        """The tokens that each document of a chunk adds to the stream."""
        if self._last[0] != chunk:
            begin, end = chunk * CHUNK, (chunk + 1) * CHUNK
            numbers = np.arange(begin, end if self._inputs.has(end - 1) else max(begin, self._inputs.total()))
            lengths = self._inputs.lengths(numbers) if len(numbers) else numbers
            lengths = lengths + (self._spec.eos is not None)
            if self._spec.overlong == "drop":
                lengths = np.where(lengths > self._spec.length, 0, lengths)
            self._last = chunk, lengths
        return self._last[1]

    def has(self, number: int) -> bool:
        return self._tokens_until(self._delivered + number * self._spec.length)

    def total(self) -> int:
        self._inputs.total()  # raises if there is no end
        while not self._complete:
            self._tokens_until(self._ends[-1] if self._ends else 0)
        return max(0, -(-(self._ends[-1] - self._delivered) // self._spec.length))

    def cursor(self, items: int) -> Cursor:
        if items == 0:
            return (*self._inputs.cursor(0), self._delivered)
        end = self._delivered + items * self._spec.length
        if not self._tokens_until(end):
            end = min(end, self._ends[-1])
        chunk = bisect_left(self._ends, end)
        ends = np.cumsum(self._lengths(chunk)) + self._before(chunk)
        inside = int(np.searchsorted(ends, end, "left"))
        document = chunk * CHUNK + inside
        if ends[inside] == end:
            return (*self._inputs.cursor(document + 1), 0)
        return (*self._inputs.cursor(document), end - int(ends[inside] - self._lengths(chunk)[inside]))

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        jobs: deque[StreamJob] = deque()

        def inputs() -> Iterator[I64]:
            for numbers in wanted:
                if not len(numbers):
                    yield numbers
                    continue
                jobs.append(self._job(numbers))
                yield jobs[-1].documents

        flow = self._inputs.flow(opened, inputs())
        runs = _runs_of_jobs(flow, jobs, lambda job: len(job.documents), self._spec, self._context)
        packs = (stacked for job, run in runs for stacked in self._packs(job, run))
        return Flow(stacked_runs=packs, form=pack_form(flow), ragged=lambda name: name == "cu_seqlens")

    def _job(self, numbers: I64) -> StreamJob:
        """The documents that hold the tokens of these packs."""
        self.has(int(numbers[-1]) + 1)
        starts = self._delivered + numbers * self._spec.length
        stops = np.minimum(starts + self._spec.length, self._ends[-1])
        documents, lengths, begins = [], [], []
        for chunk in range(bisect_right(self._ends, starts[0]), bisect_left(self._ends, stops[-1]) + 1):
            here = (stops > self._before(chunk)) & (starts < self._ends[chunk])
            if not here.any():
                continue
            of_chunk = self._lengths(chunk)
            ends = np.cumsum(of_chunk) + self._before(chunk)
            # The packs are apart from each other, and two of them may share a document.
            changes = np.bincount(np.searchsorted(ends, starts[here], "right"), minlength=len(ends) + 1)
            lasts = np.minimum(np.searchsorted(ends, stops[here], "left"), len(ends) - 1)
            changes -= np.bincount(lasts + 1, minlength=len(ends) + 1)
            inside = np.flatnonzero((np.cumsum(changes)[:-1] > 0) & (of_chunk > 0))
            documents.append(chunk * CHUNK + inside)
            lengths.append(of_chunk[inside])
            begins.append(ends[inside] - of_chunk[inside])
        return StreamJob(np.concatenate(documents), np.concatenate(lengths), np.concatenate(begins), starts, stops)

    def costs(self, numbers: I64) -> I64:
        pieces, costs = self._job(numbers).pieces(), np.zeros(len(numbers), np.int64)
        np.add.at(costs, pieces.items, (pieces.stops - pieces.starts) ** 2)
        return costs

    def trace(self, numbers: I64) -> TracedRows:
        job = self._job(numbers)
        pieces = job.pieces()
        return (
            self._inputs.trace(job.documents)
            .take(pieces.documents)
            .with_columns(items=pieces.items, documents=pieces.places, starts=pieces.starts, stops=pieces.stops)
        )

    def find(self, file: str, row: int) -> I64:
        found = [np.empty(0, np.int64)]
        for number in self._inputs.find(file, row).tolist():
            chunk, inside = divmod(number, CHUNK)
            while len(self._ends) <= chunk:
                self._tokens_until(self._ends[-1] if self._ends else 0)
            lengths = self._lengths(chunk)
            end = self._before(chunk) + int(lengths[: inside + 1].sum()) - self._delivered
            first = max(0, end - int(lengths[inside]))
            found.append(np.arange(first // self._spec.length, -(-end // self._spec.length) if end > first else 0))
        return np.unique(np.concatenate(found))

    def keys(self, numbers: I64) -> I64:
        keys = [np.empty(0, np.int64)]
        for begin in range(0, len(numbers), PACKS_AT_ONCE):
            job = self._job(numbers[begin : begin + PACKS_AT_ONCE])
            firsts = np.searchsorted(job.begins + job.lengths, job.starts, "right")
            documents = self._inputs.keys(job.documents[firsts])
            keys.append(np.array(_pack_keys(documents, job.starts - job.begins[firsts])))
        return np.concatenate(keys)

    def _packs(self, job: StreamJob, run: RowRun) -> Iterator[StackedRun]:
        documents = _read_checked(run, job.lengths, self._inputs, job.documents, self._spec, self._context)
        ends_in_stream = job.begins + job.lengths
        shifts = np.cumsum(job.lengths) - ends_in_stream  # from the stream to what was read of it
        firsts = np.searchsorted(ends_in_stream, job.starts, "right")
        lasts = np.searchsorted(ends_in_stream, job.stops, "left")
        begins, ends = (job.starts + shifts[firsts]).tolist(), (job.stops + shifts[lasts]).tolist()
        keys = _pack_keys(run.keys[firsts], job.starts - job.begins[firsts])
        all_seqlens = seqlens_between(ends_in_stream, (job.starts, job.stops), (firsts, lasts))
        cuts = StreamCuts(begins, ends, all_seqlens, [()] * len(keys), keys)
        yield from stacked_packs(documents.columns, cuts, self._spec)


def _pack_keys(documents: I64, numbers: I64) -> list[int]:
    """The keys of packs, each from the key of its document and the pack's number after the start of that."""
    keys: list[int] = mix64(keys_of(documents.tolist()) + numbers.astype(np.uint64)).astype(np.int64).tolist()
    return keys


def _read_checked(
    run: RowRun, expected: I64, inputs: CountedItems, numbers: I64, spec: PackSpec, context: Context
) -> Documents:
    """The documents of a run, the inputs with these ``numbers``, if they have the lengths that the survey says."""
    documents = read_documents(run, spec, context)
    for number in np.flatnonzero(documents.lengths != expected).tolist()[:1]:
        end = spec.eos is not None
        row = inputs.trace(numbers[number : number + 1])
        raise SurveyMismatchError(
            f"pack: a document has {count('token', int(documents.lengths[number]) - end)}, and the survey says "
            f"{int(expected[number]) - end:,}, at row {row.rows[0]:,} of {row.files[0]}. A function before pack has "
            "changed, or does not always return the same. After a change pass another version to survey(version=...)."
        )
    return documents


def _runs_of_jobs(
    flow: Flow, jobs: deque[Any], size: Callable[[Any], int], spec: PackSpec, context: Context
) -> Iterator[tuple[Any, RowRun]]:
    """Each job with its rows. The flow adds jobs as it asks for rows, so the first row comes before the first job."""
    if flow.row_runs is None:
        singles = flow.as_single_items()
        for first in singles:
            job = jobs.popleft()
            yield job, row_run_of([first, *islice(singles, size(job) - 1)], spec, context)
        return
    waiting: list[RowRun] = []
    rows = 0
    for run in select_pack_columns(flow.row_runs, spec):
        waiting.append(run)
        rows += len(run)
        while jobs and rows and rows >= size(jobs[0]):
            job = jobs.popleft()
            joined = waiting[0] if len(waiting) == 1 else concat_runs(waiting)
            needed = size(job)
            yield job, joined.slice(0, needed)
            rows -= needed
            waiting = [joined.slice(needed, len(joined))] if rows else []
