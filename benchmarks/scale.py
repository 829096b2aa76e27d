"""What a dataset of 10^5 files and 10^10 rows takes, with a made-up index: ``python -m benchmarks.scale``.

There are no such files: an index that says so is written, and opened in a fresh process as ``read`` opens a saved one.
Nothing here is proportional to the number of rows. With ``--arrow`` it measures 2,000,000,000 rows of
Arrow.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from benchmarks.measure import Figure, at_most, figure, fresh, show
from midepoch.dataset import Dataset, from_source
from midepoch.dataset.read import read
from midepoch.formats import Scan, scan_file
from midepoch.index.build import FileIndex
from midepoch.index.index import IndexView, index_bytes
from midepoch.loader import Loader
from midepoch.order.orders import Level
from midepoch.sources.files import FileRows
from midepoch.storage.listing import Listing
from midepoch.storage.local import FileStamp, stamp_of

FIRST_ROW = "import sys, benchmarks.scale as s; print(s.first_row(sys.argv[1], sys.argv[2]))"
BLOCK_ROWS, BLOCKS_OF_A_FILE, ROW_BYTES = 10_000, 10, 2_048


def write_index(path: str, files: int) -> int:
    """Write the index of files that do not exist, and return its size."""
    size = BLOCK_ROWS * ROW_BYTES
    blocks = [(4 + number * size, size, BLOCK_ROWS) for number in range(BLOCKS_OF_A_FILE)]
    names = tuple(f"part-{number:06d}.parquet" for number in range(files))
    stamps = tuple(FileStamp(BLOCKS_OF_A_FILE * size, number) for number in range(files))
    scan = Scan("parquet", pa.schema({"id": pa.int64(), "tokens": pa.list_(pa.uint16())}), blocks)
    with open(path, "wb") as file:
        file.write(index_bytes(Listing("/data", "/data", names, stamps), [scan] * files))
    return os.path.getsize(path)


def measure(path: str, ranks: int) -> dict[str, float]:
    """What opening, shuffling and the first position of one rank take in this process."""
    found: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        memory, begun = _memory(), time.perf_counter()
        value = call()
        found[f"{name}, seconds"] = time.perf_counter() - begun
        found[f"{name}, MB"] = _memory() - memory
        return value

    view = timed("opening the index", lambda: IndexView.load("/data", path))
    timed("names and stamps, to compare with a listing", lambda: (view.names, view.stamps))
    dataset = (
        from_source(FileRows(index=FileIndex(view, None)), Dataset)
        .shuffle(seed=1)
        .lanes(ranks)
        .shard(ranks, ranks // 2)
    )
    loader = timed("a shuffled Loader of one rank", lambda: Loader(dataset, batch_size=64))
    state = timed("its state", loader.state_dict)
    timed("the rows of its step 1,000, by trace", lambda: loader.trace(min(1_000, len(loader) - 1)))
    found["rows"], found["state, KB"] = float(view.rows), len(json.dumps(state)) / 1e3
    return found


def _memory() -> float:
    """The memory of this process in MB, pages of mapped files that it has touched included."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def arrow(files: int, indexed: int) -> Iterator[Figure]:
    """The first row of files of 100 record batches of 1,000 rows, by level of the shuffle, and what indexing takes.

    The files are links to one, in a made-up index; ``indexed`` of them are indexed as ``read`` does.
    """
    with tempfile.TemporaryDirectory() as folder:
        names = tuple(f"part-{number:06d}.arrow" for number in range(files))
        data = pa.table({"id": range(100_000), "text": [f"a text with number {number}" for number in range(100_000)]})
        with pa.OSFile(f"{folder}/one", "wb") as file, pa.ipc.new_stream(file, data.schema) as writer:
            writer.write_table(data, max_chunksize=1_000)
        for name in names:
            os.link(f"{folder}/one", f"{folder}/{name}")
        times = [_index_links(folder, names[:indexed]) for _ in range(3)]
        yield figure(f"indexing {indexed:,} Arrow files of 100 batches, by the clock", min(times)[0], "ms a file")
        yield at_most(0.7, "the same, processor time", min(used for _, used in times), "ms a file")
        one = scan_file(f"{folder}/one")
        stamp = stamp_of(f"{folder}/one")
        with open(f"{folder}/made-up.index", "wb") as file:
            file.write(index_bytes(Listing(folder, folder, names, (stamp,) * files), [one] * files))
        levels: list[Level] = ["file", "block", "row"]
        for level in levels:
            taken = min(float(fresh(FIRST_ROW, folder, level)) for _ in range(3))
            what = f'first row of {files * 100_000:,} rows in {files:,} files, level="{level}"'
            yield at_most(0.3, what, taken, "s")


def _index_links(folder: str, names: tuple[str, ...]) -> tuple[float, float]:
    """The milliseconds for each file: by the clock, and of the processor."""
    with tempfile.TemporaryDirectory() as index_dir:
        begun, used = time.perf_counter(), time.process_time()
        read([f"{folder}/{name}" for name in names], index_dir=index_dir)
        taken, used = time.perf_counter() - begun, time.process_time() - used
        return taken / len(names) * 1e3, used / len(names) * 1e3


def first_row(folder: str, level: Level) -> float:
    """The seconds to the first row of the made-up index, opened before."""
    view = IndexView.load(folder, f"{folder}/made-up.index")
    begun = time.perf_counter()
    next(iter(from_source(FileRows(index=FileIndex(view, None)), Dataset).shuffle(seed=1, level=level)))
    return time.perf_counter() - begun


def requests(ranks: int, rows_per_second: float) -> list[Figure]:
    """Derived: what an object store is asked for when every rank reads that many rows a second."""
    blocks = ranks * rows_per_second / BLOCK_ROWS
    return [
        figure(f"derived: blocks a second, {ranks:,} ranks of {rows_per_second:,.0f} rows/s", blocks, "/s"),
        figure("derived: bytes a second", ranks * rows_per_second * ROW_BYTES / 1e9, "GB/s"),
    ]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--ranks", type=int, default=1_024)
    parser.add_argument("--arrow", action="store_true", help="measure 20,000 Arrow files of 100 batches instead")
    options = parser.parse_args()
    if options.arrow:
        show("Arrow files of 100 record batches", arrow(20_000, indexed=1_000))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/made-up.index"
        size = write_index(path, options.files)
        code = "import sys, json, benchmarks.scale as s; print(json.dumps(s.measure(sys.argv[1], int(sys.argv[2]))))"
        found = json.loads(fresh(code, path, options.ranks))
    figures = [figure("size of the index, MB", size / 1e6), *(figure(name, value) for name, value in found.items())]
    show(f"{options.files:,} files, {options.ranks:,} ranks", [*figures, *requests(options.ranks, 100)])


if __name__ == "__main__":
    main()
