"""Measure the Loader: ``python -m benchmarks.loader [--quick]``."""

import argparse
import json
import timeit
import warnings
from functools import partial
from itertools import islice

from torch.utils.data import DataLoader

import midepoch as me
from benchmarks import data
from benchmarks.measure import Figure, at_most, exhaust, figure, in_turn, medians, processor_seconds, seconds, show

BATCH = 64
WORKERS = (0, 2, 4)
LANES = (1, 32, 256)


def first_batch(rows: int, repeats: int) -> list[Figure]:
    """The first batch of a new process's loader: after a resume at half the epoch, against a plain start."""
    source = me.read(data.tokens(rows), index_dir=data.INDEX).shuffle(1).with_format("torch").batch(BATCH)
    figures = []
    for workers in WORKERS:
        half = me.Loader(source.lanes(4), num_workers=workers)
        exhaust(islice(half, rows // BATCH // 2))
        state = half.state_dict()

        def resumed(workers: int = workers, state: dict = state) -> None:
            loader = me.Loader(source.lanes(4), num_workers=workers)
            loader.load_state_dict(state)
            next(iter(loader))

        def plain(workers: int = workers) -> None:
            next(iter(_plain(source.lanes(4), workers)))

        times = medians({"resumed": resumed, "plain": plain}, repeats)
        figures += [
            figure(
                f"{workers} workers: resumed Loader / plain DataLoader's start", times["resumed"] / times["plain"], "×"
            ),
            figure(f"{workers} workers: resumed Loader", times["resumed"] * 1000, "ms"),
        ]
    return figures


def states(rows: int, repeats: int) -> list[Figure]:
    """The state in the middle of an epoch: its size, and the time of state_dict()."""
    source = me.read(data.tokens(rows), index_dir=data.INDEX).shuffle(1)
    figures = []
    for name, dataset in (("uniform", source.batch(4)), ("filtering", source.filter(_keep).batch(4))):
        for lanes in LANES:
            loader = me.Loader(dataset.lanes(lanes))
            batches = iter(loader)
            exhaust(islice(batches, rows // 10))
            micros = min(timeit.repeat(loader.state_dict, number=100, repeat=repeats)) / 100 * 1e6
            size = len(json.dumps(loader.state_dict()))
            what = f"{name}, {lanes} lanes"
            if name == "uniform":
                figures += [at_most(20, what, micros, "µs"), at_most(1024, what, size, "bytes")]
            else:
                figures += [figure(what, micros, "µs"), figure(what, size, "bytes")]
    return figures


def overhead(token_rows: int, text_rows: int, repeats: int) -> list[Figure]:
    """The time of a pass of the Loader / that of a plain DataLoader that yields the same batches."""
    figures = []
    tokens = me.read(data.tokens(token_rows), index_dir=data.INDEX).with_format("torch").batch(BATCH)
    texts = me.read(data.texts(text_rows), index_dir=data.INDEX).with_format("torch").batch(BATCH)
    for name, dataset in (("token batches", tokens), ("text batches", texts)):
        for workers in (0, 2):
            contenders = {
                "midepoch": lambda d=dataset, w=workers: seconds(lambda: exhaust(me.Loader(d.lanes(2), num_workers=w))),
                "plain": lambda d=dataset, w=workers: seconds(lambda: exhaust(_plain(d.lanes(2), w))),
            }
            times = {key: min(values) for key, values in in_turn(contenders, repeats).items()}
            what = f"{name}, {workers} workers: Loader / plain DataLoader, time"
            figures.append(at_most(1.05, what, times["midepoch"] / times["plain"], "×"))
    return figures


def digests(rows: int, repeats: int) -> list[Figure]:
    """The processor time that a digest of the delivered rows adds to an epoch."""
    texts = me.read(data.texts(rows), index_dir=data.INDEX)
    figures = []
    for what, dataset in (("in order", texts), ("block shuffle", texts.shuffle(1))):
        passes = {
            asked: partial(processor_seconds, lambda d=dataset, a=asked: exhaust(me.Loader(d, BATCH, digest=a)))
            for asked in (False, True)
        }
        times = {asked: min(taken) for asked, taken in in_turn(passes, repeats).items()}
        figures.append(
            at_most(2.0, f"text batches, {what}: added by a digest", 100 * (times[True] / times[False] - 1), "%")
        )
    return figures


def _plain(dataset: me.Dataset, workers: int) -> DataLoader:
    """torch's own loader, without conversions, like the Loader."""
    return DataLoader(dataset, batch_size=None, num_workers=workers, collate_fn=_as_it_is)


def _as_it_is(item: object) -> object:
    return item


def _keep(row: dict) -> bool:
    return True


def main() -> None:
    """Run the benchmarks and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, to see that everything runs")
    quick = parser.parse_args().quick
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    tokens, texts, repeats = (2_000, 12_000, 2) if quick else (32_000, 200_000, 7)
    show("First batch after a resume", first_batch(tokens, repeats))
    show("state_dict() of a Loader", states(2_000, repeats))
    show("A digest of the delivered rows", digests(texts, repeats))
    show("Overhead over a plain DataLoader", overhead(tokens, texts, repeats))


if __name__ == "__main__":
    main()
