"""Requests, bytes and speed of passes over an object store: ``python -m benchmarks.stores``.

The store is fsspec's in memory. Every request waits as one to a real store would: 30 ms, and its bytes at 80 MB/s.
"""

import argparse
import io
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import midepoch as me
from midepoch.sources import ahead
from midepoch.storage.fsspec import FsspecHandle

LATENCY, BYTES_PER_SECOND = 0.03, 80e6
BATCH_ROWS = 100_000
BATCH = 1024
CASES = ((1_000_000, 100), (200_000, 2_000))
"""Rows, and bytes of a row."""


@dataclass
class Requests:
    """What was asked of the store."""

    reads: int = 0
    checks: int = 0
    nbytes: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def read(self, nbytes: int) -> None:
        with self.lock:
            self.reads += 1
            self.nbytes += nbytes
        time.sleep(LATENCY + nbytes / BYTES_PER_SECOND)

    def check(self) -> None:
        with self.lock:
            self.checks += 1
        time.sleep(LATENCY)


@contextmanager
def counted() -> Iterator[Requests]:
    """Count and delay all requests."""
    requests, read_at, now = Requests(), FsspecHandle.read_at, FsspecHandle._now

    def slow_read(handle: FsspecHandle, nbytes: int, offset: int) -> pa.Buffer:
        requests.read(nbytes)
        return read_at(handle, nbytes, offset)

    def slow_look(handle: FsspecHandle) -> tuple[int, str]:
        requests.check()
        return now(handle)

    with patch.object(FsspecHandle, "read_at", slow_read), patch.object(FsspecHandle, "_now", slow_look):
        yield requests


def put(rows: int, width: int) -> None:
    """Write one Arrow and one Parquet object, in record batches and row groups of 100,000 rows."""
    offsets = (np.arange(rows + 1) * width).astype(np.int32)
    data = pa.py_buffer(np.random.default_rng(0).bytes(rows * width))
    text = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), data])
    table, store = pa.table({"id": np.arange(rows), "text": text}), fsspec.filesystem("memory")
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=BATCH_ROWS)
    store.pipe_file("/stores/arrow/x.arrow", sink.getvalue())
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=BATCH_ROWS, compression="none", use_dictionary=False)
    store.pipe_file("/stores/parquet/x.parquet", sink.getvalue())


def measure(name: str, dataset: me.Dataset, rows: int) -> None:
    """Read all rows, and print a line of a table."""
    first, seen = 0.0, 0
    with counted() as requests:
        start = time.perf_counter()
        for batch in dataset.with_format("arrow").batch(BATCH):
            first = first or time.perf_counter() - start
            seen += batch.num_rows
        took = time.perf_counter() - start
    assert seen == rows
    print(
        f"| {name} | {requests.reads:,} | {requests.checks:,} | {requests.nbytes / 1e6:,.0f} MB "
        f"| {rows / took:,.0f} | {first:.2f} s |",
        flush=True,
    )


def caching() -> None:
    """Print what three epochs fetch with a cache half as large as the data."""
    rng, store = np.random.default_rng(0), fsspec.filesystem("memory")
    for number in range(4):
        rows = pa.table({"id": np.arange(2_500), "x": [rng.bytes(2_000) for _ in range(2_500)]})
        sink = io.BytesIO()
        pq.write_table(rows, sink, row_group_size=100, compression="none", use_dictionary=False)
        store.pipe_file(f"/stores/cached/{number}.parquet", sink.getvalue())
    size = sum(store.size(f"/stores/cached/{number}.parquet") for number in range(4))
    print("| three epochs, a cache of half the data | fetched / data |\n| --- | ---: |")
    for name, build in CACHED.items():
        print(f"| {name} | {_fetched(build, size) / size:.2f} |", flush=True)


def _fetched(build: Callable[[me.Dataset], me.Dataset], size: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        read = me.read("memory://stores/cached", cache_dir=folder, cache_bytes=size // 2, read_ahead="1MiB")
        dataset = build(read)
        with patch(f"{__name__}.LATENCY", 0), counted() as requests:
            for _ in range(3):
                assert sum(1 for _ in dataset) == 10_000
        return requests.nbytes


def small_requests() -> None:
    """Print how fast passes in order are over 24 objects of 10 small row groups, by threads that fetch."""
    store, rows, repeats = fsspec.filesystem("memory"), 10_000, 3
    offsets = pa.py_buffer((np.arange(rows + 1) * 500).astype(np.int32))
    content = pa.py_buffer(np.random.default_rng(0).bytes(rows * 500))
    text = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, content])
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": np.arange(rows), "text": text}), sink, row_group_size=1_000, compression="none")
    for number in range(24):
        store.pipe_file(f"/stores/small/{number:02}.parquet", sink.getvalue())
    print("| in order, a latency of 20 ms | threads | reads | bytes | seconds |\n| --- | ---: | ---: | ---: | ---: |")
    for name, columns in (("all columns", None), ("one column", ["id"])):
        dataset = me.read("memory://stores/small", columns=columns).with_format("arrow").batch(BATCH)
        for threads in (8, ahead.FETCH_THREADS):
            with (
                patch(f"{__name__}.LATENCY", 0.02),
                patch.object(ahead, "FETCH_THREADS", threads),
                counted() as requests,
            ):
                taken = []
                for _ in range(repeats):
                    begun = time.perf_counter()
                    assert sum(batch.num_rows for batch in dataset) == 24 * rows
                    taken.append(time.perf_counter() - begun)
            nbytes = f"{requests.nbytes / repeats / 1e6:.0f} MB"
            print(f"| {name} | {threads} | {requests.reads // repeats} | {nbytes} | {min(taken):.2f} |", flush=True)


CACHED: dict[str, Callable[[me.Dataset], me.Dataset]] = {
    "in order": lambda dataset: dataset,
    'shuffle(level="file")': lambda dataset: dataset.shuffle(1, level="file"),
    "shuffle, windows of 4 row groups": lambda dataset: dataset.shuffle(1, window=400, window_blocks=4),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows; the figures mean nothing")
    parser.add_argument("--cache", action="store_true", help="measure what a cache of half the data saves instead")
    parser.add_argument("--small", action="store_true", help="measure small row groups instead")
    options = parser.parse_args()
    share = 10 if options.quick else 1
    if options.cache or options.small:
        with tempfile.TemporaryDirectory() as index:
            os.environ["MIDEPOCH_INDEX_DIR"] = index
            caching() if options.cache else small_requests()
        return
    with tempfile.TemporaryDirectory() as index:
        os.environ["MIDEPOCH_INDEX_DIR"] = index
        for rows, width in CASES:
            put(rows // share, width)
            print(f"\n### {rows // share:,} rows of {width:,} bytes\n")
            print("| pass | reads | version checks | bytes | rows/s | first batch |")
            print("| --- | ---: | ---: | ---: | ---: | ---: |")
            for kind in ("arrow", "parquet"):
                dataset = me.read(f"memory://stores/{kind}")
                measure(f"{kind}, shuffled", dataset.shuffle(1), rows // share)
                measure(f"{kind}, in order", dataset, rows // share)


if __name__ == "__main__":
    main()
