"""Measure filters: ``python -m benchmarks.filters [--quick]``."""

import argparse
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

import midepoch as me
from benchmarks import data
from benchmarks.measure import Figure, at_most, best_apart, exhaust, figure, seconds, show
from midepoch.formats import parquet
from midepoch.index import filters as where

GROUPS = 20


class Counted:
    """A file that counts the bytes read from it."""

    def __init__(self, path: str, total: list[int]) -> None:
        self._file, self._total = pa.OSFile(path), total

    def read(self, count: int = -1) -> bytes:
        found = bytes(self._file.read(count))
        self._total[0] += len(found)
        return found

    def seek(self, *place: int) -> int:
        return int(self._file.seek(*place))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)


def unpruned(source: Path, filters: pc.Expression) -> me.Dataset:
    """The same dataset without skipping any block."""
    with patch.object(
        where, "blocks_that_may_match", lambda index, *_: where.np.ones(index.view.first_blocks[-1], bool)
    ):
        return me.read(source, filters=filters, index_dir=data.INDEX)


def scanned(source: Path, filters: pc.Expression) -> Iterator[dict[str, object]]:
    """Rows from pyarrow's own scanner, on one thread, like a reader."""
    for batch in ds.dataset(source).to_batches(filter=filters, use_threads=False):
        yield from batch.to_pylist()


def bytes_of(dataset: me.Dataset) -> int:
    """How many bytes one pass reads."""
    total = [0]
    with patch.object(parquet, "open_file", lambda path, mapped=False: pa.PythonFile(Counted(path, total), "r")):
        exhaust(dataset.batch(100))
    return total[0]


def one_group(groups: int, repeats: int) -> Iterator[Figure]:
    """A filter that hits one row group in twenty."""
    source = data.parquet(groups)
    rows = len(me.read(source, index_dir=data.INDEX)) // groups
    filters = (pc.field("number") >= rows) & (pc.field("number") < 2 * rows)
    pruned, whole = me.read(source, filters=filters, index_dir=data.INDEX), unpruned(source, filters)
    plain = me.read(source, index_dir=data.INDEX)
    yield at_most(1.1 / groups, f"bytes read, 1 of {groups} row groups / all", bytes_of(pruned) / bytes_of(plain), "×")
    times = best_apart(
        {
            "pruned": lambda: exhaust(pruned),
            "not pruned": lambda: exhaust(whole),
            "by a function": lambda: exhaust(plain.filter(lambda row: rows <= row["number"] < 2 * rows)),
            "scanner": lambda: exhaust(scanned(source, filters)),
        },
        repeats,
    )
    for name in ("not pruned", "by a function", "scanner"):
        yield figure(f"rows/s, pruned / {name}", times[name] / times["pruned"], "×")
    yield figure("rows/s, pruned", rows / times["pruned"])


def every_group(groups: int, repeats: int) -> Iterator[Figure]:
    """A filter that keeps one row in ten, where statistics cannot help."""
    source, filters = data.parquet(groups), pc.field("score") < 0.1
    filtered, plain = me.read(source, filters=filters, index_dir=data.INDEX), me.read(source, index_dir=data.INDEX)
    times = best_apart(
        {
            "filtered": lambda: exhaust(filtered),
            "shuffled": lambda: exhaust(filtered.shuffle(1)),
            "by a function": lambda: exhaust(plain.filter(lambda row: row["score"] < 0.1)),
            "scanner": lambda: exhaust(scanned(source, filters)),
        },
        repeats,
    )
    for name in ("by a function", "scanner"):
        yield figure(f"1 row in 10 of every block, filters / {name}", times[name] / times["filtered"], "×")
    yield figure("the same, shuffled by block / scanner", times["scanner"] / times["shuffled"], "×")


def opening(files: int, repeats: int) -> Iterator[Figure]:
    """What a filter adds to opening many files, when it is new and when its result is stored."""
    source, index = data.sources(files, 100), data.FOLDER / "index-filters"
    shutil.rmtree(index, ignore_errors=True)
    filters = pc.field("id") == 150
    me.read(data.sources(2, 100), filters=filters, index_dir=index)  # so that no import is measured
    indexing = seconds(lambda: me.read(source, index_dir=index))
    first = seconds(lambda: me.read(source, filters=filters, index_dir=index))
    plain = min(seconds(lambda: me.read(source, index_dir=index)) for _ in range(repeats))
    again = min(seconds(lambda: me.read(source, filters=filters, index_dir=index)) for _ in range(repeats))
    yield figure(f"{files:,} files: a new filter / indexing", first / indexing, "×")
    yield figure(f"{files:,} files: a filter seen before / no filter", again / plain, "×")
    yield figure(f"{files:,} files: opening with a filter seen before", 1e3 * again, "ms")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, to see that everything runs")
    groups, files, repeats = (4, 50, 2) if parser.parse_args().quick else (GROUPS, 5000, 3)
    print(f"load: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    show("Filters that statistics decide", one_group(groups, repeats))
    show("Filters that they do not", every_group(groups, repeats))
    show("Opening with filters", opening(files, repeats))


if __name__ == "__main__":
    main()
