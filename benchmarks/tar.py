"""Tar files of samples against WebDataset with its usual pipeline: ``python -m benchmarks.tar [--quick]``.

It needs ``webdataset``. Times are those of the processor, of all processes together, and by the clock.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import webdataset as wds

import midepoch as me
from benchmarks.decoding import photos
from benchmarks.measure import Figure, at_least, exhaust, figure, in_turn, show

BATCH, WORKERS, SHARDS = 64, 2, 8


def write(folder: Path, contents: list[bytes], samples: int) -> list[str]:
    """Shards of a JPEG or other bytes, a class and some JSON for each sample."""
    folder.mkdir()
    with wds.ShardWriter(f"{folder}/%06d.tar", maxcount=-(-samples // SHARDS), maxsize=1e12, verbose=0) as writer:
        for number in range(samples):
            content = contents[number % len(contents)]
            writer.write({"__key__": f"{number:09}", "jpg": content, "cls": number % 1000, "json": {"id": number}})
    return sorted(map(str, folder.glob("*.tar")))


def to_pixels(row: dict[str, Any]) -> dict[str, Any]:
    """An image as an array."""
    return {"jpg": np.asarray(row["jpg"])}


def wds_samples(files: list[str], decodes: bool) -> Any:
    """The pipeline that WebDataset recommends: shards are shuffled, and samples in a buffer."""
    dataset = wds.WebDataset(files, shardshuffle=SHARDS, seed=1).shuffle(1000)
    return dataset.decode("pil").map(to_pixels) if decodes else dataset


def samples(files: list[str], index: Path, decodes: bool, **options: Any) -> Any:
    """The same samples, read by midepoch."""
    dataset = me.read(files, index_dir=index).shuffle(seed=1)
    return dataset.decode(**options).map(to_pixels).select_columns(["jpg"]) if decodes else dataset


def as_list(rows: list[Any]) -> list[Any]:
    """A batch that is a list of samples."""
    return rows


def apart(call: Callable[[], Any]) -> tuple[float, float]:
    """The time of the second of two calls in a fork: of the processor, with that of workers, and by the clock."""
    answers, answer = os.pipe()
    child = os.fork()
    if child == 0:
        call()
        begun = os.times()
        call()
        ended = os.times()
        os.write(answer, f"{sum(ended[:4]) - sum(begun[:4])} {ended[4] - begun[4]}".encode())
        os._exit(0)
    os.close(answer)
    with os.fdopen(answers) as printed:
        processor, clock = map(float, printed.read().split())
    os.waitpid(child, 0)
    return processor, clock


def against(files: list[str], index: Path, number: int, decodes: bool, repeats: int) -> Iterator[Figure]:
    """Samples in process and through workers."""

    def through_workers() -> None:
        loader = me.Loader(samples(files, index, decodes), batch_size=BATCH, num_workers=WORKERS, collate_fn=as_list)
        exhaust(loader)
        del loader

    ways: dict[str, Callable[[], Any]] = {
        "in process": lambda: exhaust(samples(files, index, decodes)),
        "in process, WebDataset": lambda: exhaust(wds_samples(files, decodes)),
        f"{WORKERS} workers": through_workers,
        f"{WORKERS} workers, WebDataset": lambda: exhaust(
            wds.WebLoader(
                wds_samples(files, decodes).batched(BATCH, collation_fn=as_list), batch_size=None, num_workers=WORKERS
            )
        ),
    }
    if decodes:
        ways["in process, turbo"] = lambda: exhaust(samples(files, index, True, decoder="turbo"))
    clock: dict[str, list[float]] = {name: [] for name in ways}

    def processor(name: str) -> float:
        taken, by_clock = apart(ways[name])
        clock[name].append(by_clock)
        return taken

    taken = in_turn({name: partial(processor, name) for name in ways}, repeats)
    best = {name: min(seconds) for name, seconds in taken.items()}
    for name in ("in process", f"{WORKERS} workers"):
        theirs = f"{name}, WebDataset"
        yield at_least(1, f"{name} / WebDataset, processor time", best[theirs] / best[name], "×")
        yield figure(f"{name} / WebDataset, by the clock", min(clock[theirs]) / min(clock[name]), "×")
    for name, seconds in best.items():
        yield figure(f"{name}: samples a second of one core", number / seconds)


def indexing(files: list[str], folder: Path, number: int) -> Iterator[Figure]:
    """The first opening, which walks over the headers."""
    taken = []
    for attempt in range(5):
        begun = time.process_time()
        me.read(files, index_dir=folder / f"index-{attempt}")
        taken.append(time.process_time() - begun)
    yield figure("index of 10,000 samples, processor time", 1e3 * min(taken) * 10_000 / number, "ms")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, to see that everything runs")
    raw, pictures, repeats = (400, 100, 1) if parser.parse_args().quick else (20_000, 2_000, 4)
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(0)
        files = write(folder / "raw", [rng.bytes(int(size)) for size in rng.integers(1_000, 20_000, 100)], raw)
        show("Index", indexing(files, folder, raw))
        show("Bytes of 1 to 20 KB", against(files, folder / "index", raw, False, repeats))
        files = write(folder / "jpeg", photos(256, 100), pictures)
        show("JPEG of 256 × 192 pixels", against(files, folder / "index", pictures, True, repeats))


if __name__ == "__main__":
    main()
