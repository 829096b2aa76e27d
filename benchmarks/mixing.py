"""Measure mixtures: ``python -m benchmarks.mixing [--quick]``."""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from itertools import islice
from statistics import median
from typing import Any

import midepoch as me
from benchmarks import data
from benchmarks.measure import Figure, at_most, best_apart, exhaust, figure, show

WEIGHTS = (0.5, 0.3, 0.2)
LANES = 32
BATCH = 64
Build = Callable[[me.Dataset], me.Dataset]

PARTS: dict[str, Build] = {
    "rows": lambda part: part,
    "rows, shuffle (block)": lambda part: part.shuffle(1),
    "rows, a map on each part": lambda part: part.map(_same),
    "batch(64)": lambda part: part,
    "batch(64), shuffle (block)": lambda part: part.shuffle(1),
    "numpy, batch(64)": lambda part: part.with_format("numpy"),
}


def _same(row: dict[str, Any]) -> dict[str, Any]:
    return row


def sources(rows: int) -> list[me.Dataset]:
    """Three datasets whose rows are in proportion to the weights."""
    return [me.read(data.texts(round(rows * weight)), index_dir=data.INDEX) for weight in WEIGHTS]


def throughput(rows: int, repeats: int) -> Iterator[Figure]:
    """A mixture of three sources against reading the same sources one after the other."""
    for name, build in PARTS.items():
        parts = [build(part) for part in sources(rows)]
        batched = "batch" in name
        times = best_apart(
            {
                "apart": lambda parts=parts, batched=batched: [exhaust(_last(part, batched)) for part in parts],
                "mixed": lambda parts=parts, batched=batched: exhaust(_last(_mixed(parts), batched)),
            },
            repeats,
        )
        yield figure(f"{name}: mixed / one after the other", times["apart"] / times["mixed"], "×")
        yield figure(f"{name}: rows/s, mixed", rows / times["mixed"])


def _mixed(parts: list[me.Dataset]) -> me.Dataset:
    return me.mix(parts, WEIGHTS, stop="all")


def _last(dataset: me.Dataset, batched: bool) -> me.Dataset:
    return dataset.batch(BATCH) if batched else dataset


def resuming(rows: int, repeats: int) -> Iterator[Figure]:
    """The first row after a resume at three positions of an epoch, on one lane and on many."""
    for lanes in (1, LANES):
        dataset = _mixed([part.shuffle(1) for part in sources(rows)]).lanes(lanes)
        states, items, at = {}, iter(dataset), 0
        for percent in (1, 50, 99):
            exhaust(islice(items, rows * percent // 100 - at))
            at = rows * percent // 100
            states[percent] = dataset.state_dict()
        times: dict[int, list[float]] = {percent: [] for percent in states}
        for _ in range(repeats):
            for percent, state in states.items():
                times[percent].append(_time_to_first(dataset, state))
        middle = {percent: median(some) for percent, some in times.items()}
        yield at_most(1.3, f"{lanes} lanes: first row at 99 % / at 1 %", middle[99] / middle[1], "×")
        for percent, seconds in middle.items():
            yield figure(f"{lanes} lanes: first row at {percent} %", 1e3 * seconds, "ms")
        yield figure(f"{lanes} lanes: size of the state at 50 %", len(json.dumps(states[50])), "bytes")


def _time_to_first(dataset: me.Dataset, state: dict[str, Any]) -> float:
    again = dataset.lanes(LANES)
    begun = time.perf_counter()
    again.load_state_dict(state)
    next(iter(again))
    return time.perf_counter() - begun


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, to see that everything runs")
    rows, repeats = (20_000, 2) if parser.parse_args().quick else (200_000, 5)
    show("Mixtures of three sources", throughput(rows, repeats))
    show("First row of a mixture after a resume", resuming(rows, 5 * repeats))


if __name__ == "__main__":
    main()
