"""Small data files for the unit tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

KINDS = ("stream", "file", "parquet")


def write(path: Path, batches: Sequence[pa.RecordBatch] | pa.RecordBatch, kind: str = "stream", **options: Any) -> Path:
    """Write record batches as an Arrow stream, an Arrow file, or a Parquet file with a row group for each."""
    batches = [batches] if isinstance(batches, pa.RecordBatch) else list(batches)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "parquet":
        with pq.ParquetWriter(path, batches[0].schema, **options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return path
    opened = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with opened(path, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as sink:
        for batch in batches:
            sink.write_batch(batch)
    return path


def numbers(start: int, stop: int, *, name: str = "x") -> pa.RecordBatch:
    """One column of the numbers from ``start`` to ``stop``."""
    return pa.record_batch({name: pa.array(range(start, stop), pa.int64())})


def write_numbers(path: Path, start: int, stop: int, kind: str = "stream", *, rows: int = 4) -> Path:
    """A file of these numbers, with ``rows`` of them in each block."""
    blocks = [numbers(first, min(stop, first + rows)) for first in range(start, stop, rows)]
    return write(path, blocks or [numbers(0, 0)], kind)


def values(dataset: Any, name: str = "x") -> list[Any]:
    """One column of all rows."""
    return [row[name] for row in dataset]


def plain(value: Any) -> Any:
    """Items, batches or columns with Python values in place of tensors and arrays."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else value


def cuts_of(size: int) -> list[int]:
    """Sizes to which a file of this size is truncated: all near its ends, some between."""
    return sorted({1, 2, 3, 4, 5, 6, 7, 8, *range(9, size, 5), *range(max(9, size - 20), size)})
