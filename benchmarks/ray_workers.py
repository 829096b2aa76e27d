"""Measure workers that are actors of Ray: ``python -m benchmarks.ray_workers [--quick] [--workers 2 4 8]``.

The contenders are the same Loader with as many processes of this machine, and Ray Data with as many tasks at a time.
The cluster has several nodes, all of them on this machine. The function of 20 ms a row sleeps: so the figure is what
delivery costs, on any number of cores.
"""

import argparse
import logging
import os
import signal
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import ne
from typing import Any

import numpy as np
import ray
import ray.data
from ray.cluster_utils import Cluster

import midepoch as me
from benchmarks import data
from benchmarks.measure import Figure, at_least, exhaust, figure, seconds, show
from midepoch.integrations.ray import RayWorkers

BATCH = 16


def slow(row: dict[str, Any]) -> dict[str, Any]:
    """A row after 20 ms, as if an image were decoded."""
    time.sleep(0.02)
    return {"image": np.zeros((64, 64, 3), np.uint8)}


def known(row: dict[str, Any]) -> dict[str, Any]:
    """A row by its number, and the process that made it."""
    time.sleep(0.02)
    return {"id": row["id"], "process": os.getpid()}


def large(row: dict[str, Any]) -> dict[str, Any]:
    """A row of which 16 make a batch of 1 MiB."""
    return {"image": np.zeros((1 << 20) // BATCH, np.uint8)}


def epoch(dataset: me.Dataset, number: int, workers: RayWorkers | None) -> float:
    """The seconds of the second epoch: the first one starts the workers."""
    loader: Any = me.Loader(dataset, BATCH, num_workers=number, persistent_workers=True, workers=workers)
    exhaust(loader)
    taken = seconds(lambda: exhaust(loader))
    loader.close()
    return taken


def of_ray_data(rows: int, number: int) -> float:
    """The seconds in which Ray Data makes the same batches, with as many tasks at a time."""
    mapped = ray.data.range(rows, override_num_blocks=4 * number).map(slow, concurrency=number)
    return seconds(lambda: exhaust(mapped.iter_torch_batches(batch_size=BATCH)))


def compare(rows: int, numbers: Sequence[int], repeats: int) -> list[Figure]:
    """Actors and processes in turn, the best of several epochs each."""
    dataset = me.read(data.tokens(2000), index_dir=data.INDEX).shuffle(1).take(rows)
    actors, figures = RayWorkers(num_cpus=1), []
    for number in numbers:
        taken = [[epoch(dataset.map(slow), number, who) for who in (None, actors)] for _ in range(repeats)]
        here, there = map(min, zip(*taken, strict=True))
        figures.append(at_least(0.9, f"20 ms a row, {number} actors / processes", here / there, "×"))
        figures.append(figure(f"rows/s, {number} processes", rows / here))
        figures.append(figure(f"rows/s, {number} actors", rows / there))
        peer = min(of_ray_data(rows, number) for _ in range(repeats + 1))  # the first starts the workers of Ray
        figures.append(figure(f"{number} actors / Ray Data's iter_torch_batches", peer / there, "×"))
    taken = [[epoch(dataset.map(large), numbers[0], who) for who in (None, actors)] for _ in range(repeats)]
    here, there = (min(times) * 1000 * BATCH / rows for times in zip(*taken, strict=True))
    figures.append(figure(f"a batch of 1 MiB, {numbers[0]} processes", here, "ms"))
    figures.append(figure(f"a batch of 1 MiB, {numbers[0]} actors", there, "ms"))
    return figures


def rows_of(batches: Iterable[dict[str, Any]], kill_after: int | None = None) -> list[int]:
    """The numbers of all rows, in their order; after some batches, the process that made the last one is killed."""
    rows: list[int] = []
    for number, batch in enumerate(batches):
        rows += batch["id"].tolist()
        if number == kill_after:
            os.kill(int(batch["process"][-1]), signal.SIGKILL)
    return rows


def at_a_kill(rows: int, number: int) -> list[Figure]:
    """What a killed worker, and a second pass, change in the rows and in their order."""
    dataset = me.from_indexable([{"id": row} for row in range(rows)]).map(known)
    theirs = ray.data.range(rows, override_num_blocks=4 * number).map(known, concurrency=number)

    def ours() -> Any:
        return me.Loader(dataset, BATCH, num_workers=number, workers=RayWorkers(num_cpus=1))

    makers = {"RayWorkers": ours, "Ray Data": lambda: theirs.iter_torch_batches(batch_size=BATCH)}
    figures = []
    for name, make in makers.items():
        undisturbed, again, killed = rows_of(make()), rows_of(make()), rows_of(make(), kill_after=5)
        lost, repeated = Counter(undisturbed) - Counter(killed), Counter(killed) - Counter(undisturbed)
        figures += [
            figure(f"{name}: rows lost after a worker was killed", lost.total()),
            figure(f"{name}: rows repeated", repeated.total()),
            figure(f"{name}: rows at another place", sum(map(ne, undisturbed, killed))),
            figure(f"{name}: rows at another place in a second pass", sum(map(ne, undisturbed, again))),
        ]
    return figures


def main() -> None:
    """Run the benchmark on a cluster of two nodes, and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, to see that everything runs")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8], help="the numbers of workers")
    parser.add_argument("--kill", action="store_true", help="only what a killed worker changes")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    half = -(-max(given.workers) // 2)
    node = {"num_cpus": half, "object_store_memory": 256 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        show("A killed worker", at_a_kill(640, 2))
        if not given.kill:
            show("Workers of Ray", compare(*((320, given.workers, 1) if given.quick else (800, given.workers, 2))))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
