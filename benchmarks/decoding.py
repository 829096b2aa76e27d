"""Parquet against pyarrow's own scanner on all cores: ``python -m benchmarks.decoding [--quick]``."""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pd
import pyarrow.parquet as pq

import midepoch as me
from benchmarks.measure import Figure, at_least, best_apart, exhaust, figure, show

GROUP, BATCH, FILES = 2_000, 2_000, 4
WORDS = np.array([f"word{number}" for number in range(5_000)])


def write(folder: Path, rows: int) -> None:
    """Files of texts of about 1 KB, compressed with zstd, in small row groups."""
    rng = np.random.default_rng(0)
    for number in range(FILES):
        ids = range(number * rows // FILES, (number + 1) * rows // FILES)
        texts = [" ".join(WORDS[rng.integers(0, len(WORDS), 100)]) for _ in ids]
        table = pa.table({"id": ids, "text": texts})
        pq.write_table(table, folder / f"part-{number}.parquet", compression="zstd", row_group_size=GROUP)


def scanning(folder: Path, rows: int, repeats: int) -> Iterator[Figure]:
    """A pass of Arrow batches in order, and of rows."""
    dataset = me.read(folder, index_dir=folder / "index")
    scanner = pd.dataset([str(path) for path in sorted(folder.glob("*.parquet"))])
    times = best_apart(
        {
            "scanner": lambda: exhaust(scanner.to_batches(batch_size=BATCH)),
            "scanner, one thread": lambda: exhaust(scanner.to_batches(batch_size=BATCH, use_threads=False)),
            "Arrow batches": lambda: exhaust(dataset.with_format("arrow").batch(BATCH)),
            "shuffle (block), Arrow batches": lambda: exhaust(dataset.shuffle(1).with_format("arrow").batch(BATCH)),
            "rows": lambda: exhaust(dataset),
        },
        repeats,
    )
    yield at_least(0.9, "Arrow batches in order / scanner", times["scanner"] / times["Arrow batches"], "×")
    for name, taken in times.items():
        yield figure(f"{name}: rows/s", rows / taken)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, to see that everything runs")
    rows, repeats = (20_000, 2) if parser.parse_args().quick else (400_000, 5)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), rows)
        show(f"Parquet with zstd, row groups of {GROUP:,}", scanning(Path(folder), rows, repeats))


if __name__ == "__main__":
    main()
