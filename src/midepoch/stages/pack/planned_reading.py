"""How the documents of planned packs are read: those of one job at a time, compared with the survey."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from midepoch._common.hashing import keys_of, mix64
from midepoch._common.text import count
from midepoch._common.types import I64
from midepoch.errors import SurveyMismatchError
from midepoch.stages.counted import CountedItems
from midepoch.stages.flow import Context, Flow, RowRun, concat_runs
from midepoch.stages.pack.documents import Documents, read_documents, row_run_of, select_pack_columns
from midepoch.stages.pack.spec import PackSpec


def pack_keys(documents: I64, numbers: I64) -> list[int]:
    """The keys of packs, each from the key of its document and the pack's number after the start of that."""
    keys: list[int] = mix64(keys_of(documents.tolist()) + numbers.astype(np.uint64)).astype(np.int64).tolist()
    return keys


def read_checked(
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


def runs_of_jobs(
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
