"""Measure how long a training loop waits for workers that work in windows: ``python -m benchmarks.waiting [--quick]``.

Two workers are together 2.4 times as fast as the loop, but each makes the batches of a whole window at once: it calls
a function for 1,000 rows, packs 1,024 documents, or decodes the Parquet row groups of a window of a shuffle. The work
and the step of the loop are pauses, except for the shuffle, so that the figures depend little on the machine.
"""

import argparse
import logging
import time
import warnings
from functools import partial
from itertools import islice
from typing import NamedTuple

import midepoch as me
from benchmarks import data
from benchmarks.measure import Figure, at_most, exhaust, figure, seconds, show

WINDOW_SECONDS = 0.5
FASTER = 2.4
BATCH = 8


def waits(windows: int) -> list[Figure]:
    """The part of its time that the loop waits, after the first window of each worker."""
    rows = me.read(data.texts(12_000), index_dir=data.INDEX).select_columns(["number"])
    mapped = rows.map(partial(_slowly, seconds=WINDOW_SECONDS / 1000), batched=True, batch_size=1000)
    documents = me.read(data.documents(20_000), index_dir=data.INDEX).with_format("numpy")
    slow = documents.map(partial(_slowly, seconds=WINDOW_SECONDS / 1024), batched=True, batch_size=128)
    packed = slow.pack(4096, window=1024)
    figures = []
    for what, dataset, per_window in (("batched map", mapped, 1000 // BATCH), ("pack", packed, 500 // BATCH)):
        step = FASTER * WINDOW_SECONDS / (2 * per_window)
        for ahead in (None, 2, 16):
            loader = me.Loader(dataset.batch(BATCH), num_workers=2, prefetch_factor=ahead)
            waited = _waited(loader, windows * per_window, step, skipped=2 * per_window)
            name = f"{what}, prefetch_factor={ahead}"
            part = 100 * waited.part
            figures += [
                (
                    at_most(1.0, f"{name}: time waited", part, "%")
                    if ahead is None
                    else figure(f"{name}: time waited", part, "%")
                ),
                figure(f"{name}: longest wait", 1000 * waited.longest, "ms"),
            ]
            loader.close()
    return figures


def shuffle_waits(groups: int, batches: int) -> list[Figure]:
    """The same for windows of a shuffle, which are decoded, with the defaults.

    Steps are so short that it counts how long the loop itself takes to make Python values of what has arrived: the
    second figure is that part of the first.
    """
    rows = me.read(data.parquet(groups), index_dir=data.INDEX).shuffle(1, window_blocks=4).batch(64).repeat()
    loader = me.Loader(rows, num_workers=2)
    taken = islice(iter(loader), batches)
    exhaust(islice(taken, batches // 2))
    step = FASTER * seconds(lambda: exhaust(taken)) / (batches - batches // 2)
    loader.close()
    loader = me.Loader(rows, num_workers=2)
    waited = _waited(loader, batches, step, skipped=batches // 4)
    loader.close()
    name = f"shuffle of Parquet, steps of {1000 * step:.2g} ms"
    return [
        at_most(1.0, f"{name}: time waited", 100 * waited.part, "%"),
        figure(f"{name}: of that, the loop makes Python values", 100 * waited.received, "%"),
        figure(f"{name}: longest wait", 1000 * waited.longest, "ms"),
    ]


class Waited(NamedTuple):
    """How a loop waited for batches: the part of its time, its longest wait, and the part in which it received them."""

    part: float
    longest: float
    received: float


def _waited(loader: me.Loader, batches: int, step: float, skipped: int) -> Waited:
    taken = islice(iter(loader), batches)
    for _ in islice(taken, skipped):
        time.sleep(step)
    before = loader.metrics()["received"]
    begun, waits = time.perf_counter(), []
    while True:
        asked = time.perf_counter()
        if next(taken, None) is None:
            break
        waits.append(time.perf_counter() - asked)
        time.sleep(step)
    seconds = time.perf_counter() - begun
    return Waited(sum(waits) / seconds, max(waits), (loader.metrics()["received"] - before) / seconds)


def _slowly(columns: dict[str, list], seconds: float) -> dict[str, list]:
    """What a tokeniser would do: take its time for every row."""
    time.sleep(seconds * len(next(iter(columns.values()))))
    return columns


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few batches, to see that everything runs")
    quick = parser.parse_args().quick
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    logging.disable(logging.WARNING)
    show("Waiting for workers that work in windows", waits(4 if quick else 12))
    show("Waiting for workers that decode the windows of a shuffle", shuffle_waits(12, 300 if quick else 4800))


if __name__ == "__main__":
    main()
