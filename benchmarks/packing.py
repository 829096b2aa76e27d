"""Measure packing: ``python -m benchmarks.packing [--quick]``."""

import argparse
import json
import os
import time
from collections.abc import Iterator
from itertools import islice, pairwise
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

import midepoch as me
from benchmarks import data
from benchmarks.measure import Figure, at_least, at_most, best_apart, exhaust, figure, seconds, show, without_survey
from midepoch.stages.pack.padded import PaddedSpec, TokenBatches
from midepoch.stages.pack.windows import pack

LENGTH, WINDOW, TOKENS = 4096, 1024, 32_768
WINDOWED = ("best_fit", "first_fit", "balanced")
STRATEGIES = (*WINDOWED, "concat")
PERCENT = (1, 50, 99)


def layouts(documents: int) -> list[Figure]:
    """How full packs are, how balanced their cost is, and how long it takes to plan a window."""
    lengths = data.document_lengths(documents)
    windows = [lengths[at : at + WINDOW] for at in range(0, documents, WINDOW)]
    figures = []
    for strategy in WINDOWED:
        begun = time.perf_counter()
        packs = [pack(one, length=LENGTH, strategy=strategy, overlong="drop") for one in windows]
        taken = time.perf_counter() - begun
        costs = np.concatenate([_costs(one.stops - one.starts, one.bounds) for one in packs])
        fill = sum(int((one.stops - one.starts).sum()) for one in packs) / (LENGTH * len(costs))
        figures += [
            at_least(0.99, f"{strategy}: fill", fill) if strategy == "best_fit" else figure(f"{strategy}: fill", fill),
            figure(f"{strategy}: packs", len(costs)),
            figure(f"{strategy}: attention cost of a pack, standard deviation / mean", costs.std() / costs.mean()),
            figure(f"{strategy}: attention cost of a pack, largest / mean", costs.max() / costs.mean()),
            figure(f"{strategy}: laying out a window of {WINDOW:,}", 1e3 * taken / len(windows), "ms"),
        ]
    return figures


def padding(documents: int) -> list[Figure]:
    """The share of padding in batches by tokens, and in batches of as many rows as they come."""
    lengths = data.document_lengths(documents)
    lengths = lengths[(lengths > 0) & (lengths <= LENGTH)]
    spec = PaddedSpec(
        length=TOKENS, column="input_ids", overlong="error", eos=None, pad=None, labels=None, number=1,
        max_tokens=TOKENS, max_rows=None, multiple_of=1, pads=(("input_ids", 0),),
    )  # fmt: skip
    stage = TokenBatches(spec=spec, window=WINDOW)
    windows = [lengths[at : at + WINDOW] for at in range(0, len(lengths), WINDOW)]
    begun = time.perf_counter()
    layouts = [stage.lay_out(one, str) for one in windows]
    taken = time.perf_counter() - begun
    places = batches = 0
    for one in layouts:
        of_batches = np.diff(one.bounds)
        batches += len(one)
        places += int((of_batches * np.maximum.reduceat(one.stops - one.starts, one.bounds[:-1])).sum())
    rows = max(1, len(lengths) // batches)
    as_they_come = [lengths[at : at + rows] for at in range(0, len(lengths), rows)]
    plain = sum(len(one) * int(one.max()) for one in as_they_come)
    return [
        at_most(5, "batch_by_tokens: padding", 100 * (1 - lengths.sum() / places), "%"),
        figure(f"batches of {rows} rows as they come: padding", 100 * (1 - lengths.sum() / plain), "%"),
        figure("batch_by_tokens: places of a batch that are used, with padding", places / (batches * TOKENS)),
        figure(f"batch_by_tokens: laying out a window of {WINDOW:,}", 1e3 * taken / len(windows), "ms"),
    ]


def batches_speed(documents: int, repeats: int) -> list[Figure]:
    """Tokens a second in padded batches from a mapped file, beside packs."""
    rows = me.read(data.documents(documents), index_dir=data.INDEX)
    datasets = {
        "best_fit": rows.pack(LENGTH, window=WINDOW, overlong="drop", pad=0),
        "batch_by_tokens": rows.batch_by_tokens(TOKENS, window=WINDOW, overlong="drop"),
    }
    tokens = {
        "best_fit": sum(int(one["cu_seqlens"][-1]) for one in datasets["best_fit"]),
        "batch_by_tokens": sum(int(one["lengths"].sum()) for one in datasets["batch_by_tokens"]),
    }
    times = best_apart({name: _pass(dataset) for name, dataset in datasets.items()}, repeats)
    return [figure(f"{name}: real tokens", tokens[name] / times[name] / 1e6, "million/s") for name in datasets]


def _costs(sizes: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.array([int((sizes[begin:end] ** 2).sum()) for begin, end in pairwise(bounds.tolist())])


def speed(documents: int, repeats: int) -> list[Figure]:
    """Packed tokens per second from a mapped file, compared with the cost of tokenising them."""
    folder = data.documents(documents)
    datasets = {strategy: _packed(folder, strategy) for strategy in STRATEGIES}
    tokens = {name: sum(int(one["cu_seqlens"][-1]) for one in dataset) for name, dataset in datasets.items()}
    times = best_apart({name: _pass(dataset) for name, dataset in datasets.items()}, repeats)
    tokenised = _tokens_a_second()
    figures = [figure("tokenising with BPE, one thread", tokenised / 1e6, "million tokens/s")]
    for name in STRATEGIES:
        packed = tokens[name] / times[name]
        figures += [
            figure(f"{name}: packing", packed / 1e6, "million tokens/s"),
            figure(f"{name}: packing, share of the time next to tokenising", 100 / (1 + packed / tokenised), "%"),
        ]
    return figures


def _packed(folder: Any, strategy: str, window: int = WINDOW) -> me.Dataset:
    rows = me.read(folder, index_dir=data.INDEX)
    packs = rows.pack(LENGTH, strategy=strategy, window=window, overlong="drop", labels="input_ids")
    return without_survey(packs)


def _pass(dataset: me.Dataset) -> Any:
    return lambda: exhaust(dataset)


def _tokens_a_second(letters: int = 4 << 20) -> float:
    """How fast a small BPE tokeniser, trained on the spot, makes tokens of documents, one after the other."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    text = data.words(letters)
    texts = [text[at : at + 5000] for at in range(0, letters, 5000)]
    tokeniser = data.tokeniser()
    count = sum(len(tokeniser.encode(one).ids) for one in texts)
    return count / min(seconds(lambda: [tokeniser.encode(one).ids for one in texts]) for _ in range(3))


def resuming(documents: int, repeats: int) -> Iterator[Figure]:
    """The time from ``load_state_dict`` to the first pack, inside a window, at some positions of an epoch."""
    folder = data.documents(documents)
    for strategy in STRATEGIES:
        states = _states(_packed(folder, strategy))
        times: dict[int, list[float]] = {percent: [] for percent in PERCENT}
        for _ in range(repeats):
            for percent in PERCENT:
                times[percent].append(_time_to_first(_packed(folder, strategy), states[percent]))
        first = {percent: median(taken) for percent, taken in times.items()}
        for percent in PERCENT:
            yield figure(f"{strategy}: first pack after a resume at {percent} %", 1e3 * first[percent], "ms")
        yield at_most(1.3, f"{strategy}: the same at 99 % / at 1 %", first[99] / first[1], "×")


def _states(dataset: me.Dataset) -> dict[int, dict[str, Any]]:
    """The states at some positions of an epoch, inside a window or a document."""
    packs = sum(1 for _ in dataset)
    due = {percent: packs * percent // 100 for percent in PERCENT}
    states: dict[int, dict[str, Any]] = {}
    dataset.set_epoch(0)
    for number, _ in enumerate(dataset):
        waiting = [percent for percent, at in due.items() if at <= number and percent not in states]
        if waiting and (state := dataset.state_dict())["cursors"][0][1][-1]:
            states |= dict.fromkeys(waiting, state)
        if len(states) == len(due):
            break
    return states


def _time_to_first(dataset: me.Dataset, state: dict[str, Any]) -> float:
    begun = time.perf_counter()
    dataset.load_state_dict(state)
    next(iter(dataset))
    return time.perf_counter() - begun


def state(documents: int) -> Iterator[Figure]:
    """The size of a state in the middle of an epoch, with windows small enough that lanes are in different ones."""
    for lanes in (1, 32):
        for strategy in ("best_fit", "concat"):
            dataset = _packed(data.documents(documents), strategy, window=64).lanes(lanes)
            exhaust(islice(dataset, documents // 5))
            size = len(json.dumps(dataset.state_dict()))
            yield at_most(2048, f"{strategy}: state with {lanes} lanes", size, "bytes")


def main() -> None:
    """Run all and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few documents, to see that everything runs")
    quick = parser.parse_args().quick
    lengths, documents, repeats = (4_096, 4_096, 3) if quick else (400_000, 40_000, 7)
    show(f"Packs of {LENGTH:,} tokens, {lengths:,} lognormal documents", layouts(lengths))
    show(f"Padded batches of {TOKENS:,} tokens, {lengths:,} lognormal rows", padding(lengths))
    show(f"Padded batches of {documents:,} rows, beside packs", batches_speed(documents, repeats))
    show(f"Packing {documents:,} documents", speed(documents, repeats))
    show("Resuming inside a window", resuming(documents, repeats))
    show("State", state(documents))


if __name__ == "__main__":
    main()
