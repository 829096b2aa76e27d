"""What threads give, against processes: ``python -m benchmarks.threads [--quick] [--workers 2]``.

It runs on any Python, also without torch, and says whether it has a global interpreter lock (GIL). Every thread or
process reads a shard of its own. Speeds are by the clock, of all shards together, against one thread that reads all.
"Waits" is the part of its time in which a reader neither computes nor waits for a core, but for a lock or for threads
that decode. Other programs on the machine change speeds, and hardly that. The best round counts.
"""

import argparse
import multiprocessing
import platform
import sys
import sysconfig
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import midepoch as me
from benchmarks import data
from benchmarks.measure import exhaust

KINDS = ("one", "threads", "processes")
PASSES = 3
Span = tuple[float, float, float]  # when a thread began, when it ended, and how long it waited for something but a core


def _texts(rows: int) -> Any:
    return me.read(data.texts(rows), index_dir=data.INDEX)


def _shuffled(rows: int) -> Any:
    return _texts(rows).shuffle(seed=1).batch(64)


def _arrow(rows: int) -> Any:
    return me.read(data.zstd_texts(rows), index_dir=data.INDEX).with_format("arrow").batch(1000)


def _mapped(rows: int) -> Any:
    return _texts(rows // 20).map(_costly)


def _costly(row: dict[str, Any]) -> dict[str, Any]:
    """About a tenth of a millisecond of plain Python."""
    return {"number": sum(value * value for value in range(2000)) + row["number"]}


WORK: dict[str, Callable[[int], Any]] = {
    "texts to dicts, row by row": _texts,
    "texts, block shuffle, batches of 64": _shuffled,
    "Parquet (zstd) to Arrow batches": _arrow,
    "a function of 0.1 ms in Python": _mapped,
}


def _read(what: str, rows: int, readers: int, indices: list[int], barrier: Any, answers: Any) -> None:
    """One process: a thread for each of its shards. A pass before opens files and warms up."""

    def shard(index: int) -> Span:
        dataset = WORK[what](rows).shard(readers, index)
        exhaust(dataset)
        barrier.wait()
        begun, wanted = time.monotonic(), _wanted_a_core()
        for _ in range(PASSES):
            exhaust(dataset)
        ended = time.monotonic()
        return begun, ended, ended - begun - (_wanted_a_core() - wanted)

    with ThreadPoolExecutor(len(indices)) as threads:
        answers.put(list(threads.map(shard, indices)))


def _wanted_a_core() -> float:
    """The seconds that this thread has computed, and waited for a core to do so, as Linux counts them."""
    computed, queued, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return (int(computed) + int(queued)) / 1e9


def measure(what: str, rows: int, kind: str, workers: int) -> tuple[float, float]:
    """The seconds that all shards took, and the part of their time in which they waited."""
    readers = 1 if kind == "one" else workers
    shards = [[index] for index in range(readers)] if kind == "processes" else [list(range(readers))]
    context = multiprocessing.get_context("spawn")
    run = partial(_read, what, rows, readers, barrier=context.Barrier(readers), answers=(got := context.SimpleQueue()))
    started = [context.Process(target=run, args=(one,)) for one in shards]
    for process in started:
        process.start()
    spans: list[Span] = [span for _ in started for span in got.get()]
    for process in started:
        process.join()
    begun, ended, waited = zip(*spans, strict=True)
    return max(ended) - min(begun), sum(waited) / (sum(ended) - sum(begun))


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows, to see that everything runs")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    rows, rounds, n = *((20_000, 1) if options.quick else (100_000, 5)), options.workers
    built = "free-threaded" if sysconfig.get_config_var("Py_GIL_DISABLED") else "with a GIL"
    enabled = getattr(sys, "_is_gil_enabled", lambda: True)()  # an extension module can switch it on
    print(f"Python {platform.python_version()}, built {built}; the GIL is {'on' if enabled else 'off'}\n")
    print(f"| work | one thread | {n} threads | {n} processes | waits: one thread | {n} threads | {n} processes |")
    print("| --- |" + " ---: |" * 6)
    for what, open_it in WORK.items():
        open_it(rows)  # writes the data
        turns = [[measure(what, rows, kind, n) for kind in KINDS] for _ in range(rounds)]
        took, waits = ([min(turn[kind][at] for turn in turns) for kind in range(3)] for at in range(2))
        figures = [f"{took[0] / PASSES:.2f} s", *(f"{took[0] / one:.2f} ×" for one in took[1:])]
        print(f"| {what} | {' | '.join([*figures, *(f'{one:.0%}' for one in waits)])} |", flush=True)


if __name__ == "__main__":
    main()
