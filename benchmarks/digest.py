"""Measure what a digest of the delivered rows costs: ``python -m benchmarks.digest [--quick]``.

Processor time of whole epochs of batches of 64 text rows, with and without ``digest=True``, in turn, the best of each.
"""

import argparse
import gc
import logging
import time
from functools import partial

import midepoch as me
from benchmarks import data
from benchmarks.measure import Figure, at_most, figure, in_turn, show

BATCH = 64


def costs(rows: int, rounds: int) -> list[Figure]:
    """The processor time that a digest adds, in a hundred parts of that without."""
    texts = me.read(data.texts(rows), index_dir=data.INDEX)
    datasets = {
        "rows in order": texts,
        "block shuffle": texts.shuffle(seed=1),
        "row shuffle": texts.shuffle(seed=1, level="row"),
        "a function of each row": texts.shuffle(seed=1).map(_length),
    }
    figures = []
    for what, dataset in datasets.items():
        contenders = {str(digest): partial(_epoch, dataset, digest=digest) for digest in (False, True)}
        times = in_turn(contenders, rounds)
        plain, asked = min(times["False"]), min(times["True"])
        figures.append(at_most(2.0, f"{what}: added by a digest", 100 * (asked / plain - 1), "%"))
        figures.append(figure(f"{what}: without it", rows / plain / 1000, "thousand rows/s"))
    begun = time.perf_counter()
    texts.shuffle(seed=1).digest()
    figures.append(figure("predicted", rows / (time.perf_counter() - begun) / 1e6, "million rows/s"))
    return figures


def _epoch(dataset: me.Dataset, *, digest: bool) -> float:
    """The processor time of one epoch."""
    loader = me.Loader(dataset, batch_size=BATCH, digest=digest)
    gc.collect()
    begun = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - begun


def _length(row: dict) -> dict:
    return {"length": len(row["text"])}


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows, to see that everything runs")
    quick = parser.parse_args().quick
    logging.disable(logging.WARNING)
    show("A digest of the delivered rows", costs(20_000, 2) if quick else costs(400_000, 9))


if __name__ == "__main__":
    main()
