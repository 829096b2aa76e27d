"""Flows and sources of numbered rows, without files: for tests of stages and pipelines."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from midepoch.sources.source import AdoptedCheckpoint, ReadCounts, no_survey
from midepoch.stages.flow import Context, Flow, RowRun
from midepoch.values.rows import Rows

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
CONTEXT = Context(seed=3, epoch=0, rows_until=9, locate=lambda key: ("memory", key))


def batch_of(numbers):
    """Rows of these ids."""
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array([f"t{number}" for number in numbers])], SCHEMA)


def run_of(numbers, form="python"):
    """A run of rows whose number, key and position in the lane are the same."""
    numbers = np.asarray(numbers, np.int64)
    return RowRun(Rows(batch_of(numbers.tolist()), form), numbers[:, None] + 1, numbers)


def flow_of(sizes, *, start=0, form="python", single=False):
    """A flow of runs of these sizes, or of the same rows as single items, from row ``start`` on."""
    bounds = np.cumsum([0, *sizes])
    numbers = [np.arange(begin, end) for begin, end in pairwise(bounds)]
    runs = (run_of(some[some >= start], form) for some in numbers if (some >= start).any())
    if not single:
        return Flow(row_runs=runs, form=form, schema=SCHEMA)
    return Flow(single_items=Flow(row_runs=runs, form=form).as_single_items(), form=form, schema=SCHEMA)


def items_of(flow):
    return [item for item, _, _ in flow.as_single_items()]


@dataclass(frozen=True, kw_only=True)
class NumbersSource:
    """A source of ``rows`` numbered rows, cut evenly into lanes."""

    rows: int
    name: str = "numbers"
    uniform = True
    begin = (0,)
    has_rows = True
    item_spec = ("python", False)
    survives_fork = True
    shuffled = False
    functions = ()
    stateless = True
    items_together = 0
    schema = SCHEMA

    @property
    def why_not_counted(self, survey):
        return None

    def label(self):
        return self.name

    @property
    def fingerprint(self):
        return {"rows": self.rows, "name": self.name}

    def describe(self):
        return []

    def cut(self, cut, survey=no_survey):
        return NumberLanes(np.array_split(np.arange(self.rows), cut.lanes))

    def open(self, lanes):
        return Opened()

    def context(self, epoch, rows_until):
        return Context(seed=3, epoch=epoch, rows_until=rows_until, locate=lambda key: (self.name, key))

    def adopt(self, then):
        assert then["data"] == self.fingerprint, "the data differs"
        return AdoptedCheckpoint(None, then["pipeline"])


@dataclass(frozen=True)
class NumberLanes:
    lanes: list

    def size(self, lane):
        return len(self.lanes[lane])

    def reaches(self, lane, cursor, margin):
        return cursor[0] < self.size(lane) + margin

    def flow(self, opened, lane, cursor):
        numbers = self.lanes[lane][cursor[0] :]
        positions = cursor[0] + 1 + np.arange(len(numbers))
        run = run_of(numbers)
        return Flow(row_runs=iter([RowRun(run.rows, positions[:, None], run.keys)] if len(run) else []))


class Opened:
    decodes = False
    closed = False

    def counts(self):
        return ReadCounts()

    def close(self):
        self.closed = True
