"""Compare the speed of two source trees: ``python -m benchmarks.floors OLD/src [--rounds 3] [--only NAME ...]``.

Each measurement runs in a fresh process of one tree. The trees take turns, and the best round of each counts. The
windows of shuffles are the same in both trees.
"""

import argparse
import itertools
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pd
import pyarrow.parquet as pq

ROWS, GROUP, BATCH, LINKS = 200_000, 2_000, 64, 8
WINDOW: dict[str, Any] = {"window": 8192, "window_blocks": 16}
WORDS = np.array([f"word{number}" for number in range(5_000)])


def write(folder: Path, rows: int) -> None:
    """Texts of 600 bytes as Arrow and as Parquet, and rows of 2,048 tokens. Parquet is there several times."""
    rng = np.random.default_rng(0)
    for kind in ("arrow", "parquet", "tokens"):
        (folder / kind).mkdir()
    for file in range(4):
        ids = range(file * rows // 4, (file + 1) * rows // 4)
        table = pa.table({"id": ids, "text": [" ".join(WORDS[rng.integers(0, len(WORDS), 70)]) for _ in ids]})
        with pa.ipc.new_stream(str(folder / f"arrow/{file}.arrow"), table.schema) as stream:
            stream.write_table(table, max_chunksize=1000)
        pq.write_table(table, folder / f"parquet/0-{file}.parquet", compression="zstd", row_group_size=GROUP)
        for link in range(1, LINKS):
            os.link(folder / f"parquet/0-{file}.parquet", folder / f"parquet/{link}-{file}.parquet")
    tokens = pa.array(rng.integers(0, 50_000, rows // 10 * 2048, np.int32))
    table = pa.table({"input_ids": pa.FixedSizeListArray.from_arrays(tokens, 2048)})
    with pa.ipc.new_stream(str(folder / "tokens/0.arrow"), table.schema) as stream:
        stream.write_table(table, max_chunksize=100)


def slow(row: dict[str, Any]) -> dict[str, Any]:
    """A function that takes 1 ms."""
    end = time.perf_counter() + 0.001
    while time.perf_counter() < end:
        pass
    return row


def contenders(folder: Path) -> dict[str, Callable[[], Any]]:
    """What is measured: functions that make something to iterate over."""
    import midepoch as me

    index = folder / me.__file__.replace("/", "-")  # trees do not share indexes

    def read(kind: str) -> me.Dataset:
        return me.read(folder / kind, index_dir=index)

    def loader(dataset: me.Dataset, workers: int) -> Iterable[Any]:
        return me.Loader(dataset.with_format("torch").batch(BATCH), num_workers=workers, persistent_workers=workers > 0)

    def arrow(dataset: me.Dataset) -> Iterable[Any]:
        return dataset.with_format("arrow").batch(GROUP)

    texts, tokens = read("arrow").shuffle(1, **WINDOW), read("tokens").shuffle(1, **WINDOW)
    made: dict[str, Callable[[], Any]] = {
        "scanner": lambda: pd.dataset(sorted(map(str, (folder / "parquet").iterdir()))),
        "rows in order": lambda: read("arrow"),
        "rows, block shuffle": lambda: read("arrow").shuffle(1, **WINDOW),
        "rows, level=row": lambda: read("arrow").shuffle(1, level="row"),
        "Parquet in order": lambda: arrow(read("parquet")),
        "Parquet shuffled": lambda: arrow(read("parquet").shuffle(1, **WINDOW)),
        "Parquet shuffled, defaults": lambda: arrow(read("parquet").shuffle(1)),
        "text, in process": lambda: loader(texts, 0),
    }
    for workers in (2, 4, 8):
        made[f"text, {workers} workers"] = partial(loader, texts, workers)
        made[f"tokens, {workers} workers"] = partial(loader, tokens, workers)
        made[f"1 ms a row, {workers} workers"] = partial(loader, tokens.take(500 * workers).map(slow), workers)
    return made


def measure(name: str, folder: Path) -> float:
    """The shortest of three passes after a first one, in seconds."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    made = contenders(folder)[name]()
    times = []
    for _ in range(4):
        begun = time.perf_counter()
        for _ in made.to_batches(batch_size=GROUP) if name == "scanner" else made:
            pass
        times.append(time.perf_counter() - begun)
    return min(times[1:])


def main() -> None:
    """Print a line for each measurement as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, help="the folder src of the older tree")
    parser.add_argument("new", type=Path, nargs="?", default=Path(__file__).parent.parent / "src", help="the newer one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(measure(given.child[0], Path(given.child[1])))
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), given.rows)
        print("| measured | old, s | new, s | new / old |\n| --- | ---: | ---: | ---: |", flush=True)
        for name in given.only or contenders(Path(folder)):
            best: dict[Path, float] = {}
            for _, tree in itertools.product(range(given.rounds), (given.old, given.new)):
                taken = _apart(tree, name, folder)
                best[tree] = min(taken, best.get(tree, taken))
            old, new = best[given.old], best[given.new]
            print(f"| {name} | {old:.3f} | {new:.3f} | {old / new:.2f} |", flush=True)


def _apart(tree: Path, name: str, folder: str) -> float:
    command = [sys.executable, "-m", "benchmarks.floors", ".", "--child", name, folder]
    path = os.pathsep.join([str(tree.resolve()), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, check=True, stdout=subprocess.PIPE, text=True
    )
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    main()
