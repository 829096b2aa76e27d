"""Rows that the user takes out of a dataset: how they are named, and whether they can be taken out."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from midepoch._common.checks import count
from midepoch.index.index import IndexView
from midepoch.order.orders import Shuffle
from midepoch.order.selection import Without
from midepoch.sources.files import FileRows


def without_rows(source: FileRows, named: Any) -> FileRows:
    """The source without rows, named by file and row. Rows that the order leaves out already change nothing."""
    numbers = np.unique(np.fromiter(_row_numbers(source.index.view, _pairs(named)), np.int64))
    shuffled = False
    for step in source.steps:
        if shuffled and not isinstance(step, Shuffle | Without):
            raise ValueError(
                f"without after shuffle and {step.describe()['op']} is not possible: these choose other rows in every "
                "epoch, so how many are left out would change. Select rows before shuffle."
            )
        shuffled = shuffled or isinstance(step, Shuffle)
    order = source.order(0)
    present = np.sort(order.rows(order.positions(numbers)))
    if len(np.unique(present)) < len(present):
        raise ValueError("without is not possible where a selection has a row several times.")
    return replace(source, steps=(*source.steps, Without(rows=present))) if len(present) else source


def _pairs(named: Any) -> Iterator[tuple[str, int]]:
    """The files and rows of an Arrow table, as ``Loader.trace`` returns it, or of an iterable of pairs."""
    if isinstance(named, pa.Table):
        return zip(named["file"].to_pylist(), named["row"].to_pylist(), strict=True)
    pairs = list(named) if isinstance(named, Iterable) and not isinstance(named, str | dict) else None
    if pairs is None or any(isinstance(pair, str) or len(pair) != 2 for pair in pairs):
        raise TypeError(
            "rows must be pairs of a file and a row, such as [('part-0007.parquet', 1234)], or the table that "
            "Loader.trace or Loader.find returned."
        )
    return iter(pairs)


def _row_numbers(view: IndexView, pairs: Iterable[tuple[str, int]]) -> Iterator[int]:
    numbers = {name: number for number, name in enumerate(view.names)}
    for file, row in pairs:
        if file not in numbers:
            raise ValueError(f"without names the file {file!r}, which the dataset does not have.")
        first, end = (int(view.file_starts[numbers[file] + more]) for more in (0, 1))
        if not 0 <= row < end - first:
            raise ValueError(f"without names row {row} of {file}, which has {count('row', end - first)}.")
        yield first + int(row)
