"""How fast rows and batches come, against the plain loop over the same files and against ``datasets``."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import midepoch as me
from benchmarks import data
from benchmarks.measure import Figure, at_least, best_apart, exhaust, figure, in_turn, processor_seconds

BATCH = 64


def rows(text_rows: int, peer_rows: int, repeats: int) -> list[Figure]:
    """Rows as dicts in one process."""
    folder = data.texts(text_rows)
    dataset = _opened(folder)
    peer = _datasets(folder)
    times = best_apart(
        {
            "plain": lambda: _plain_rows(folder),
            "sequential": lambda: exhaust(dataset),
            "block": lambda: exhaust(dataset.shuffle(1)),
            "row": lambda: exhaust(dataset.shuffle(1, level="row")),
            "sequential, newly opened": lambda: exhaust(_opened(folder)),
            "block, newly opened": lambda: exhaust(_opened(folder).shuffle(1)),
            "datasets": lambda: exhaust(peer.take(peer_rows)),
            "datasets, batched": lambda: _exhaust_batched(peer.take(peer_rows).iter(batch_size=1000)),
        },
        repeats,
    )
    speed = {name: (peer_rows if "datasets" in name else text_rows) / time for name, time in times.items()}
    plain, rival = speed["plain"], speed["datasets"]
    return [
        at_least(0.85, "sequential / plain to_pylist loop", speed["sequential"] / plain, "×"),
        at_least(0.7, "shuffle (block) / plain to_pylist loop", speed["block"] / plain, "×"),
        figure("shuffle (row) / plain to_pylist loop", speed["row"] / plain, "×"),
        figure("sequential, newly opened / plain to_pylist loop", speed["sequential, newly opened"] / plain, "×"),
        figure("shuffle (block), newly opened / plain to_pylist loop", speed["block, newly opened"] / plain, "×"),
        at_least(15, "sequential / datasets to_iterable_dataset", speed["sequential"] / rival, "×"),
        at_least(15, "shuffle (block) / datasets to_iterable_dataset", speed["block"] / rival, "×"),
        figure("sequential / datasets .iter(batch_size=1000)", speed["sequential"] / speed["datasets, batched"], "×"),
        *(figure(f"rows/s, {name}", value) for name, value in speed.items()),
    ]


def batches(text_rows: int, repeats: int) -> list[Figure]:
    """Batches as columns of Python lists."""
    folder = data.texts(text_rows)
    dataset = _opened(folder)
    times = best_apart(
        {
            "plain": lambda: _plain_batches(folder),
            "sequential": lambda: exhaust(dataset.batch(BATCH)),
            "block": lambda: exhaust(dataset.shuffle(1).batch(BATCH)),
        },
        repeats,
    )
    return [
        at_least(0.8, "batch(64) / plain slice(i, 64).to_pydict() loop", times["plain"] / times["sequential"], "×"),
        figure("shuffle (block) + batch(64) / the same", times["plain"] / times["block"], "×"),
        *(figure(f"rows/s, {name}", text_rows / time) for name, time in times.items()),
    ]


def tensors(token_rows: int, repeats: int) -> list[Figure]:
    """Batches of token rows as torch tensors, against copying the same bytes from the mapped pages."""
    folder = data.tokens(token_rows)
    dataset = _opened(folder)
    tensor = dataset.with_format("torch").batch(BATCH)
    times = best_apart(
        {
            "memcpy into one buffer": lambda: _copy(folder, reuse=True),
            "memcpy into new memory": lambda: _copy(folder, reuse=False),
            "sequential": lambda: exhaust(tensor),
            "block": lambda: exhaust(dataset.shuffle(1).with_format("torch").batch(BATCH)),
        },
        repeats,
    )
    size = token_rows * data.TOKENS * 4 / 1e9
    plain, new = times["memcpy into one buffer"], times["memcpy into new memory"]
    return [
        at_least(0.5, "torch batches / memcpy into one buffer", plain / times["sequential"], "×"),
        figure("torch batches / memcpy into new memory", new / times["sequential"], "×"),
        figure("shuffle (block) + torch batches / memcpy into one buffer", plain / times["block"], "×"),
        *(figure(f"GB/s, {name}", size / time) for name, time in times.items()),
    ]


def tensor_sizes(token_rows: int, repeats: int) -> list[Figure]:
    """Batches of token rows of several sizes, against a loop that copies each to a new tensor, in processor time."""
    folder = data.tokens(token_rows)
    dataset = _opened(folder).with_format("torch")
    figures = []
    for size in (8, 64, 256):
        contenders = {
            "loop": lambda n=size: processor_seconds(lambda: exhaust(_tensors(folder, n))),
            "in order": lambda n=size: processor_seconds(lambda: exhaust(dataset.batch(n))),
            "block": lambda n=size: processor_seconds(lambda: exhaust(dataset.shuffle(1).batch(n))),
        }
        times = {name: min(values) for name, values in in_turn(contenders, repeats).items()}
        figures += [
            at_least(0.7, f"batches of {size} / a loop that makes tensors", times["loop"] / times["in order"], "×"),
            figure(f"the same, shuffle (block), batches of {size}", times["loop"] / times["block"], "×"),
        ]
    return figures


def _tensors(folder: Path, size: int) -> Iterator[Any]:
    import torch

    for batch in _streams(folder):
        for start in range(0, batch.num_rows, size):
            column = batch.slice(start, size).column(0)
            yield torch.from_numpy(column.flatten().to_numpy().reshape(len(column), -1).copy())


def _opened(folder: Path) -> me.Dataset:
    """A dataset whose files are not mapped yet, as for the plain loop every time."""
    return me.read(folder, index_dir=data.INDEX)


def _streams(folder: Path) -> Iterator[pa.RecordBatch]:
    """The record batches of a folder, read in the simplest way."""
    for path in sorted(folder.glob("*.arrow")):
        with pa.memory_map(str(path)) as file:
            yield from pa.ipc.open_stream(file)


def _plain_rows(folder: Path) -> None:
    """The loop that a user without a library writes."""
    for batch in _streams(folder):
        for _ in batch.to_pylist():
            pass


def _plain_batches(folder: Path) -> None:
    for batch in _streams(folder):
        for start in range(0, batch.num_rows, BATCH):
            batch.slice(start, BATCH).to_pydict()


def _copy(folder: Path, *, reuse: bool) -> None:
    """Copy all tokens, a batch at a time."""
    buffer = np.empty(BATCH * data.TOKENS, np.int32)
    for batch in _streams(folder):
        values = batch.column(0).flatten().to_numpy()
        for start in range(0, len(values), len(buffer)):
            part = values[start : start + len(buffer)]
            np.copyto(buffer[: len(part)] if reuse else np.empty_like(part), part)


def _datasets(folder: Path) -> object:
    """The same files as an iterable dataset of ``datasets``, which reads Arrow streams like its own cache."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets

    parts = [datasets.Dataset.from_file(str(path)) for path in sorted(folder.glob("*.arrow"))]
    return datasets.concatenate_datasets(parts).to_iterable_dataset()


def _exhaust_batched(batches: Iterator[dict[str, list[object]]]) -> None:
    """Convert columns to rows, as a user who wants speed would."""
    for batch in batches:
        exhaust(dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True))
