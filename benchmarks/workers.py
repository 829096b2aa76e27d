"""Measure batches through worker processes: ``python -m benchmarks.workers [--quick] [--workers 1 2]``.

The contenders are the same pipeline in process, in workers of the Loader, and in workers of torch's DataLoader, which
sends pickled batches and tensors through a queue.
"""

import argparse
import logging
import multiprocessing
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.utils.data import DataLoader

import midepoch as me
from benchmarks import data
from benchmarks.measure import Figure, at_least, exhaust, figure, seconds, show

BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The seconds of an epoch, and the seconds of processor time that it took."""

    seconds: float
    main: float
    workers: float


def texts(rows: int, workers: Sequence[int], repeats: int) -> list[Figure]:
    """Batches of texts, which are lists, and numbers, which are tensors."""
    dataset = me.read(data.texts(rows), index_dir=data.INDEX).shuffle(1).with_format("torch").batch(BATCH)
    epochs = _epochs(dataset, workers, repeats)
    speeds = [figure(f"rows/s, {name}", rows / epoch.seconds) for name, epoch in epochs.items()]
    return [*_ratios("text batches", epochs, target=0.75), *speeds, *_processor_times(epochs, rows)]


def tokens(rows: int, workers: Sequence[int], repeats: int) -> list[Figure]:
    """Batches of tensors, 2,048 tokens a row."""
    dataset = me.read(data.tokens(rows), index_dir=data.INDEX).shuffle(1).with_format("torch").batch(BATCH)
    epochs = _epochs(dataset, workers, repeats)
    millions = rows * data.TOKENS / 1e6
    speeds = [figure(f"million tokens/s, {name}", millions / epoch.seconds) for name, epoch in epochs.items()]
    return [*_ratios("token batches", epochs), *speeds, *_processor_times(epochs, rows)]


def _epochs(dataset: me.Dataset, workers: Sequence[int], repeats: int) -> dict[str, Epoch]:
    """The shortest times of an epoch of each contender. Workers stay from epoch to epoch."""
    loaders: dict[str, DataLoader] = {"in process": me.Loader(dataset)}
    for number in workers:
        loaders[f"{number} workers"] = me.Loader(dataset, num_workers=number, persistent_workers=True)
    queue = DataLoader(dataset, batch_size=None, num_workers=workers[-1], collate_fn=_as_it_is, persistent_workers=True)
    loaders[f"{workers[-1]} workers of torch's DataLoader"] = queue
    rounds: dict[str, list[Epoch]] = {name: [] for name in loaders}
    for _ in range(1 + repeats):
        for name, loader in loaders.items():
            rounds[name].append(_epoch(loader))
    return {  # the first epoch starts the workers
        name: Epoch(
            seconds=min(epoch.seconds for epoch in epochs[1:]),
            main=min(epoch.main for epoch in epochs[1:]),
            workers=min(epoch.workers for epoch in epochs[1:]),
        )
        for name, epochs in rounds.items()
    }


def _epoch(loader: DataLoader) -> Epoch:
    main, workers = time.process_time(), _processor_time_of_workers()
    taken = seconds(lambda: exhaust(loader))
    return Epoch(seconds=taken, main=time.process_time() - main, workers=_processor_time_of_workers() - workers)


def _processor_time_of_workers() -> float:
    """What the system has counted for all processes that this one has started; 0 where that is not known."""
    ticks = 0
    for process in multiprocessing.active_children():
        counted = Path(f"/proc/{process.pid}/stat")
        if counted.exists():
            ticks += sum(map(int, counted.read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _ratios(what: str, epochs: dict[str, Epoch], target: float | None = None) -> list[Figure]:
    """The speed of each contender / that in process. There may be a target for two workers."""
    figures = []
    for name, epoch in epochs.items():
        described, ratio = f"{what}, {name} / in process", epochs["in process"].seconds / epoch.seconds
        if name == "2 workers" and target is not None:
            figures.append(at_least(target, described, ratio, "×"))
        elif name != "in process":
            figures.append(figure(described, ratio, "×"))
    return figures


def _processor_times(epochs: dict[str, Epoch], rows: int) -> list[Figure]:
    """These depend less on what else the machine does."""
    figures = []
    for name, epoch in epochs.items():
        figures.append(figure(f"processor time a row, {name}: main process", 1e6 * epoch.main / rows, "µs"))
        if epoch.workers:
            figures.append(figure(f"processor time a row, {name}: workers", 1e6 * epoch.workers / rows, "µs"))
    return figures


def _as_it_is(item: object) -> object:
    return item


def main() -> None:
    """Run the benchmarks and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, to see that everything runs")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="the numbers of workers")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    logging.disable(logging.WARNING)
    text_rows, token_rows, repeats = (12_000, 2_000, 2) if given.quick else (200_000, 32_000, 5)
    show("Text batches", texts(text_rows, given.workers, repeats))
    show("Token batches", tokens(token_rows, given.workers, repeats))


if __name__ == "__main__":
    main()
