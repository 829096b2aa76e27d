"""Keeping the rows for which a predicate is true, as they come from the source."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from midepoch.errors import DataFormatError
from midepoch.stages.flow import Run
from midepoch.values.pool import PickedRows, RowPool
from midepoch.values.rows import Rows
from midepoch.values.take import keep

if TYPE_CHECKING:  # it loads parts of Arrow that only filters need
    from midepoch.index.predicate import Mask, Predicate


def matching(
    runs: Iterator[Run], predicate: "Predicate", names: list[str], most: int, locate: Callable[[int], tuple[str, int]]
) -> Iterator[Run]:
    """The rows that a predicate keeps, with these columns only, in runs of ``most`` rows at most.

    Each keeps its cursor, so a run that stops behind one goes on with the row after it, whether that is kept or not.
    """
    pool: RowPool | None = None
    for run in runs:
        data = run.rows.data
        if isinstance(data, PickedRows):
            if data.pool is not pool:
                pool, mask = data.pool, _mask(predicate, data.pool.batch(), run, locate)
                kept_pool, places = RowPool([_kept(pool.batch(), mask, names)], pool.check), np.cumsum(mask) - 1
            kept = np.flatnonzero(mask[data.indices])
            rows = Rows(PickedRows(kept_pool, places[data.indices[kept]]), run.rows.form)
        else:
            assert isinstance(data, pa.RecordBatch)
            mask_here = _mask(predicate, data, run, locate)
            kept = np.flatnonzero(mask_here)
            rows = Rows(_kept(data, mask_here, names), run.rows.form)
        whole = Run(rows, run.ends[kept], run.keys[kept])
        for at in range(0, len(whole), most):
            yield whole.slice(at, min(at + most, len(whole)))


def _mask(predicate: "Predicate", batch: pa.RecordBatch, run: Run, locate: Callable[[int], tuple[str, int]]) -> "Mask":
    try:
        return predicate.mask(batch)
    except pa.ArrowException as error:
        name, row = locate(int(run.keys[0]))
        raise DataFormatError(
            f"filters {predicate.expression} cannot be computed in the rows read together with row {row:,} of {name}: "
            f"{error}"
        ) from error


def _kept(batch: pa.RecordBatch, mask: "Mask", names: list[str]) -> pa.RecordBatch:
    chosen = batch if batch.schema.names == names else batch.select(names)
    return chosen if mask.all() else keep(chosen, mask)
