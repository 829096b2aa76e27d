"""Measure the Hugging Face front door: ``python -m benchmarks.huggingface [--quick] [--only NAME]``.

It and ``datasets`` read the same cache, which ``datasets`` has prepared, or the same ``save_to_disk`` folder.
"""

import argparse
import compileall
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import Any

import midepoch as me
from benchmarks import data
from benchmarks.measure import Figure, at_most, figure, fresh, in_turn, show

PERCENTS = (1, 50, 99)
SHUFFLE_BUFFER = 1000

PREPARE = """
import sys, datasets
path, saved, files = sys.argv[1], sys.argv[2], int(sys.argv[3])
# datasets starts a new cache file once the last one is large enough: here at every row group, by default at 500 MB.
datasets.load_dataset_builder("parquet", data_files=path).download_and_prepare(max_shard_size=1)
loaded = datasets.load_dataset("parquet", data_files=path, split="train")
assert len(loaded.cache_files) == files, loaded.cache_files
loaded.save_to_disk(saved, num_shards=files)
"""
CLOCK = """
import sys, time
path, saved, index, begun = *sys.argv[1:4], float(sys.argv[4])
{code}
print(time.monotonic() - begun)
"""
OURS = """
import midepoch
next(iter(midepoch.fast_load_iterable_dataset("parquet", data_files=path, split="train", index_dir=index)))
assert not known or "datasets" not in sys.modules
"""
OURS_SAVED = """
import midepoch
next(iter(midepoch.fast_load_iterable_dataset(saved, index_dir=index)))
assert "datasets" not in sys.modules
"""
STARTS = {
    "load_dataset, to_iterable_dataset": """
import datasets
next(iter(datasets.load_dataset("parquet", data_files=path, split="train").to_iterable_dataset()))
""",
    "load_dataset, [0]": """
import datasets
datasets.load_dataset("parquet", data_files=path, split="train")[0]
""",
    "load_from_disk, [0]": "import datasets; datasets.load_from_disk(saved)[0]",
    "midepoch": f"known = True\n{OURS}",
    "midepoch, save_to_disk": OURS_SAVED,
    "import pyarrow, numpy": "import pyarrow, numpy",
}
IMPORTED = "import torch, {name}; {name}.{attribute}; begun = time.monotonic()\n"
OPENS = {
    name: IMPORTED.format(name=module, attribute=attribute) + STARTS[name]
    for name, module, attribute in (
        ("load_dataset, to_iterable_dataset", "datasets", "load_dataset"),
        ("load_dataset, [0]", "datasets", "load_dataset"),
        ("load_from_disk, [0]", "datasets", "load_from_disk"),
        ("midepoch", "midepoch", "fast_load_iterable_dataset"),
        ("midepoch, save_to_disk", "midepoch", "fast_load_iterable_dataset"),
    )
}
"""The same in a script that has already imported what it needs, including torch."""
FIRST_TIMES = {
    "midepoch, first time, cache": f"known = False\n{OURS}",
    "midepoch, first time, save_to_disk": OURS_SAVED,
}


class Prepared:
    """A dataset of a number of Arrow files, in the cache and in a ``save_to_disk`` folder."""

    def __init__(self, files: int, rows: int) -> None:
        self.files, self.rows = files, files * rows
        self.pattern = str(data.sources(files, rows) / "*.parquet")
        self.saved = data.FOLDER / f"saved-{files}-{rows}"
        if not self.saved.exists():
            print(f"preparing {self.saved} ...", flush=True)
            unfinished = data.FOLDER / f"saved-{files}-{rows}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            fresh(PREPARE, self.pattern, unfinished, files)
            unfinished.rename(self.saved)
        self.open(data.INDEX)
        me.fast_load_iterable_dataset(self.saved, index_dir=data.INDEX)

    def open(self, index: Path) -> me.SimpleArrowIterableDataset:
        """The same files, opened by midepoch."""
        return me.fast_load_iterable_dataset("parquet", data_files=self.pattern, split="train", index_dir=index)

    def seconds(self, code: str, index: Path = data.INDEX) -> float:
        """From the start of a new process to its first example."""
        return float(fresh(CLOCK.format(code=code), self.pattern, self.saved, index, time.monotonic()))


def starting(prepared: Prepared, codes: dict[str, str], repeats: int) -> Iterator[Figure]:
    """From the start of a process, or from the end of its imports, to its first example."""
    calls = {name: partial(prepared.seconds, code) for name, code in codes.items()}
    times = in_turn(calls, repeats)
    middle = {name: median(one) for name, one in times.items()}
    what = f"{prepared.files} files"
    for name in ("load_dataset, to_iterable_dataset", "load_dataset, [0]"):
        yield figure(f"{what}: {name} / midepoch", middle[name] / middle["midepoch"], "×")
    yield figure(
        f"{what}: load_from_disk, [0] / midepoch", middle["load_from_disk, [0]"] / middle["midepoch, save_to_disk"], "×"
    )
    for name, one in times.items():
        yield figure(f"{what}: {name}", middle[name], f"s ({min(one):.2f} – {max(one):.2f})")


def indexing(prepared: Prepared, repeats: int) -> Iterator[Figure]:
    """The first time: from the start of a process to its first example, without an index."""

    def anew(code: str) -> float:
        index = Path(tempfile.mkdtemp())
        try:
            return prepared.seconds(code, index)
        finally:
            shutil.rmtree(index)

    calls = {name: partial(anew, code) for name, code in FIRST_TIMES.items()}
    rival = "load_dataset, [0]"
    calls[rival] = partial(prepared.seconds, STARTS[rival])
    times = in_turn(calls, repeats)
    middle = {name: median(one) for name, one in times.items()}
    for name in FIRST_TIMES:
        yield figure(f"{prepared.files} files: {name} / {rival}", middle[name] / middle[rival], "×")
    for name, one in times.items():
        yield figure(f"{prepared.files} files: {name}", middle[name], f"s ({min(one):.2f} – {max(one):.2f})")


def resuming(prepared: Prepared, repeats: int) -> Iterator[Figure]:
    """From ``load_state_dict`` to the first example, and what reading up to there costs."""
    import datasets

    loaded = datasets.load_dataset("parquet", data_files=prepared.pattern, split="train")
    opened = prepared.open(data.INDEX)
    builds: dict[str, Callable[[], Any]] = {
        "midepoch": lambda: opened.lanes(1),
        "midepoch, shuffle (file)": lambda: opened.shuffle(1, level="file").lanes(1),
        "midepoch, shuffle (block)": lambda: opened.shuffle(1, level="block").lanes(1),
        "datasets, 1 shard": lambda: loaded.to_iterable_dataset(),
        f"datasets, {prepared.files} shards": lambda: loaded.to_iterable_dataset(num_shards=prepared.files),
    }
    passes = {name: _forward(build(), prepared.rows) for name, build in builds.items()}
    calls = {
        (name, percent): partial(_time_to_first, build, passes[name][percent])
        for name, build in builds.items()
        for percent in PERCENTS
    }
    times = in_turn(calls, repeats)
    best = {key: min(one) for key, one in times.items()}
    for name in builds:
        if name.startswith("midepoch"):
            yield at_most(1.3, f"{name}: at 99 % / at 1 %", best[name, 99] / best[name, 1], "×")
            yield at_most(1, f"{name}: slowest resume of all", max(max(times[name, at]) for at in PERCENTS), "s")
    for percent in PERCENTS:
        own = best["midepoch", percent]
        read = passes["datasets, 1 shard"][percent]["seconds"]
        yield figure(f"{percent} %: datasets, reading forward / midepoch, resumed", read / own, "×")
        for name in builds:
            if not name.startswith("midepoch"):
                yield figure(f"{percent} %: {name}, resumed / midepoch, resumed", best[name, percent] / own, "×")
        for name in builds:
            one = [1e3 * value for value in times[name, percent]]
            yield figure(f"{percent} %: {name}, resumed", median(one), f"ms ({min(one):.1f} – {max(one):.1f})")
        for name in ("midepoch", "datasets, 1 shard"):
            yield figure(f"{percent} %: {name}, reading forward", passes[name][percent]["seconds"], "s")


def _forward(dataset: Any, rows: int) -> dict[int, dict[str, Any]]:
    """One pass to 99 %: at each percentage the state, the seconds so far, and the example that comes next."""
    found: dict[int, dict[str, Any]] = {}
    begun, done, items = time.perf_counter(), 0, iter(dataset)
    for percent in PERCENTS:
        for _ in islice(items, rows * percent // 100 - done):
            pass
        state = json.loads(json.dumps(dataset.state_dict()))
        found[percent] = {"seconds": time.perf_counter() - begun, "state": state, "next": next(items)}
        done = rows * percent // 100 + 1
    return found


def _time_to_first(build: Callable[[], Any], stood: dict[str, Any]) -> float:
    dataset = build()
    begun = time.perf_counter()
    dataset.load_state_dict(stood["state"])
    first = next(iter(dataset))
    taken = time.perf_counter() - begun
    if first != stood["next"]:
        raise AssertionError(f"{first} came instead of {stood['next']}")
    return taken


def states(small: Prepared, large: Prepared, tiny_files: int) -> Iterator[Figure]:
    """The bytes of a state, as JSON."""
    import datasets

    tiny = me.SimpleArrowIterableDataset(data.tiny(tiny_files), index_dir=data.INDEX)
    for files, opened in (
        (small.files, small.open(data.INDEX)),
        (large.files, large.open(data.INDEX)),
        (tiny_files, tiny),
    ):
        for name, ordered in (("", opened), (", shuffle (file)", opened.shuffle(1, level="file"))):
            yield at_most(1024, f"{files:,} files: midepoch{name}", _size(ordered), "bytes")
    for prepared in (small, large):
        loaded = datasets.load_dataset("parquet", data_files=prepared.pattern, split="train")
        sharded = loaded.to_iterable_dataset(num_shards=prepared.files)
        yield figure(f"{prepared.files:,} files: datasets", _size(sharded), "bytes")
        shuffled = sharded.shuffle(seed=1, buffer_size=SHUFFLE_BUFFER)
        yield figure(
            f"{prepared.files:,} files: datasets, shuffle", _size(shuffled), "bytes, without the buffer's rows"
        )


def _size(dataset: Any) -> int:
    items = iter(dataset)
    next(items)
    return len(json.dumps(dataset.state_dict()))


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured."""

    files: int = 234
    rows: int = 20_000
    tiny_files: int = 100_000
    processes: int = 7
    repeats: int = 9

    @cached_property
    def small(self) -> Prepared:
        """Two files."""
        return Prepared(2, self.rows)

    @cached_property
    def large(self) -> Prepared:
        """Many files."""
        return Prepared(self.files, self.rows)


QUICK = Sizes(files=12, rows=500, tiny_files=1_000, processes=2, repeats=3)

BENCHMARKS: dict[str, tuple[str, Callable[[Sizes], Iterable[Figure]]]] = {
    "starts": (
        "From the start of a process to the first example",
        lambda s: chain(starting(s.small, STARTS, s.processes), starting(s.large, STARTS, s.processes)),
    ),
    "opens": (
        "From the end of the imports to the first example",
        lambda s: chain(starting(s.small, OPENS, s.processes), starting(s.large, OPENS, s.processes)),
    ),
    "indexing": ("The first time", lambda s: indexing(s.large, max(2, s.processes // 2))),
    "resuming": ("Resuming", lambda s: resuming(s.large, s.repeats)),
    "states": ("State", lambda s: states(s.small, s.large, s.tiny_files)),
}


def main() -> None:
    """Run the benchmarks that were asked for and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small data, to see that everything runs")
    parser.add_argument("--only", choices=BENCHMARKS, help="one benchmark alone")
    chosen = parser.parse_args()
    os.environ |= {
        "HF_HOME": str(data.FOLDER / "huggingface"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    # pip compiles the packages that it installs, datasets too; midepoch in a source tree may not be compiled yet.
    compileall.compile_dir(Path(me.__file__).parent, quiet=1)
    sizes = QUICK if chosen.quick else Sizes()
    for name, (title, run) in BENCHMARKS.items():
        if chosen.only in (None, name):
            show(title, run(sizes))


if __name__ == "__main__":
    main()
