"""What flows between stages, and the one rule by which all of them resume.

A stage groups its inputs and turns each group into outputs. Behind an output, the stage's cursor is that of its
input at the group's start plus the number of the group's outputs delivered, or, behind the last one, that of its
input at the group's end. To resume, the input is opened there, the group formed again, and what was delivered dropped.

Rows flow in runs, column-wise, for as long as no function wants them one by one; then in steps.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from midepoch._common.hashing import key_of, mix64
from midepoch._common.types import I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import CheckpointMismatchError
from midepoch.values.collate import collate
from midepoch.values.forms import Form
from midepoch.values.rows import Rows, concat

Emitted = tuple[Any, Cursor, int]
"""An item, the cursor behind it, and its key: the number of its row, or a hash that stands for its origin."""


@dataclass(frozen=True, slots=True)
class Run:
    """Some rows that follow each other, with one line of ``ends`` (the cursor behind it) and one key each."""

    rows: Rows
    ends: I64
    keys: I64

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, start: int, stop: int) -> "Run":
        """The rows from ``start`` to ``stop``."""
        if start == 0 and stop == len(self):
            return self
        return Run(self.rows.slice(start, stop), self.ends[start:stop], self.keys[start:stop])

    def lot(self) -> "Items":
        """The rows one by one, made together."""
        return Items(self.rows.items(), self.ends, self.keys)


class Items(NamedTuple):
    """Some items that are made together, with one line of ``ends`` and one key each, as in a run."""

    items: Iterable[Any]
    ends: I64
    keys: I64

    def each(self) -> Iterator[Emitted]:
        """The items one by one."""
        ends = self.ends
        cursors = map(tuple, ends.tolist()) if ends.shape[1] > 1 else zip(ends[:, 0].tolist(), strict=True)
        return zip(self.items, cursors, self.keys.tolist(), strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a stage may know besides its inputs: pure values, the same on every reader."""

    seed: int
    epoch: int
    rows_until: int
    """The number of the stage that first makes groups: behind it, keys are not row numbers any more."""
    locate: Callable[[int], tuple[str, int]]

    def name_row(self, stage: int, key: int, *, single: bool = False) -> str:
        """Where an input of a stage comes from, as far as that is known there; a ``single`` one, or its group."""
        if stage > self.rows_until:
            return ""
        name, row = self.locate(key)
        return f", {'at' if single or stage < self.rows_until else 'in the group from'} row {row:,} of {name}"

    def rng(self, salt: int, key: int) -> "np.random.Generator":
        """The random generator of one item in one stage."""
        return np.random.Generator(np.random.Philox(key=key_of(self.seed, self.epoch, salt, key)))


@dataclass(frozen=True, slots=True)
class Flow:
    """The outputs of a stage: either runs, lots or steps, whichever it makes. ``form`` is that of its items."""

    runs: Iterator[Run] | None = None
    many: Iterator[Items] | None = None
    single: Iterator[Emitted] | None = None
    form: Form = "python"
    batched: bool = False
    """Whether each item is a batch, whose values are columns."""
    ragged: Callable[[str], bool] | None = None
    """Tells columns whose arrays differ in length from item to item, and are not stacked where they happen not to."""
    schema: pa.Schema | None = None
    """The items' Arrow schema where their values are those of the files; None where a function made them."""

    def each(self) -> Iterator[Emitted]:
        """The outputs one by one."""
        if self.single is not None:
            return self.single
        lots = self.in_bulk()
        assert lots is not None
        return chain.from_iterable(map(Items.each, lots))

    def one_by_one(self, steps: Iterator[Emitted]) -> "Flow":
        """The same looks, of other outputs, each of which is made on its own."""
        return replace(self, runs=None, many=None, single=steps)

    def in_bulk(self) -> Iterator[Items] | None:
        """The outputs many at a time, or None where each is made on its own."""
        return map(Run.lot, self.runs) if self.runs is not None else self.many

    def groups(self, size: int) -> Iterator[Run]:
        """The outputs in runs of a multiple of ``size`` rows; only the last may have a rest."""
        return _regroup(self.runs, size) if self.runs is not None else _collect(self, size)


def _regroup(runs: Iterator[Run], size: int) -> Iterator[Run]:
    waiting: list[Run] = []
    for run in runs:
        missing = (size - sum(map(len, waiting))) if waiting else 0
        if missing > len(run):
            waiting.append(run)
            continue
        if waiting:
            yield _concat_runs([*waiting, run.slice(0, missing)])
        whole = missing + (len(run) - missing) // size * size
        if whole > missing:
            yield run.slice(missing, whole)
        waiting = [run.slice(whole, len(run))] if whole < len(run) else []
        del run  # so that the next one is made in its memory, which is still in the cache
    if waiting:
        yield _concat_runs(waiting)


def _concat_runs(runs: list[Run]) -> Run:
    rows = concat([run.rows for run in runs])
    return Run(rows, np.concatenate([run.ends for run in runs]), np.concatenate([run.keys for run in runs]))


def cut_groups(runs: Iterator[Run], size: int) -> Iterator[Run]:
    """Groups of ``size`` rows, out of runs of multiples of that."""
    return (run.slice(at, min(at + size, len(run))) for run in runs for at in range(0, len(run), size))


def from_cursor(groups: Iterator[Run], cursor: Cursor) -> Iterator[tuple[Run, Cursor, int]]:
    """Each group, the input's cursor at its start, and how many of its outputs are delivered: none but of the first."""
    *at, delivered = cursor
    start = tuple(at)
    for group in groups:
        yield group, start, delivered
        start, delivered = tuple(group.ends[-1].tolist()), 0


def check_delivered(delivered: int, outputs: int) -> None:
    """Raise if a group has fewer outputs than a state says were delivered: no run of this pipeline can have said so."""
    if delivered and delivered >= outputs:
        raise CheckpointMismatchError(
            f"The state says that {delivered:,} outputs of a group were delivered and more were due, but the group now "
            f"has {outputs:,}. A function of the pipeline, or the data, is not what it was. Restore it, or start the "
            "epoch anew without the state."
        )


def _collect(flow: Flow, size: int) -> Iterator[Run]:
    steps, form = flow.each(), flow.form
    while some := list(islice(steps, size)):
        items, ends, keys = zip(*some, strict=True)
        columns = collate(items, form, flow.ragged)
        if not isinstance(columns, dict | pa.RecordBatch):
            raise TypeError(
                f"A batched function needs dict items to make columns of, but got {type(items[0]).__name__} items. "
                "Let the map before it return dicts, or pass batched=False."
            )
        yield Run(Rows(columns, form), np.array(ends, np.int64), np.array(keys, np.int64))


def outputs_of(group: Run, start: Cursor, outputs: Rows) -> Run:
    """The outputs of one group as a run, with the cursors that the resume rule gives them."""
    ends, keys = marks_of(group, start, len(outputs))
    return Run(outputs, ends, keys)


def marks_of(group: Run, start: Cursor, count: int) -> tuple[I64, I64]:
    """The cursors behind the outputs of one group, and their keys."""
    ends = np.empty((count, len(start) + 1), np.int64)
    ends[:, :-1] = start
    ends[:, -1] = np.arange(1, count + 1)
    if count:
        ends[-1, :-1], ends[-1, -1] = group.ends[-1], 0
    numbers = np.arange(count, dtype=np.uint64) + np.uint64(key_of(int(group.keys[0])))
    return ends, mix64(numbers).astype(np.int64)
