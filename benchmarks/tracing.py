"""Measure traces of a billion rows, which no array could list: ``python -m benchmarks.tracing``."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import midepoch as me
from midepoch.dataset import plan_of, position_of
from midepoch.delivery.trace import find, trace

FILES, FILE_ROWS, GROUP_ROWS = 100, 10_000_000, 20_000


def write_files(folder: Path) -> None:
    """Files of one column of equal numbers, which take a few KB each: the rows are the same, their places are not."""
    table = pa.table({"x": pa.array([7], pa.int8()).take(pa.array([0] * GROUP_ROWS, pa.int32()))})
    first = folder / "part-000.parquet"
    with pq.ParquetWriter(first, table.schema) as writer:
        for _ in range(FILE_ROWS // GROUP_ROWS):
            writer.write_table(table)
    for number in range(1, FILES):
        os.link(first, folder / f"part-{number:03}.parquet")


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """How long a call takes, and what it returns."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def measure(folder: Path) -> None:
    """Trace and find with new datasets each time, so that no order is known from before."""
    for level in ("row", "block", "file"):
        rows = me.read(folder).shuffle(seed=1, level=level).lanes(64).batch(512)
        steps = FILES * FILE_ROWS // (512 * 64)
        for step in (0, steps - 2):
            dataset = rows.shard(64, 0)
            taken, table = seconds(lambda d=dataset, s=step: trace(position_of(d).latest(plan_of(d)), s, epoch=3))
            print(f"{level}: trace of step {step:,} of {steps:,}, {table.num_rows:,} rows: {taken:.3f} s")
            file, row = table["file"][0].as_py(), table["row"][0].as_py()
            dataset = rows.shard(64, 0)
            call = lambda d=dataset, f=file, r=row: find(position_of(d).latest(plan_of(d)), f, r, epoch=3)  # noqa: E731
            taken, found = seconds(call)
            assert found["step"].to_pylist() == [step]
            print(f"{level}: find of a row of it: {taken:.3f} s")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name))
        measure(Path(name))
