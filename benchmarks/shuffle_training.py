"""Train a small language model on documents sorted by topic, under several shuffles: what a shuffle costs in loss.

``python -m benchmarks.shuffle_training [--seeds 0 1] [--only NAME ...]`` needs a GPU; ``--quick`` runs anywhere, with
figures that mean nothing. Every run sees all documents once, in the same number of steps. Only their order differs.
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn import functional

import midepoch as me

TOPIC_WORDS, SUCCESSORS, FOLLOWED = 256, 4, 0.7
"""The words of a topic, how many may follow a word, and how often one of them does."""
VALIDATION_SEED = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is trained on, and what."""

    documents: int = 2_000_000
    topics: int = 400
    length: int = 64
    row_group: int = 50_000
    small_group: int = 1_000
    vocabulary: int = 4096
    validation: int = 20_000
    batch: int = 512
    width: int = 384
    layers: int = 6
    rate: float = 1e-3
    warmup: int = 100


QUICK = Sizes(
    documents=8_000,
    topics=20,
    length=16,
    row_group=400,
    small_group=20,
    validation=400,
    batch=64,
    width=32,
    layers=1,
    warmup=10,
)


class Topics:
    """Each topic has its own words, and its own successors of each word."""

    def __init__(self, sizes: Sizes) -> None:
        rng = np.random.default_rng(0)
        self._sizes = sizes
        self._words = np.stack([rng.permutation(sizes.vocabulary)[:TOPIC_WORDS] for _ in range(sizes.topics)])
        self._successors = rng.integers(0, TOPIC_WORDS, (sizes.topics, TOPIC_WORDS, SUCCESSORS))
        weights = 1 / np.arange(1, TOPIC_WORDS + 1)
        self._shares = np.cumsum(weights / weights.sum())

    def documents(self, topics: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.int16]:
        """One document of each of these topics."""
        rng, count = np.random.default_rng(seed), len(topics)
        tokens = np.empty((count, self._sizes.length), np.int16)
        word = self._drawn(rng, count)
        for column in range(self._sizes.length):
            tokens[:, column] = self._words[topics, word]
            following = self._successors[topics, word, rng.integers(0, SUCCESSORS, count)]
            word = np.where(rng.random(count) < FOLLOWED, following, self._drawn(rng, count))
        return tokens

    def _drawn(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        return np.minimum(np.searchsorted(self._shares, rng.random(count)), TOPIC_WORDS - 1)


def write(folder: Path, sizes: Sizes) -> npt.NDArray[np.int16]:
    """Write the documents, sorted by topic, as Parquet and as Arrow; return the validation documents."""
    topics = Topics(sizes)
    schema = pa.schema({"tokens": pa.list_(pa.int16(), sizes.length)})
    with (
        pq.ParquetWriter(folder / "sorted.parquet", schema, use_dictionary=False) as parquet,
        pq.ParquetWriter(folder / "small-groups.parquet", schema, use_dictionary=False) as small,
        pa.OSFile(str(folder / "sorted.arrow"), "wb") as file,
        pa.ipc.new_stream(file, schema) as arrow,
    ):
        for first in range(0, sizes.documents, sizes.row_group):
            numbers = np.arange(first, min(first + sizes.row_group, sizes.documents))
            tokens = topics.documents(numbers * sizes.topics // sizes.documents, seed=first)
            column = pa.FixedSizeListArray.from_arrays(pa.array(tokens.ravel()), sizes.length)
            batch = pa.record_batch([column], schema=schema)
            parquet.write_batch(batch, row_group_size=sizes.row_group)
            small.write_batch(batch, row_group_size=sizes.small_group)
            arrow.write_batch(batch)
    return topics.documents(np.arange(sizes.validation) % sizes.topics, seed=VALIDATION_SEED)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A shuffle, and how it is read."""

    text: str
    file: str = "sorted.parquet"
    options: dict[str, Any] = field(default_factory=dict)
    lanes: int = 1
    ranks: int = 1
    """How many batches make a step: with as many ranks as lanes, one of each lane."""

    def dataset(self, folder: Path, seed: int) -> me.Dataset:
        """The documents in their order."""
        return me.read(folder / self.file, index_dir=folder).shuffle(seed, **self.options).lanes(self.lanes)

    def steps(self, dataset: me.Dataset, batch: int) -> Iterator[npt.NDArray[np.int16]]:
        """The documents of each step."""
        parts: list[npt.NDArray[np.int16]] = []
        for part in dataset.with_format("numpy").batch(batch // self.ranks, drop_last_batch=True):
            parts.append(part["tokens"])
            if len(parts) == self.ranks:
                yield np.concatenate(parts)
                parts = []


ONE: dict[str, Any] = {"window": 8192, "window_blocks": 1}
SMALL, ARROW = "small-groups.parquet", "sorted.arrow"
ARMS = {
    "row": Arm(text='all rows (`level="row"`, Arrow)', file=ARROW, options={"level": "row"}),
    "one": Arm(text="1 row group (`window_blocks=1`)", options=ONE),
    "default": Arm(text="32 row groups (the default)"),
    "one-8": Arm(text="1 row group, 8 ranks", options=ONE, lanes=8, ranks=8),
    "default-8": Arm(text="32 row groups, 8 ranks", lanes=8, ranks=8),
    "default-turns": Arm(text="32 row groups, 1 rank, `lanes(8)`", lanes=8),
    "small": Arm(text="32 row groups of 1,000 rows (the default)", file=SMALL),
    "small-128": Arm(text="128 row groups of 1,000 rows", file=SMALL, options={"window_blocks": 128}),
    "small-512": Arm(text="512 row groups of 1,000 rows", file=SMALL, options={"window_blocks": 512}),
    "small-1024": Arm(text="1,024 row groups of 1,000 rows", file=SMALL, options={"window_blocks": 1024}),
    "arrow": Arm(text="1,024 virtual blocks of Arrow (the default)", file=ARROW),
    "arrow-512": Arm(text="512 virtual blocks", file=ARROW, options={"window_blocks": 16}),
    "arrow-2048": Arm(text="2,048 virtual blocks", file=ARROW, options={"window_blocks": 64}),
}


class Layer(nn.Module):
    """One layer of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A decoder with learned positions; input and output share their embedding."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.length, sizes.width)
        self.layers = nn.Sequential(*(Layer(sizes.width) for _ in range(sizes.layers)))
        self.norm = nn.RMSNorm(sizes.width)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean loss of predicting each token from those before it."""
        x = self.tokens(tokens[:, :-1]) + self.positions.weight[: tokens.shape[1] - 1]
        logits = functional.linear(self.norm(self.layers(x)), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


@dataclass(frozen=True, kw_only=True)
class Result:
    """How one run ended."""

    shuffle: str
    seed: int
    steps: int
    loss: float
    """Of the validation documents, after the last step."""
    halfway: float
    """The same, after half of the steps."""
    seconds: float
    blocks_per_step: float


def train(name: str, seed: int, folder: Path, validation: npt.NDArray[np.int16], sizes: Sizes) -> Result:
    """Train for one epoch; the seed is that of the shuffle and of the model."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(seed)
    model = Model(sizes).to(device)
    run = torch.compile(model) if device == "cuda" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.rate, betas=(0.9, 0.95), weight_decay=0.1)
    total = sizes.documents // sizes.batch
    arm = ARMS[name]
    dataset = arm.dataset(folder, seed)
    quality = dataset.shuffle_quality(sizes.batch)
    begun, step, halfway = time.perf_counter(), 0, math.nan
    for tokens in arm.steps(dataset, sizes.batch):
        if step == total:  # eight lanes may yield a step more or less
            break
        decay = 0.1 + 0.45 * (1 + math.cos(math.pi * step / total))  # to a tenth of the rate
        for group in optimizer.param_groups:
            group["lr"] = sizes.rate * min(1, (step + 1) / sizes.warmup) * decay
        with torch.autocast(device, torch.bfloat16):
            loss = run(torch.from_numpy(tokens).to(device).long())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step == total // 2:
            halfway = evaluate(run, validation, sizes, device)
    return Result(
        shuffle=name,
        seed=seed,
        steps=step,
        loss=evaluate(run, validation, sizes, device),
        halfway=halfway,
        seconds=time.perf_counter() - begun,
        blocks_per_step=quality.blocks_per_batch if arm.ranks == 1 else quality.blocks_across_lanes,
    )


@torch.no_grad()
def evaluate(model: nn.Module, validation: npt.NDArray[np.int16], sizes: Sizes, device: str) -> float:
    """The mean loss of the validation documents."""
    losses = []
    for first in range(0, len(validation) - sizes.batch + 1, sizes.batch):
        tokens = torch.from_numpy(validation[first : first + sizes.batch]).to(device).long()
        with torch.autocast(device, torch.bfloat16):
            losses.append(model(tokens).item())
    return float(np.mean(losses))


def main() -> None:
    """Run what was asked for; print a line for each run, and a table of those of this process at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny data and model, to see that everything runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--only", nargs="+", choices=ARMS, default=["row", "arrow", "default", "small", "small-1024"])
    chosen = parser.parse_args()
    sizes = QUICK if chosen.quick else Sizes()
    torch.set_float32_matmul_precision("high")
    parameters = sum(weight.numel() for weight in Model(sizes).parameters())
    print(
        f"{parameters / 1e6:.1f}M parameters, {sizes.documents * sizes.length / 1e6:.0f}M tokens, {sizes}", flush=True
    )
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        validation = write(folder, sizes)
        for seed in chosen.seeds:
            for shuffle in chosen.only:
                results.append(train(shuffle, seed, folder, validation, sizes))
                print(json.dumps(asdict(results[-1])), flush=True)
    show(results)


def show(results: list[Result]) -> None:
    """Print a table: one line a shuffle, one column a seed."""
    seeds = sorted({result.seed for result in results})
    losses = {(result.shuffle, result.seed): result for result in results}
    print("\n| window of | row groups in a step | " + " | ".join(f"loss, seed {seed}" for seed in seeds) + " |")
    print("| --- | ---: |" + " ---: |" * len(seeds))
    for name in dict.fromkeys(result.shuffle for result in results):
        cells = [f"{losses[name, seed].loss:.4f}" for seed in seeds]
        print(f"| {ARMS[name].text} | {losses[name, seeds[0]].blocks_per_step:.1f} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
