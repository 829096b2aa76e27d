"""Rows as documents: the same flat columns from files, lists, arrays and single items."""

import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from in_memory import CONTEXT
from midepoch.stages.flow import Flow, RowRun
from midepoch.stages.pack.documents import PackSpec
from midepoch.stages.pack.stream import PackStream
from midepoch.values.rows import Rows


def spec(**options):
    defaults = {"length": 4, "column": "input_ids", "overlong": "cut", "eos": None, "pad": None, "labels": None}
    return PackSpec(**(defaults | {"number": 1} | options))


def run_of(**columns):
    """A run of an Arrow batch."""
    batch = pa.record_batch(columns)
    numbers = np.arange(batch.num_rows)
    return RowRun(Rows(batch), numbers[:, None] + 1, numbers)


@pytest.mark.parametrize("rows", [[], [[]]], ids=["no row", "an empty row"])
def test_a_cursor_inside_a_document_that_is_gone(rows):
    runs = [run_of(input_ids=pa.array(rows, pa.list_(pa.int64())))] if rows else []
    with pytest.raises(me.CheckpointMismatchError, match="2 outputs of a group were delivered"):
        list(PackStream(spec=spec()).read(Flow(row_runs=iter(runs)), (5, 2), CONTEXT))
