"""Random mixtures of small datasets, whose rows say whose they are."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import midepoch as me
from worlds import FORMATS, SUFFIXES, batch_is_kept, is_kept, jitter, keep_even, plus_one, spread, table, write

SPREAD = {"batched": True, "batch_size": 5, "remove_columns": ["text", "tokens", "maybe"]}
APART = 1000
"""The rows of part ``p`` are numbered from ``APART * p`` on, so an id says whose it is."""

ORDERS = [
    [],
    [("shuffle", (1,), {"window": 7})],
    [("shuffle", (2,), {"level": "row"})],
    [("shuffle", (3,), {"level": "file"})],
]
PART_STAGES = [
    [],
    [],
    [("map", (plus_one,), {})],
    [("map", (jitter,), {"with_rng": True})],
    [("filter", (is_kept,), {})],
    [("filter", (keep_even,), {"batched": True})],
    [("map", (spread,), SPREAD)],
]
BEHIND = [
    [],
    [("map", (jitter,), {"with_rng": True})],
    [("filter", (is_kept,), {})],
    [("select_columns", (["id"],), {})],
    [("select_columns", (["id"],), {}), ("batch", (3,), {})],
    [("select_columns", (["id"],), {}), ("with_format", ("numpy",), {}), ("batch", (4,), {})],
    [("select_columns", (["id"],), {}), ("with_format", ("arrow",), {}), ("batch", (4,), {})],
    [("select_columns", (["id"],), {}), ("map", (spread,), {"batched": True, "batch_size": 5})],
    [("select_columns", (["id"],), {}), ("filter", (keep_even,), {"batched": True})],
    [("select_columns", (["id"],), {}), ("batch", (2,), {"drop_last_batch": True}), ("filter", (batch_is_kept,), {})],
]


def called(dataset: me.Dataset, calls: list[Any]) -> me.Dataset:
    for name, args, options in calls:
        dataset = getattr(dataset, name)(*args, **options)
    return dataset


@dataclass(frozen=True)
class MixedWorld:
    """Parts, each in a folder of its own, and a mixture of them."""

    sizes: list[list[int]]
    kinds: list[str]
    block: int
    calls: list[list[Any]]
    weights: list[float]
    seed: int
    stop: str
    lanes: int
    nested: bool = False
    behind: list[Any] = field(default_factory=list)

    def write(self, folder: Path) -> Path:
        for number, sizes in enumerate(self.sizes):
            (folder / f"{number}").mkdir(parents=True)
            first = APART * number
            for file, size in enumerate(sizes):
                kind = self.kinds[(number + file) % len(self.kinds)]
                write(folder / f"{number}" / f"part-{file}{SUFFIXES[kind]}", table(first, size), kind, self.block)
                first += size
        return folder

    def parts(self, folder: Path) -> list[me.Dataset]:
        return [called(me.read(folder / f"{number}"), calls) for number, calls in enumerate(self.calls)]

    def mixture(self, folder: Path) -> me.Dataset:
        parts, weights = self.parts(folder), self.weights
        if self.nested and len(parts) > 2:
            inner = me.mix(parts[1:], weights[1:] if any(weights[1:]) else None, seed=self.seed + 1, stop="all")
            parts, weights = [parts[0], inner], [weights[0], sum(weights[1:]) or 1.0]
        return me.mix(parts, weights, seed=self.seed, stop=self.stop).lanes(self.lanes)

    def build(self, folder: Path) -> me.Dataset:
        return called(self.mixture(folder), self.behind)


WEIGHTS = st.sampled_from([1.0, 1.0, 0.5, 0.3, 0.25, 0.01, 3.0, 0.0, 1 / 3])


@st.composite
def mixed_worlds(draw, stops=("first", "all"), plain=False, behind=True):
    count = draw(st.integers(1, 4))
    sizes = st.lists(st.sampled_from([0, 1, 5, 12, 20]), min_size=1, max_size=2)
    return MixedWorld(
        sizes=draw(st.lists(sizes, min_size=count, max_size=count)),
        kinds=draw(st.lists(st.sampled_from(FORMATS), min_size=1, max_size=3)),
        block=draw(st.integers(1, 12)),
        calls=[
            [*draw(st.sampled_from(ORDERS)), *([] if plain else draw(st.sampled_from(PART_STAGES)))]
            for _ in range(count)
        ],
        weights=draw(st.lists(WEIGHTS, min_size=count, max_size=count).filter(any)),
        seed=draw(st.integers(0, 3)),
        stop=draw(st.sampled_from(stops)),
        lanes=draw(st.integers(1, 4)),
        nested=draw(st.booleans()) and behind,
        behind=draw(st.sampled_from(BEHIND)) if behind else [],
    )
