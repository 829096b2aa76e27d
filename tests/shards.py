"""MDS folders for tests: written here as MosaicML's MDSWriter does."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ENCODERS: dict[str, Any] = {
    "int": lambda value: np.int64(value).tobytes(),
    "str": str.encode,
    "bytes": bytes,
    "pkl": bytes,
    "ndarray:int32": lambda value: bytes([4, len(value)]) + np.array(value, np.int32).tobytes(),
}


def shard_of(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> bytes:
    """The bytes of a shard."""
    fixed = {name: 8 if encoding == "int" else None for name, encoding in columns.items()}
    config = {"version": 2, "format": "mds", "compression": None, "hashes": [], "size_limit": 1 << 26}
    names = {"column_names": [*columns], "column_encodings": [*columns.values()], "column_sizes": [*fixed.values()]}
    samples = []
    for row in rows:
        values = {name: ENCODERS[encoding](row[name]) for name, encoding in columns.items()}
        sizes = [len(value) for name, value in values.items() if fixed[name] is None]
        samples.append(np.array(sizes, np.uint32).tobytes() + b"".join(values.values()))
    head = json.dumps(config | names, sort_keys=True).encode()
    offsets = 4 * (len(rows) + 2) + len(head) + np.cumsum([0, *map(len, samples)])
    return np.uint32(len(rows)).tobytes() + offsets.astype(np.uint32).tobytes() + head + b"".join(samples)


def write_mds(folder: Path, rows: Sequence[dict[str, Any]], columns: dict[str, str], each: int = 10) -> Path:
    """A folder of shards of ``each`` rows, and its index.json."""
    folder.mkdir(parents=True, exist_ok=True)
    shards = []
    for number, first in enumerate(range(0, len(rows), each)):
        name, content = f"shard.{number:05}.mds", shard_of(rows[first : first + each], columns)
        (folder / name).write_bytes(content)
        raw = {"basename": name, "bytes": len(content), "hashes": {}}
        shards.append({"format": "mds", "raw_data": raw, "zip_data": None, "samples": len(rows[first : first + each])})
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}, sort_keys=True))
    return folder


def numbered_mds(folder: Path, last: int, each: int = 10, first: int = 0) -> Path:
    """A folder of rows with an id, a text and some tokens."""
    columns = {"id": "int", "text": "str", "tokens": "ndarray:int32"}
    rows = [{"id": n, "text": f"row {n} " * (n % 9), "tokens": [n] * (1 + n % 4)} for n in range(first, last)]
    return write_mds(folder, rows, columns, each)
