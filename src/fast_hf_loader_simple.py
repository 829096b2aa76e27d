"""The Hugging Face front door of midepoch under the name that many scripts import.

``python -m fast_hf_loader_simple`` tries it on a small dataset of its own, without a download.
"""

import sys
import tempfile
import time
from itertools import chain, islice
from pathlib import Path
from typing import Any

from midepoch.integrations.huggingface import SimpleArrowIterableDataset, fast_load_iterable_dataset

__all__ = ["SimpleArrowIterableDataset", "fast_load_iterable_dataset"]

_ROWS, _STEPS = 1000, 40


def _main() -> int:
    """Load a small dataset twice, resume it with 0, 1 and 2 workers, and say what was found. Returns an exit code."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        for part, first in enumerate(range(0, _ROWS, 250)):
            rows = range(first, first + 250)
            table = pa.table({"id": rows, "text": [f"the text of row {row}" for row in rows]})
            pq.write_table(table, Path(folder, f"part-{part}.parquet"), row_group_size=50)
        print(f"made a dataset of {_ROWS:,} rows in 4 Parquet files")
        for number, what in ((1, "datasets prepares its cache, midepoch indexes it"), (2, "from the index")):
            start = time.perf_counter()
            rows_found = len(_load(folder))
            print(f"load {number}: {rows_found:,} rows in {1000 * (time.perf_counter() - start):,.0f} ms ({what})")
        exact = [_resumes(folder, workers) for workers in (0, 1, 2)]
    return 0 if all(exact) else 1


def _load(folder: str) -> SimpleArrowIterableDataset:
    return fast_load_iterable_dataset(
        "parquet",
        split="train",
        data_files=f"{folder}/*.parquet",
        cache_dir=f"{folder}/cache",
        index_dir=f"{folder}/index",
    )


def _resumes(folder: str, workers: int) -> bool:
    """Stop in the middle of an epoch, resume in a new loader, and compare with a pass that was not stopped."""
    from midepoch import Loader

    def build() -> "Loader[Any]":
        return Loader(_load(folder).shuffle(seed=42), batch_size=8, num_workers=workers)

    expected = [_ids(batch) for batch in build()]
    loader = build()
    seen = [_ids(batch) for batch in islice(loader, _STEPS)]
    state = loader.state_dict()
    resumed = build()
    resumed.load_state_dict(state)
    start = time.perf_counter()
    batches = iter(resumed)
    seen.append(_ids(next(batches)))
    seconds = time.perf_counter() - start
    seen += map(_ids, batches)
    is_exact = seen == expected and sorted(chain.from_iterable(seen)) == list(range(_ROWS))
    found = (
        "every row came once, in the order of a pass without a stop" if is_exact else "OTHER ROWS than without a stop"
    )
    print(
        f"{workers} workers: stopped after {_STEPS} batches and resumed; "
        f"the next batch came in {1000 * seconds:,.0f} ms; {found}"
    )
    return is_exact


def _ids(batch: dict[str, Any]) -> list[int]:
    return [int(row) for row in batch["id"]]


if __name__ == "__main__":
    sys.exit(_main())
