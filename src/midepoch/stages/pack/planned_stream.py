"""Packs of one stream of tokens that are planned: the lengths that a survey knows say which documents each needs."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from midepoch._common.types import I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.stages.counted import CHUNK, CountedItems, CountedOutputs, Pieces, Wanted
from midepoch.stages.flow import Context, Flow, RowRun, compare_check
from midepoch.stages.pack.items import StreamCuts, pack_form, seqlens_between, stacked_packs
from midepoch.stages.pack.planned_reading import pack_keys, read_checked, runs_of_jobs
from midepoch.stages.pack.spec import PackSpec
from midepoch.stages.stacked import StackedRun

PACKS_AT_ONCE = 1 << 10
"""The documents of this many packs of a stream are looked up together for their keys."""


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

    def pieces(self) -> Pieces:
        """The pieces of documents in the packs."""
        ends = self.begins + self.lengths
        firsts = np.searchsorted(ends, self.starts, "right")
        sizes = np.searchsorted(ends, self.stops, "left") - firsts + 1
        items = np.repeat(np.arange(len(self.starts)), sizes)
        documents = firsts[items] + np.arange(len(items)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        begins = self.begins[documents]
        starts = np.maximum(self.starts[items], begins) - begins
        stops = np.minimum(self.stops[items], ends[documents]) - begins
        return Pieces(items, self.documents[documents], starts, stops)


class PlannedStream(CountedOutputs):
    """The packs of one stream of tokens. The tokens are counted in chunks of documents, each when it is needed."""

    def __init__(self, inputs: CountedItems, spec: PackSpec, own_numbers: Cursor, context: Context) -> None:
        """``own_numbers`` are the stage's own in the cursor. The first counts tokens of the first document."""
        super().__init__(inputs)
        self._spec, self._context = spec, context
        self._own_numbers, self._delivered = own_numbers, own_numbers[0]
        self.batched, self.members = False, 1
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
            return (*self._inputs.cursor(0), *self._own_numbers)
        end = self._delivered + items * self._spec.length
        if not self._tokens_until(end):
            end = min(end, self._ends[-1])
        chunk = bisect_left(self._ends, end)
        ends = np.cumsum(self._lengths(chunk)) + self._before(chunk)
        inside = int(np.searchsorted(ends, end, "left"))
        document = chunk * CHUNK + inside
        if ends[inside] == end:
            return (*self._inputs.cursor(document + 1), *[0] * len(self._own_numbers))
        own_numbers = (end - int(ends[inside] - self._lengths(chunk)[inside]), *[0] * (len(self._own_numbers) - 1))
        return (*self._inputs.cursor(document), *own_numbers)

    def flow(self, opened: Any, wanted: Wanted) -> Flow:
        for check in self._own_numbers[1:]:
            compare_check(check, self._inputs.keys(np.array([0])), self._spec.number, self._context)
        jobs: deque[StreamJob] = deque()

        def inputs() -> Iterator[I64]:
            for numbers in wanted:
                if not len(numbers):
                    yield numbers
                    continue
                jobs.append(self._job(numbers))
                yield jobs[-1].documents

        flow = self._inputs.flow(opened, inputs())
        runs = runs_of_jobs(flow, jobs, lambda job: len(job.documents), self._spec, self._context)
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

    def inputs_of(self, numbers: I64) -> Pieces:
        return self._job(numbers).pieces()

    def outputs_of(self, inputs: I64) -> I64:
        found = [inputs[:0]]
        for number in inputs.tolist():
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
            documents, of_packs = np.unique(job.documents[firsts], return_inverse=True)  # a long one begins several
            offsets = job.starts - job.begins[firsts]
            keys.append(np.array(pack_keys(self._inputs.keys(documents)[of_packs], offsets)))
        return np.concatenate(keys)

    def _packs(self, job: StreamJob, run: RowRun) -> Iterator[StackedRun]:
        documents = read_checked(run, job.lengths, self._inputs, job.documents, self._spec, self._context)
        ends_in_stream = job.begins + job.lengths
        shifts = np.cumsum(job.lengths) - ends_in_stream  # from the stream to what was read of it
        firsts = np.searchsorted(ends_in_stream, job.starts, "right")
        lasts = np.searchsorted(ends_in_stream, job.stops, "left")
        begins, ends = (job.starts + shifts[firsts]).tolist(), (job.stops + shifts[lasts]).tolist()
        keys = pack_keys(run.keys[firsts], job.starts - job.begins[firsts])
        all_seqlens = seqlens_between(ends_in_stream, (job.starts, job.stops), (firsts, lasts))
        cuts = StreamCuts(begins, ends, all_seqlens, [()] * len(keys), keys)
        yield from stacked_packs(documents.columns, cuts, self._spec)
