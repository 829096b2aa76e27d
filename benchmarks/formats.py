"""How fast text files are read, against reading the whole file at once: ``python -m benchmarks.formats [--quick]``."""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.json as pj

import midepoch as me
from benchmarks import data
from benchmarks.measure import Figure, best_apart, exhaust, figure, seconds, show

BATCH = 1024
PLAIN: dict[str, Callable[[Path], pa.Table]] = {"jsonl": pj.read_json, "csv": pc.read_csv}


def reading(kind: str, rows: int, repeats: int) -> list[Figure]:
    """One file, read by midepoch in blocks and by pyarrow at once: as Arrow, and as rows."""
    (path,) = data.lines(kind, rows).iterdir()

    dataset = me.read(path, index_dir=data.INDEX)
    arrow = dataset.with_format("arrow").batch(BATCH)
    times = best_apart(
        {
            "plain, Arrow": lambda: PLAIN[kind](path),
            "plain, one thread": lambda: PLAIN[kind](path, read_options=_one_thread(kind)),
            "plain, rows": lambda: exhaust(PLAIN[kind](path).to_pylist()),
            "sequential, Arrow": lambda: exhaust(arrow),
            "block, Arrow": lambda: exhaust(dataset.shuffle(1).with_format("arrow").batch(BATCH)),
            "sequential, rows": lambda: exhaust(dataset),
            "block, rows": lambda: exhaust(dataset.shuffle(1)),
        },
        repeats,
    )
    scan = min(seconds(lambda: _index(path)) for _ in range(repeats))
    alone = times["plain, one thread"]
    return [
        figure(
            f"{kind}: Arrow batches, sequential / whole file", times["plain, Arrow"] / times["sequential, Arrow"], "×"
        ),
        figure(f"{kind}: the same / whole file on one thread", alone / times["sequential, Arrow"], "×"),
        figure(
            f"{kind}: Arrow batches, shuffle (block) / whole file", times["plain, Arrow"] / times["block, Arrow"], "×"
        ),
        figure(
            f"{kind}: rows, sequential / whole file, to_pylist()", times["plain, rows"] / times["sequential, rows"], "×"
        ),
        figure(f"{kind}: rows, shuffle (block) / the same", times["plain, rows"] / times["block, rows"], "×"),
        figure(f"{kind}: indexing / whole file on one thread", scan / alone, "× the time"),
        *(figure(f"{kind}: rows/s, {name}", rows / time) for name, time in times.items()),
    ]


def _one_thread(kind: str) -> Any:
    return (pj if kind == "jsonl" else pc).ReadOptions(use_threads=False)


def _index(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        me.read(path, index_dir=folder)


def main() -> None:
    """Measure both formats and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, to see that everything runs")
    quick = parser.parse_args().quick
    for kind in PLAIN:
        show(f"Reading {kind}", reading(kind, 4_000 if quick else 60_000, 2 if quick else 3))


if __name__ == "__main__":
    main()
