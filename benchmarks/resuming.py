"""What stopping and resuming costs: the first item after a resume, and the state."""

import json
import time
from collections.abc import Callable, Iterator
from itertools import islice
from statistics import median
from typing import Any

import midepoch as me
from benchmarks import data
from benchmarks.measure import Figure, at_most, figure

ORDERS: dict[str, Callable[[me.Dataset], me.Dataset]] = {
    "sequential": lambda dataset: dataset,
    "shuffle (block)": lambda dataset: dataset.shuffle(1),
    "shuffle (row)": lambda dataset: dataset.shuffle(1, level="row"),
}


def first_item(text_rows: int, files: int, file_rows: int, repeats: int) -> list[Figure]:
    """The time from ``load_state_dict`` to the first row at 1 % and 99 % of an epoch."""
    sources = {f"{text_rows:,} texts": data.texts(text_rows), f"{files} files": data.many(files, file_rows)}
    return [
        figure
        for name, folder in sources.items()
        for order, ordered in ORDERS.items()
        for figure in _first_item(f"{name}, {order}", ordered(me.read(folder, index_dir=data.INDEX)), repeats)
    ]


def _first_item(what: str, dataset: me.Dataset, repeats: int) -> Iterator[Figure]:
    states = {percent: _state_at(dataset, len(dataset) * percent // 100) for percent in (1, 99)}
    times: dict[int, list[float]] = {1: [], 99: []}
    for number in range(2 * repeats):
        percent = (1, 99)[number % 2]
        times[percent].append(_time_to_first(dataset, states[percent]))
    early, late = median(times[1]), median(times[99])
    yield at_most(1.3, f"{what}: first row at 99 % / at 1 %", late / early, "×")
    yield figure(f"{what}: first row at 99 %", 1e3 * late, "ms")


def _state_at(dataset: me.Dataset, rows: int) -> dict[str, Any]:
    """The state of one lane after a number of rows, without reading them."""
    next(iter(dataset))
    return {**dataset.state_dict(), "turn": rows, "cursors": [[1, rows]]}


def _time_to_first(dataset: me.Dataset, state: dict[str, Any]) -> float:
    again = dataset.lanes(1)
    begun = time.perf_counter()
    again.load_state_dict(state)
    next(iter(again))
    return time.perf_counter() - begun


def state(files: int, repeats: int) -> list[Figure]:
    """Time and size of ``state_dict()`` of a uniform pipeline."""
    return [
        figure
        for name, folder in {"3 files": data.many(3, 20_000), f"{files:,} files": data.tiny(files)}.items()
        for lanes in (1, 256)
        for figure in _state(f"{name}, {lanes} lanes", folder, lanes, repeats)
    ]


def _state(what: str, source: Any, lanes: int, repeats: int) -> Iterator[Figure]:
    dataset = me.read(source, index_dir=data.INDEX).shuffle(1).map(_same).batch(8).lanes(lanes)
    items, total = iter(dataset), len(dataset)
    received = 0
    for place, upto in (("start", 1), ("middle", total // 2), ("end", total - 1)):
        for _ in islice(items, upto - received):
            pass
        received = upto
        micros = 1e6 * median(_seconds_of_state(dataset) for _ in range(repeats))
        yield at_most(20, f"state_dict(), {what}, {place}", micros, "µs")
        yield at_most(1024, f"its size, {what}, {place}", len(json.dumps(dataset.state_dict())), "bytes")


def _same(row: dict[str, Any]) -> dict[str, Any]:
    return row


def _seconds_of_state(dataset: me.Dataset, calls: int = 20) -> float:
    begun = time.perf_counter()
    for _ in range(calls):
        dataset.state_dict()
    return (time.perf_counter() - begun) / calls
