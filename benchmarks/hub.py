"""Rows of a hub with a latency of 20 ms, against `datasets` that streams them: ``python -m benchmarks.hub``.

The hub is that of the tests, on loopback, in a process of its own. Every pass is that of a new process, which opens the
files too. The best of several counts.
"""

import argparse
import io
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Figure, figure, show

LATENCY, GROUP = 0.02, 2_000
WORDS = np.array([f"word{number}" for number in range(5_000)])
PASS = """
import json, sys, time
source, shuffled, folder = sys.argv[1], sys.argv[2] == "shuffled", sys.argv[4]
begun = time.perf_counter()
if sys.argv[3] == "midepoch":
    import midepoch
    rows = midepoch.read(source, index_dir=folder)
    rows = rows.shuffle(seed=1) if shuffled else rows
else:
    import datasets
    rows = datasets.load_dataset("parquet", data_files=source, split="train", streaming=True, cache_dir=folder)
    rows = rows.shuffle(seed=1, buffer_size=8192) if shuffled else rows
iterator = iter(rows)
total = next(iterator)["id"]
first = time.perf_counter()
number = 1
for row in iterator:
    total, number = total + row["id"], number + 1
assert total == number * (number - 1) // 2
print(json.dumps([first - begun, number / (time.perf_counter() - begun), number / (time.perf_counter() - first)]))
"""


def serve(files: int, rows: int, pipe: Connection) -> None:
    """Serve a dataset until the process is ended; send the endpoint through the pipe."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    import hub as loopback

    content, rng = {}, np.random.default_rng(0)
    for number in range(files):
        ids = range(number * rows, (number + 1) * rows)
        texts = [" ".join(WORDS[rng.integers(0, len(WORDS), 40)]) for _ in ids]
        sink = io.BytesIO()
        pq.write_table(pa.table({"id": ids, "text": texts}), sink, row_group_size=GROUP, compression="zstd")
        content[f"data/part-{number:03}.parquet"] = sink.getvalue()
    with loopback.serving() as hub:
        hub.push("org/name", content)
        hub.latency = LATENCY
        pipe.send(hub.endpoint)
        pipe.recv()


def one_pass(endpoint: str, library: str, order: str) -> list[float]:
    """The seconds to the first row, and the rows a second with and without them."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0", "HF_HOME": folder}
        command = [sys.executable, "-c", PASS, "hf://datasets/org/name/**/*.parquet", order, library, folder]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment})
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(endpoint: str, rounds: int) -> Iterator[Figure]:
    """Passes in order and shuffled, by each library."""
    for order in ("in order", "shuffled"):
        rows = {
            library: [one_pass(endpoint, library, order) for _ in range(rounds)] for library in ("datasets", "midepoch")
        }
        for number, what in ((2, "rows/s after the first row"), (1, "rows/s with opening")):
            own, other = (max(one[number] for one in rows[library]) for library in ("midepoch", "datasets"))
            yield figure(f"{order}, {what}: midepoch", own)
            yield figure(f"{order}, {what}: midepoch / datasets", own / other, "×")
        own, other = (min(one[0] for one in rows[library]) for library in ("midepoch", "datasets"))
        yield figure(f"{order}, seconds to the first row: midepoch / datasets", own / other, "×")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=12)
    parser.add_argument("--rows", type=int, default=20_000, help="of each file")
    chosen = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(chosen.files, chosen.rows, there), daemon=True)
    server.start()
    try:
        show("A hub with a latency of 20 ms", measured(here.recv(), chosen.rounds))
    finally:
        server.kill()


if __name__ == "__main__":
    main()
