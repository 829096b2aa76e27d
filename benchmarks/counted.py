"""Measure counted pipelines: ``python -m benchmarks.counted [--quick]``."""

import argparse
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import midepoch as me
from benchmarks import data
from benchmarks.measure import Figure, at_least, figure, in_turn, seconds, show
from midepoch._common.jobs import run_all

KEPT = data.FOLDER / "kept"
CORES = len(os.sched_getaffinity(0))


def surveys(arrow_rows: int, parquet_rows: int, repeats: int) -> Iterator[Figure]:
    """How fast the lengths of lists in files are known."""
    folder = data.documents(arrow_rows, median=20)
    packs = me.read(folder, index_dir=data.INDEX).pack(2048)
    taken = min(seconds(partial(_survey, packs)) for _ in range(repeats))
    yield at_least(20, "survey of lists in Arrow files", arrow_rows / taken / 1e6, "million rows/s")
    path = data.parquet_documents(parquet_rows)
    packs = me.read(path, index_dir=data.INDEX).pack(2048)
    contenders = {
        "survey": partial(seconds, partial(_survey, packs)),
        "pyarrow": partial(seconds, lambda: pq.read_table(path, columns=["input_ids"])),
    }
    times = in_turn(contenders, repeats)
    ratio = median(times["pyarrow"]) / median(times["survey"])
    yield at_least(0.8, "survey of lists in Parquet files / pyarrow reading that column", ratio)


def _survey(packs: me.Dataset) -> None:
    shutil.rmtree(KEPT, ignore_errors=True)
    packs.survey(folder=KEPT)


class Tokenise:
    """Tokens of texts by a BPE tokeniser."""

    def __init__(self) -> None:
        self._tokeniser = data.tokeniser()

    def __call__(self, columns: dict[str, Any]) -> dict[str, Any]:
        return {"input_ids": [one.ids for one in self._tokeniser.encode_batch(columns["text"])]}


class Alone:
    """The same, of rows of one file, without a pipeline. The tokens are dropped."""

    def __init__(self, function: Tokenise, path: Path) -> None:
        self._function, self._path = function, path

    def __call__(self, rows: tuple[int, int]) -> int:
        with pa.memory_map(str(self._path)) as file:
            table = pa.ipc.open_stream(file).read_all().slice(rows[0], rows[1] - rows[0])
        texts = (table["text"].slice(begin, 1000).to_pylist() for begin in range(0, len(table), 1000))
        return sum(len(self._function({"text": some})["input_ids"]) for some in texts)


def caches(rows: int, repeats: int) -> Iterator[Figure]:
    """Caching what a tokeniser makes, compared with the tokeniser alone in the same processes."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    (path,) = data.texts(rows, files=1).iterdir()
    function = Tokenise()
    texts = me.read(path, columns=["text"], index_dir=data.INDEX)
    tokens = texts.map(function, batched=True, one_to_one=True, remove_columns=["text"])
    bounds = np.linspace(0, rows, 4 * CORES + 1).astype(int).tolist()
    with ProcessPoolExecutor(CORES, get_context("spawn")) as processes:

        def cache() -> None:
            shutil.rmtree(KEPT, ignore_errors=True)
            tokens.cache(KEPT, executor=processes)

        def alone() -> None:
            assert sum(made for _, made in run_all(Alone(function, path), list(pairwise(bounds)), processes)) == rows

        alone()
        times = in_turn({"cache": partial(seconds, cache), "alone": partial(seconds, alone)}, repeats)
    values = sum(len(row["input_ids"]) for row in me.read(sorted(KEPT.glob("*.arrow"))))
    yield figure(f"tokenising {rows:,} texts in {CORES} processes", values / median(times["alone"]) / 1e6, "M tokens/s")
    yield at_least(0.95, "cache / the tokeniser alone", median(times["alone"]) / median(times["cache"]))
    reopened = seconds(lambda: tokens.cache(KEPT))
    yield figure("opening the cache again", 1e3 * reopened, "ms")


def main() -> None:
    """Run all and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows, to see that everything runs")
    quick = parser.parse_args().quick
    arrow_rows, parquet_rows, texts, repeats = (
        (100_000, 20_000, 4_000, 3) if quick else (10_000_000, 400_000, 20_000, 5)
    )
    show("Surveys of lengths", surveys(arrow_rows, parquet_rows, repeats))
    show("Cache of a tokeniser", caches(texts, repeats))
    shutil.rmtree(KEPT, ignore_errors=True)


if __name__ == "__main__":
    main()
