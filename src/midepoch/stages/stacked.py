"""Items whose arrays lie stacked in larger ones, as packs do: a batch of them is made by one copy of each column."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from midepoch.checkpoint.lanes import Cursor
from midepoch.values.arrow import without_copy


@dataclass(frozen=True, slots=True)
class StackedRun:
    """Consecutive items that are dicts of arrays. What is made of them is in memory of its own."""

    columns: Mapping[str, npt.NDArray[Any]]
    """Arrays with one line for each item."""
    ragged: Mapping[str, Sequence[npt.NDArray[Any]]]
    """Columns whose arrays differ in length: one array for each item, no part of which another item has."""
    cursors: Sequence[Cursor]
    """The cursor after each item."""
    keys: Sequence[int]

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, start: int, stop: int) -> "StackedRun":
        """The items from ``start`` to ``stop``, without copying."""
        return StackedRun(
            {name: column[start:stop] for name, column in self.columns.items()},
            {name: values[start:stop] for name, values in self.ragged.items()},
            self.cursors[start:stop],
            self.keys[start:stop],
        )

    def single_items(self, form: Literal["numpy", "torch"]) -> Iterator[tuple[Any, Cursor, int]]:
        """The items one by one, with their cursors and keys."""
        for number, (cursor, key) in enumerate(zip(self.cursors, self.keys, strict=True)):
            item = {name: without_copy(column[number].copy(), form) for name, column in self.columns.items()}
            for name, values in self.ragged.items():
                item[name] = without_copy(values[number], form)
            yield item, cursor, key


def groups_of(runs: Iterator[StackedRun], size: int) -> Iterator[list[StackedRun]]:
    """The items in groups of ``size``; the last may be smaller. A group is whole before the next run is asked for."""
    group: list[StackedRun] = []
    missing = size
    for run in runs:
        at = 0
        while at < len(run):
            part = run.slice(at, at + missing)
            group.append(part)
            at, missing = at + len(part), missing - len(part)
            if not missing:
                yield group
                group, missing = [], size
    if group:
        yield group


def stacked_batch(group: Sequence[StackedRun], form: Literal["numpy", "torch"]) -> dict[str, Any] | None:
    """All items of a group as one batch; None if their arrays cannot be one."""
    first = group[0]
    kinds = {name: (column.dtype, column.shape[1:]) for name, column in first.columns.items()}
    for run in group[1:]:
        if {name: (column.dtype, column.shape[1:]) for name, column in run.columns.items()} != kinds:
            return None
    batch: dict[str, Any] = {}
    for name in kinds:
        batch[name] = without_copy(np.concatenate([run.columns[name] for run in group]), form)
    for name in first.ragged:
        batch[name] = [without_copy(array, form) for run in group for array in run.ragged[name]]
    return batch
