"""Measure batches through worker processes: ``python -m benchmarks.workers [--quick] [--workers 1 2]``.

The contenders are the same pipeline in process, in workers of the Loader, and in workers of torch's DataLoader, which
sends pickled batches and tensors through a queue.
"""

import argparse
import logging
import warnings
from collections.abc import Callable, Sequence

from torch.utils.data import DataLoader

import midepoch as me
from benchmarks import data
from benchmarks.measure import Figure, at_least, exhaust, figure, in_turn, seconds, show

BATCH = 64


def texts(rows: int, workers: Sequence[int], repeats: int) -> list[Figure]:
    """Batches of Python values."""
    dataset = me.read(data.texts(rows), index_dir=data.INDEX).shuffle(1).batch(BATCH)
    times = _times(dataset, workers, repeats)
    return [
        *_ratios("text batches", times, target=0.75),
        *(figure(f"rows/s, {name}", rows / time) for name, time in times.items()),
    ]


def tokens(rows: int, workers: Sequence[int], repeats: int) -> list[Figure]:
    """Batches of tensors, 2,048 tokens a row."""
    dataset = me.read(data.tokens(rows), index_dir=data.INDEX).shuffle(1).with_format("torch").batch(BATCH)
    times = _times(dataset, workers, repeats)
    millions = rows * data.TOKENS / 1e6
    return [
        *_ratios("token batches", times),
        *(figure(f"million tokens/s, {name}", millions / time) for name, time in times.items()),
    ]


def _times(dataset: me.Dataset, workers: Sequence[int], repeats: int) -> dict[str, float]:
    """The shortest time of an epoch of each contender. Workers stay from epoch to epoch."""
    contenders: dict[str, Callable[[], float]] = {"in process": _epochs(me.Loader(dataset))}
    for number in workers:
        contenders[f"{number} workers"] = _epochs(me.Loader(dataset, num_workers=number, persistent_workers=True))
    queue = DataLoader(dataset, batch_size=None, num_workers=workers[-1], collate_fn=_as_it_is, persistent_workers=True)
    contenders[f"{workers[-1]} workers of torch's DataLoader"] = _epochs(queue)
    times = in_turn(contenders, repeats + 1)
    return {name: min(of_contender[1:]) for name, of_contender in times.items()}  # the first epoch starts the workers


def _epochs(loader: DataLoader) -> Callable[[], float]:
    return lambda: seconds(lambda: exhaust(loader))


def _ratios(what: str, times: dict[str, float], target: float | None = None) -> list[Figure]:
    """The speed of each contender / that in process. There may be a target for two workers."""
    figures = []
    for name, time in times.items():
        described, ratio = f"{what}, {name} / in process", times["in process"] / time
        if name == "2 workers" and target is not None:
            figures.append(at_least(target, described, ratio, "×"))
        elif name != "in process":
            figures.append(figure(described, ratio, "×"))
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
