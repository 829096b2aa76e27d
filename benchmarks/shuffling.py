"""What shuffles mix and what they cost: ``python -m benchmarks.shuffling [--quick] [--only KIND]``.

Every pass runs in a process of its own and reads all rows in batches of 512. All figures but the full permutation are
taken from the rows that were delivered.
"""

import argparse
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

import midepoch as me
from benchmarks import data
from benchmarks.measure import fresh
from midepoch.dataset import plan_of
from midepoch.order.quality import spearman

BATCH = 512
BUFFER = 10_000
ROWS, SMALL_BLOCK_ROWS, TEXT_ROWS, PEER_ROWS = 3_200_000, 1_600_000, 2_400_000, 100_000
BLOCKS = (1_000, 10_000, 100_000)
KINDS = ("parquet", "arrow", "lz4", "jsonl", "texts")
NAMES = {
    "parquet": "Parquet",
    "arrow": "Arrow",
    "lz4": "Arrow, lz4",
    "jsonl": "JSON lines",
    "texts": "Parquet, texts of 1.3 KB",
}

IN_CHILD = """
import json, sys
from dataclasses import asdict
from benchmarks.shuffling import Pass, read
print(json.dumps(asdict(read(Pass(**json.loads(sys.argv[1]))))))
"""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One way to read one folder."""

    kind: str
    rows: int
    block: int
    shuffle: str
    """ "none", "block", "row", or "buffer" for that of ``datasets``."""
    lanes: int = 1


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a pass delivered, and at what cost."""

    blocks: int
    """The blocks of the dataset."""
    blocks_per_batch: float
    permutation: float
    neighbours: float
    megabytes: float
    """Peak anonymous memory, above that of the imports."""
    speed: float
    """Rows per second."""
    cpu_seconds: float
    """CPU time of all threads for a million rows, which other programs on the machine change less than the speed."""


def read(chosen: Pass) -> Measured:
    """Read all rows. Runs in a process of its own."""
    folder = data.mixed(chosen.kind, chosen.rows, chosen.block)
    dataset = me.read(folder, index_dir=data.INDEX)
    for _ in dataset.take(2 * BATCH).shuffle(1, level="row").with_format("numpy").batch(BATCH):
        pass  # loads what is imported late
    reference = dataset.shuffle(1, level="row").shuffle_quality(BATCH)
    if chosen.shuffle == "buffer":
        delivered, count = _buffered(chosen), min(PEER_ROWS, chosen.rows)
    else:
        order = dataset if chosen.shuffle == "none" else dataset.shuffle(1, level=chosen.shuffle)
        delivered = (item["id"] for item in order.lanes(chosen.lanes).with_format("numpy").batch(BATCH // chosen.lanes))
        count = chosen.rows
    with _peak_memory() as megabytes:
        begun, cpu_begun = time.perf_counter(), time.process_time()
        ids = list(delivered)
        taken, cpu_taken = time.perf_counter() - begun, time.process_time() - cpu_begun
    numbers = np.concatenate(ids)
    blocks = np.searchsorted(plan_of(dataset).pipeline.source.index.view.block_starts, numbers, "right")
    steps = blocks[: len(blocks) // BATCH * BATCH].reshape(-1, BATCH)  # a step of 8 lanes has a batch of each
    return Measured(
        blocks=reference.blocks,
        blocks_per_batch=float(np.mean([len(np.unique(step)) for step in steps])),
        permutation=reference.blocks_per_batch,
        neighbours=spearman(numbers[:-1], numbers[1:]) or 0.0,
        megabytes=megabytes[0],
        speed=count / taken,
        cpu_seconds=cpu_taken / count * 1e6,
    )


def _buffered(chosen: Pass) -> Iterator[npt.NDArray[np.int64]]:
    """The first rows of the shuffle buffer of ``datasets``, in batches as it makes them."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets

    files = sorted(map(str, data.mixed(chosen.kind, chosen.rows, chosen.block).iterdir()))
    rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    shuffled = rows.shuffle(seed=1, buffer_size=BUFFER).with_format("numpy")
    for batch in islice(shuffled.iter(batch_size=BATCH), PEER_ROWS // BATCH):
        yield batch["id"]


@contextmanager
def _peak_memory() -> Iterator[list[float]]:
    """The most anonymous memory, in MB, above that at the start."""

    def now() -> float:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024

    before, most, stopped = now(), [0.0], threading.Event()

    def watch() -> None:
        while not stopped.wait(0.002):
            most[0] = max(most[0], now() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        stopped.set()
        watcher.join()


def passes(kinds: tuple[str, ...], scale: int) -> Iterator[Pass]:
    """What is measured: every kind, size of blocks and number of lanes, and what they are compared with."""
    for kind in kinds:
        for block in BLOCKS[-1:] if kind in ("jsonl", "texts") else BLOCKS:
            rows = TEXT_ROWS if kind == "texts" else ROWS if block == BLOCKS[-1] else SMALL_BLOCK_ROWS
            where = {"kind": kind, "rows": rows // scale, "block": block // scale}
            yield Pass(**where, shuffle="none")
            yield Pass(**where, shuffle="block")
            yield Pass(**where, shuffle="block", lanes=8)
            if kind == "arrow":
                yield Pass(**where, shuffle="row")
            if kind == "parquet":
                yield Pass(**where, shuffle="buffer")


def main() -> None:
    """Measure, and print one table. Of several rounds, the one with the least CPU time counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, to see that everything runs")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--repeats", type=int, default=2)
    chosen = parser.parse_args()
    wanted = list(passes(tuple(chosen.only), 50 if chosen.quick else 1))
    for one in wanted:  # so that no pass makes data or an index
        me.read(data.mixed(one.kind, one.rows, one.block), index_dir=data.INDEX)
    header = ["files", "rows a block", "shuffle", "lanes", "blocks in 512 rows", "full permutation"]
    header += ["correlation of neighbours", "memory, MB", "million rows/s", "CPU time / in order"]
    print("\n| " + " | ".join(header) + " |\n|" + " --- |" + " ---: |" * (len(header) - 1))
    in_order = 0.0
    for one in wanted:
        rounds = [Measured(**json.loads(fresh(IN_CHILD, json.dumps(asdict(one))))) for _ in range(chosen.repeats)]
        best = min(rounds, key=lambda measured: measured.cpu_seconds)
        in_order = best.cpu_seconds if one.shuffle == "none" else in_order
        block = one.rows / best.blocks if one.kind == "jsonl" else one.block
        name = {"none": "in order", "buffer": f"`datasets`, buffer of {BUFFER:,}"}.get(one.shuffle, one.shuffle)
        cells = [NAMES[one.kind], f"{block:,.0f}", name, f"{one.lanes}", f"{best.blocks_per_batch:.1f}"]
        cells += [f"{best.permutation:.1f}", f"{best.neighbours:.3f}", f"{best.megabytes:,.0f}"]
        print(
            "| " + " | ".join([*cells, f"{best.speed / 1e6:.2f}", f"{best.cpu_seconds / in_order:.2f}"]) + " |",
            flush=True,
        )


if __name__ == "__main__":
    main()
