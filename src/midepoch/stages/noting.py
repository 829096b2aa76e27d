"""Noting the keys of everything that passes through a flow."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from midepoch._common.types import I64
from midepoch.stages.flow import Flow, ItemRun, RowRun, SingleItem


def noting(flow: Flow, note: Callable[[I64], None]) -> Flow:
    """The same flow. The keys of everything that passes are noted."""
    if flow.row_runs is not None:
        return replace(flow, row_runs=_rows(flow.row_runs, note))
    if flow.item_runs is not None:
        return replace(flow, item_runs=_items(flow.item_runs, note))
    return flow.with_single_items(_single_items(flow.as_single_items(), note))


def _rows(runs: Iterator[RowRun], note: Callable[[I64], None]) -> Iterator[RowRun]:
    for run in runs:
        note(run.keys)
        yield run


def _items(runs: Iterator[ItemRun], note: Callable[[I64], None]) -> Iterator[ItemRun]:
    for run in runs:
        note(run.keys)
        yield run


def _single_items(items: Iterator[SingleItem], note: Callable[[I64], None]) -> Iterator[SingleItem]:
    for single in items:
        note(np.array([single[2]], np.int64))
        yield single
