"""Measure planned packs and counted mixtures: ``python -m benchmarks.planning [--quick]``."""

import argparse
import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import midepoch as me
from benchmarks import data
from benchmarks.measure import Figure, at_least, at_most, best_apart, exhaust, figure, seconds, show, without_survey

LENGTH, WINDOW = 4096, 1024
WINDOWED = ("best_fit", "first_fit", "balanced")
STRATEGIES = (*WINDOWED, "concat")
LANES = (1, 64, 1024)
PERCENT = (1, 50, 99)


def _packs(folder: Path, strategy: str, window: int = WINDOW) -> me.Dataset:
    rows = me.read(folder, index_dir=data.INDEX).shuffle(1)
    return rows.pack(LENGTH, strategy=strategy, window=window, overlong="drop", labels="input_ids")


def _forget_counts(dataset: me.Dataset) -> None:
    survey = dataset.plan.pipeline.survey
    assert survey is not None
    for path in survey.folder.glob("*.counts"):
        path.unlink()


def _pass(dataset: me.Dataset) -> None:
    """A pass that begins without counts of an earlier one."""
    if dataset.counted:
        _forget_counts(dataset)
    dataset.set_epoch(0)
    exhaust(dataset)


def _plan(dataset: me.Dataset) -> None:
    _forget_counts(dataset)
    len(dataset)


def passes(documents: int, repeats: int) -> Iterator[Figure]:
    """A pass of planned packs against one that is not planned, and the time for planning alone."""
    folder = data.documents(documents)
    for strategy in STRATEGIES:
        plain, planned = without_survey(_packs(folder, strategy)), _packs(folder, strategy).survey()
        contenders = {
            "plain": lambda plain=plain: _pass(plain),
            "planned": lambda planned=planned: _pass(planned),
            "plan": lambda planned=planned: _plan(planned),
        }
        times = best_apart(contenders, repeats)
        yield at_least(1.0, f"{strategy}: a planned pass / one without a survey", times["plain"] / times["planned"])
        share = 100 * times["plan"] / times["planned"]
        what = f"{strategy}: planning, share of a pass on one rank"
        yield at_most(5, what, share, "%") if strategy == "best_fit" else figure(what, share, "%")


def counting(documents: int) -> Iterator[Figure]:
    """The time until ``len()`` is known of many documents, in one process, and if another one has counted them."""
    for strategy, number in zip(STRATEGIES, (documents, documents // 10, documents // 10, documents), strict=True):
        dataset = _packs(data.documents(number, median=20), strategy).survey()
        _forget_counts(dataset)
        taken = seconds(lambda dataset=dataset: len(dataset))
        yield figure(f"{strategy}: len() of {number:,} documents, one process", taken, "s")
        yield figure(f"{strategy}: the same for 10^9, by proportion", taken * 1e9 / number, "s")
        if strategy != "concat":
            again = seconds(lambda dataset=dataset: len(dataset))
            yield figure(f"{strategy}: len() when another process has counted", again, "s")


def resuming(documents: int, repeats: int) -> Iterator[Figure]:
    """The time from ``load_state_dict`` to the first pack, at some positions of an epoch."""
    folder = data.documents(documents)
    for strategy in ("best_fit", "concat"):
        dataset = _packs(folder, strategy).survey()
        total, states = len(dataset), {}
        for percent in PERCENT:
            dataset.set_epoch(0)
            iterator = iter(dataset)
            exhaust(islice(iterator, total * percent // 100 + 1))
            states[percent] = iterator.state_dict()
        times: dict[int, list[float]] = {percent: [] for percent in PERCENT}
        for _ in range(repeats):
            for percent in PERCENT:
                times[percent].append(_time_to_first(_packs(folder, strategy).survey(), states[percent]))
        first = {percent: median(taken) for percent, taken in times.items()}
        yield figure(f"{strategy}: first planned pack after a resume at 50 %", 1e3 * first[50], "ms")
        yield at_most(1.3, f"{strategy}: the same at 99 % / at 1 %", first[99] / first[1], "×")


def _time_to_first(dataset: me.Dataset, state: dict[str, object]) -> float:
    _forget_counts(dataset)
    begun = time.perf_counter()
    dataset.load_state_dict(state)
    next(iter(dataset))
    return time.perf_counter() - begun


def states(documents: int) -> Iterator[Figure]:
    """The size of a state in the middle of an epoch, with windows so small that lanes are in different ones."""
    for lanes in LANES:
        dataset = _packs(data.documents(documents), "best_fit", window=8).survey().lanes(lanes)
        iterator = iter(dataset)
        exhaust(islice(iterator, documents // 8))
        state = iterator.state_dict()
        yield figure(f"state of planned packs with {lanes:,} lanes", len(json.dumps(state)), "bytes")
        taken = [_time_of_state(iterator) for _ in range(50)]
        yield figure(f"state_dict() after each item, with {lanes:,} lanes", 1e6 * median(taken), "µs")


def _time_of_state(iterator: Any) -> float:
    next(iterator)
    begun = time.perf_counter()
    iterator.state_dict()
    return time.perf_counter() - begun


def mixtures(rows: int, repeats: int) -> Iterator[Figure]:
    """A mixture of plain parts that is counted, against one whose weights repeat too late for that."""
    folder = data.many(3, rows)
    weights = {"counted": (3, 2, 1), "uncounted": (3.000001, 2, 1)}
    for batch in (None, 64):
        contenders = {}
        for name, of_parts in weights.items():
            parts = [me.read(folder / f"part-{part:04}.arrow", index_dir=data.INDEX).shuffle(part) for part in range(3)]
            mixed = me.mix(parts, weights=of_parts, seed=1, stop="all")
            mixed = mixed if batch is None else mixed.batch(batch)
            assert mixed.counted == (name == "counted")
            contenders[name] = lambda mixed=mixed: exhaust(mixed)
        times = best_apart(contenders, repeats)
        what = "rows" if batch is None else f"batches of {batch}"
        yield at_least(
            1.0, f"mixture, {what}: a counted pass / an uncounted one", times["uncounted"] / times["counted"]
        )


def main() -> None:
    """Run all and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few documents, to see that everything runs")
    quick = parser.parse_args().quick
    documents, many, rows, repeats = (4_096, 100_000, 10_000, 3) if quick else (40_000, 10_000_000, 200_000, 5)
    show(f"Planned packs of {LENGTH:,} tokens, {documents:,} documents", passes(documents, repeats))
    show("Counting", counting(many))
    show("Resuming into planned packs", resuming(documents, repeats))
    show("States", states(documents))
    show("Mixtures of plain parts", mixtures(rows, repeats))


if __name__ == "__main__":
    main()
