"""Keeping only the rows that match a filter, as they come from the files."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from midepoch.errors import DataFormatError
from midepoch.stages.flow import RowRun
from midepoch.stages.kept import rejected_row
from midepoch.values.pool import PickedRows, RowPool
from midepoch.values.rows import Rows
from midepoch.values.take import keep

if TYPE_CHECKING:  # importing it loads parts of Arrow that only filters need
    from midepoch.index.predicate import Mask, Predicate


def matching(
    runs: Iterator[RowRun],
    predicate: "Predicate",
    names: list[str],
    max_rows: int,
    locate: Callable[[int], tuple[str, int]],
    expects_all: bool = False,
) -> Iterator[RowRun]:
    """The rows that match, with only the columns ``names``, in runs of at most ``max_rows`` rows.

    Each row keeps its cursor. So a resume after it continues with the next row of the file, whether that matches or
    not. If ``expects_all``, a row that does not match raises SurveyMismatchError.
    """
    pool: RowPool | None = None
    for run in runs:
        data = run.rows.data
        if isinstance(data, PickedRows):
            if data.pool is not pool:  # several runs share a pool: the predicate sees its rows once
                pool, pool_mask = data.pool, _mask(predicate, data.pool.batch(), run, locate)
                origin = None if pool.origin is None else pool.origin.take(np.flatnonzero(pool_mask))
                kept_pool = RowPool([_kept(pool.batch(), pool_mask, names)], pool.check, origin)
                new_indices = np.cumsum(pool_mask) - 1
            kept = np.flatnonzero(pool_mask[data.indices])
            rows = Rows(PickedRows(kept_pool, new_indices[data.indices[kept]]), run.rows.form)
        else:
            assert isinstance(data, pa.RecordBatch)
            mask = _mask(predicate, data, run, locate)
            run.rows.check_file()
            kept = np.flatnonzero(mask)
            origin = None if run.rows.origin is None else run.rows.origin.take(kept)
            rows = replace(run.rows, data=_kept(data, mask, names), origin=origin)
        if expects_all and len(kept) < len(run):
            name, row = locate(int(np.delete(run.keys, kept)[0]))
            raise rejected_row("read(filters=...)", f"row {row:,} of {name}")
        matches = RowRun(rows, run.cursors[kept], run.keys[kept])
        for start in range(0, len(matches), max_rows):
            yield matches.slice(start, min(start + max_rows, len(matches)))


def _mask(
    predicate: "Predicate", batch: pa.RecordBatch, run: RowRun, locate: Callable[[int], tuple[str, int]]
) -> "Mask":
    try:
        return predicate.mask(batch)
    except pa.ArrowException as error:
        name, row = locate(int(run.keys[0]))
        raise DataFormatError(
            f"filters {predicate.expression} failed on the rows that were read together with row {row:,} of {name}: "
            f"{error}"
        ) from error


def _kept(batch: pa.RecordBatch, mask: "Mask", names: list[str]) -> pa.RecordBatch:
    chosen = batch if batch.schema.names == names else batch.select(names)
    return chosen if mask.all() else keep(chosen, mask)
