"""The items that pass from stage to stage, and the one rule by which every stage resumes.

A stage groups its inputs and turns each group into outputs. Its cursor after an output is the input's cursor at the
group's start plus the number of the group's outputs delivered; after the group's last output it is the input's cursor
at the group's end. To resume, the input is opened there, the group is formed again, and its delivered outputs are
dropped. If an earlier stage may skip inputs, the cursor ends with a check of the group's inputs, or with 0 between
groups: a group that is formed of other inputs would repeat or lose outputs, so it raises.

A flow has one of three forms. Rows pass as columns (``RowRun``) for as long as no function needs them one by one.
Finished items that were made together stay together (``ItemRun``). Others pass as they are made (``SingleItem``).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from midepoch._common.checks import count
from midepoch._common.hashing import I64, digest, key_of, keys_of, mix64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import CheckpointMismatchError
from midepoch.stages.pack.counts import CountsOfLane
from midepoch.values.columns import Form
from midepoch.values.convert import collate
from midepoch.values.rows import Rows, concat, row_items

SingleItem = tuple[Any, Cursor, int]
"""An item, the cursor after it, and its key: its row's number, a hash, or of a batch the sum of the hashes in it."""

WHOLE_LANE = 1 << 62
"""The size of a group that ends only with the lane."""
IDLE_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class RowRun:
    """Consecutive rows as columns. ``cursors`` has one line a row, the cursor after it; ``keys`` one key a row."""

    rows: Rows
    cursors: I64
    keys: I64

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, start: int, stop: int) -> "RowRun":
        """The rows from ``start`` to ``stop``, without copying."""
        if start == 0 and stop == len(self):
            return self
        return RowRun(self.rows.slice(start, stop), self.cursors[start:stop], self.keys[start:stop])

    def take(self, indices: I64) -> "RowRun":
        """The rows at ``indices``."""
        return RowRun(self.rows.take(indices), self.cursors[indices], self.keys[indices])

    def item_run(self) -> "ItemRun":
        """The same rows as items."""
        return ItemRun(self.rows.items(), self.cursors, self.keys)

    def deferred_run(self) -> "ItemRun":
        """The same rows as items that become values in another process, where that is possible."""
        return ItemRun(row_items(self.rows), self.cursors, self.keys)


class ItemRun(NamedTuple):
    """Consecutive items that are made together, with cursors and keys as in a ``RowRun``."""

    items: Iterable[Any]
    cursors: I64
    keys: I64

    def single_items(self) -> Iterator[SingleItem]:
        """The same items one by one."""
        lines = self.cursors
        cursors = map(tuple, lines.tolist()) if lines.shape[1] > 1 else zip(lines[:, 0].tolist(), strict=True)
        return zip(self.items, cursors, self.keys.tolist(), strict=True)


@dataclass(slots=True)
class PackCounts:
    """How many tokens the packs that were made have, without padding, and how many have a place there."""

    tokens: int = 0
    places: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a stage may know besides its inputs: pure values, the same on every reader."""

    seed: int
    epoch: int
    rows_until: int
    """The number of the first stage that makes groups. After it, keys are no longer row numbers."""
    locate: Callable[[int], tuple[str, int]]
    output_counts: Callable[[], CountsOfLane] | None = None
    """What processes know of the windows of the lane that is counted; None if no lane is."""
    left_out: Set[int] = frozenset()
    """The keys of rows that come only to keep the layout of packs, and are left out of these. More may be added."""
    packs: PackCounts = field(default_factory=PackCounts, compare=False)
    """Counts the packs that stages make."""

    def name_row(self, stage: int, key: int, *, single: bool = False) -> str:
        """Say where an input of a stage comes from, as far as its key says.

        The stage that makes groups names the first row of the group, unless the key is that of a ``single`` input.
        """
        if stage > self.rows_until:
            return ""
        return f", {'at' if single or stage < self.rows_until else 'in the group from'} {self.name(key)}"

    def name(self, key: int) -> str:
        """Name the row of a key that is a row number."""
        name, row = self.locate(key)
        return f"row {row:,} of {name}"

    def rng(self, salt: int, key: int) -> "np.random.Generator":
        """The random generator of one item in one stage."""
        return np.random.Generator(np.random.Philox(key=key_of(self.seed, self.epoch, salt, key)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The outputs of a stage, in exactly one of the three forms, and what is known of every item."""

    row_runs: Iterator[RowRun] | None = None
    item_runs: Iterator[ItemRun] | None = None
    single_items: Iterator[SingleItem] | None = None
    form: Form = "python"
    """The values that items hold: Python, NumPy, torch or Arrow."""
    batched: bool = False
    """True if each item is a batch: its values are columns, and its key is a sum of hashes."""
    ragged: Callable[[str], bool] | None = None
    """True of columns whose arrays differ in length from item to item. They are never stacked, even if some agree."""
    schema: pa.Schema | None = None
    """The items' Arrow schema where their values are those of the files; None where a function made them."""
    skips: bool = False
    """True if an earlier stage may skip items because of errors."""
    deferred: bool = False
    """True if items go to another process: rows that no function of this one needs are then ``RowItems``."""
    left_out: set[int] | None = None
    """The keys of items that only keep their places in packs, as far as these were read; None if there are none."""
    pass_rows: int | None = None
    """About how many items of a mixture that never ends are one pass over all parts; None of everything else."""

    def as_single_items(self) -> Iterator[SingleItem]:
        """The outputs one by one."""
        if self.single_items is not None:
            return self.single_items
        item_runs = self.as_item_runs()
        assert item_runs is not None, "a flow has one of its three forms"
        return chain.from_iterable(map(ItemRun.single_items, item_runs))

    def as_item_runs(self) -> Iterator[ItemRun] | None:
        """The outputs many at a time, or None if each is made on its own."""
        if self.row_runs is None:
            return self.item_runs
        return map(RowRun.deferred_run if self.deferred else RowRun.item_run, self.row_runs)

    def as_row_runs(self, size: int) -> Iterator[RowRun]:
        """The outputs in runs of a multiple of ``size`` rows; only the last run may have a remainder."""
        return _regroup(self.row_runs, size) if self.row_runs is not None else _collect(self, size)

    def groups(self, size: int) -> Iterator[RowRun]:
        """The outputs in runs of ``size`` rows; the last run may have fewer."""
        runs = self.as_row_runs(size)
        return (run.slice(start, min(start + size, len(run))) for run in runs for start in range(0, len(run), size))

    def batched_as(self, form: Form) -> "Flow":
        """The same outputs, for a stage that makes batches of a form. Single items are converted with their batch."""
        if self.row_runs is None:
            return replace(self, form=form)
        runs = (RowRun(run.rows.to(form), run.cursors, run.keys) for run in self.row_runs)
        return replace(self, row_runs=runs, form=form)

    def with_single_items(self, items: Iterator[SingleItem]) -> "Flow":
        """A flow of other items, one by one, of which the same is known."""
        return replace(self, row_runs=None, item_runs=None, single_items=items)


def _regroup(runs: Iterator[RowRun], size: int) -> Iterator[RowRun]:
    waiting: list[RowRun] = []
    for run in runs:
        missing = (size - sum(map(len, waiting))) if waiting else 0
        if missing > len(run):
            waiting.append(run)
            continue
        if waiting:
            yield concat_runs([*waiting, run.slice(0, missing)])
        whole = missing + (len(run) - missing) // size * size
        if whole > missing:
            yield run.slice(missing, whole)
        waiting = [run.slice(whole, len(run))] if whole < len(run) else []
        del run  # so that the next one is made in its memory, which is still in the CPU cache
    if waiting:
        yield concat_runs(waiting)


def concat_runs(runs: Sequence[RowRun]) -> RowRun:
    """Consecutive runs as one."""
    rows = concat([run.rows for run in runs])
    return RowRun(rows, np.concatenate([run.cursors for run in runs]), np.concatenate([run.keys for run in runs]))


def _collect(flow: Flow, size: int) -> Iterator[RowRun]:
    single_items, form = flow.as_single_items(), flow.form
    while group := list(islice(single_items, size)):
        items, cursors, keys = zip(*group, strict=True)
        columns = collate(items, form, flow.ragged)
        if not isinstance(columns, dict | pa.RecordBatch):
            raise TypeError(
                f"A batched function needs dict items to make columns of, but got {type(items[0]).__name__} items. "
                "Let the map before it return dicts, or pass batched=False."
            )
        yield RowRun(Rows(columns, form), np.array(cursors, np.int64), np.array(keys, np.int64))


def check_group_size(size: object) -> None:
    """Raise if it cannot be the number of items that a batched function gets at a time."""
    if type(size) is not int or size < 1:
        raise ValueError(
            f"batch_size must be an integer of at least 1, got {size!r}. For all items of a lane pass None or -1."
        )


class Group(NamedTuple):
    """A group of inputs, and where a stage stands in it."""

    inputs: RowRun
    start: Cursor
    """The cursor of the inputs before the group."""
    delivered: int
    """How many outputs are delivered."""
    skips: bool
    """True if the cursor has a check of the inputs."""

    def cursors_and_keys(self, outputs: int) -> tuple[I64, I64]:
        """The cursor after each of this many outputs, and the outputs' keys. Raises if more are delivered."""
        check_delivered(self.delivered, outputs)
        width, check = len(self.start), (check_of(self.inputs.keys),) if self.skips else ()
        cursors = np.array([(*self.start, 0, *check)], np.int64).repeat(outputs, axis=0)
        cursors[:, width] = np.arange(1, outputs + 1)
        cursors[-1:, :width], cursors[-1:, width:] = self.inputs.cursors[-1], 0
        return cursors, keys_inside(self.inputs.keys[:1], np.arange(outputs))


def keys_inside(keys: I64, numbers: I64) -> I64:
    """The keys of outputs, each from the key of an input and the output's number after the start of that."""
    return mix64(keys_of(keys.tolist()) + numbers.astype(np.uint64)).astype(np.int64)


def resume_groups(
    groups: Iterator[RowRun], cursor: Cursor, skips: bool, stage: int, context: Context
) -> Iterator[Group]:
    """Each group from the cursor on. Only the first one can have delivered outputs. ``stage`` is the stage's number."""
    start, delivered, check = split_cursor(cursor, skips)
    for inputs in groups:
        compare_check(check, inputs.keys, stage, context)
        yield Group(inputs, start, delivered, skips)
        start, delivered, check = tuple(inputs.cursors[-1].tolist()), 0, 0
    compare_check(check, np.empty(0, np.int64), stage, context)


def split_cursor(cursor: Cursor, skips: bool) -> tuple[Cursor, int, int]:
    """The cursor of the inputs before a group, the outputs of the group that are delivered, and the check or 0."""
    return (cursor[:-2], cursor[-2], cursor[-1]) if skips else (cursor[:-1], cursor[-1], 0)


def check_of(keys: I64) -> int:
    """A check of the inputs of a group, by their keys. Never 0, which means that there is nothing to check."""
    return 1 + int.from_bytes(digest(keys.astype("<i8").tobytes(), size=4), "little")


def compare_check(check: int, keys: I64, stage: int, context: Context) -> None:
    """Raise if a group was made of other inputs when a cursor with this check was saved."""
    if check and check != check_of(keys):
        where = context.name_row(stage, int(keys[0]), single=True).removeprefix(", at ") if len(keys) else ""
        raise CheckpointMismatchError(
            "The checkpoint is inside a group of samples, such as a window of packs, and now other samples are skipped "
            f"as broken than when that group was made{where and f'. It begins at {where} now'}. Resuming would repeat "
            "or lose samples. The log and metrics() name the samples that are skipped now. If they were readable then, "
            "make them readable again (a missing file, library or mount). Else resume from another checkpoint, or "
            "start the epoch over without the state."
        )


def check_delivered(delivered: int, outputs: int) -> None:
    """Raise if a state says that a group has more outputs than it has now."""
    if delivered and delivered >= outputs:
        raise CheckpointMismatchError(
            f"The state says that {delivered:,} outputs of a group were delivered and more were due, but the "
            f"group now has {count('output', outputs)}. A function of the pipeline, or the data, has changed. Restore "
            "it, or start the epoch over without the state."
        )


def watched(inputs: Flow, make: Callable[[Flow], Flow]) -> Flow:
    """What stages make of a mixture that never ends. Raises if they leave nothing of many passes over all parts."""
    unfruitful, most = 0, max(IDLE_ROWS, 10 * (inputs.pass_rows or 0))

    def read(keys: list[int]) -> None:
        nonlocal unfruitful
        unfruitful += len(keys)
        if unfruitful > most:
            raise ValueError(
                f"The stages after a mixture with stop='never' made no item of {most:,} rows, and would go on for "
                "ever: a filter keeps none, or pack gets no tokens. Check these and the parts, or use stop='all'."
            )

    def made(_: list[int]) -> None:
        nonlocal unfruitful
        unfruitful = 0

    return noting(make(noting(inputs, read)), made)


def noting(flow: Flow, note: Callable[[list[int]], None], at_end: Callable[[], None] = lambda: None) -> Flow:
    """The same flow. The keys of everything that passes are noted first; a note may raise."""
    (kind,) = (name for name in ("row_runs", "item_runs", "single_items") if getattr(flow, name) is not None)

    def noted(passing: Iterator[Any]) -> Iterator[Any]:
        for each in passing:
            note([each[2]] if kind == "single_items" else each.keys.tolist())
            yield each
        at_end()

    changed: Any = {kind: noted(getattr(flow, kind))}
    return replace(flow, **changed)
