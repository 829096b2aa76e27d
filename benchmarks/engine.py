"""Measure the engine: ``python -m benchmarks.engine [--quick] [--only NAME]``."""

import argparse
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import memory, opening, resuming, throughput
from benchmarks.measure import Figure, show


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured."""

    texts: int = 400_000
    peer_rows: int = 40_000
    tokens: int = 32_000
    files: int = 234
    file_rows: int = 1_000_000
    tiny_files: int = 100_000
    groups: int = 30
    repeats: int = 7
    processes: int = 15
    positions: int = 1_000_000


QUICK = Sizes(
    texts=12_000,
    peer_rows=1_000,
    tokens=2_000,
    files=12,
    file_rows=20_000,
    tiny_files=1_000,
    groups=3,
    repeats=3,
    processes=3,
    positions=200_000,
)

BENCHMARKS: dict[str, tuple[str, Callable[[Sizes], list[Figure]]]] = {
    "rows": ("Rows as dicts", lambda s: throughput.rows(s.texts, s.peer_rows, s.repeats)),
    "batches": ("Batches of 64 as Python columns", lambda s: throughput.batches(s.texts, s.repeats)),
    "tensors": ("Batches of 64 token rows as tensors", lambda s: throughput.tensors(s.tokens, s.repeats)),
    "sizes": ("Batches of token rows by size", lambda s: throughput.tensor_sizes(s.tokens, s.repeats)),
    "first": ("First row after a resume", lambda s: resuming.first_item(s.texts, s.files, s.file_rows, 5 * s.repeats)),
    "state": ("state_dict()", lambda s: resuming.state(s.tiny_files, 10 * s.repeats)),
    "imports": ("Importing", lambda s: opening.imports(s.processes)),
    "opening": ("Opening", lambda s: opening.opens(s.files, s.file_rows, s.tiny_files, s.repeats)),
    "positions": ("Memory: shuffle (row)", lambda s: memory.positions((s.files, s.file_rows), 10**9, s.positions)),
    "parquet": ("Memory: Parquet", lambda s: memory.row_groups(s.groups)),
}


def main() -> None:
    """Run the benchmarks that were asked for and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, to see that everything runs")
    parser.add_argument("--only", choices=BENCHMARKS, help="one benchmark alone")
    chosen = parser.parse_args()
    failed = False
    for name, (title, run) in BENCHMARKS.items():
        if chosen.only not in (None, name):
            continue
        try:
            show(title, run(QUICK if chosen.quick else Sizes()))
        except Exception:  # the other benchmarks still run
            traceback.print_exc()
            failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
