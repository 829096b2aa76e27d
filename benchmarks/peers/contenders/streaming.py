"""MosaicML Streaming: data are written as MDS shards first."""

import sys
from glob import glob
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:
    # PyPI's torchvision does not load beside a torch without CUDA. Only classes for known image datasets need it.
    sys.modules["streaming.vision"] = ModuleType("streaming.vision")
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from benchmarks.peers import work
from benchmarks.peers.view import SEED, NotOfferedError, View

STATES = "read"

COLUMNS = {
    "texts": {"id": "str", "text": "str", "number": "int", "score": "float64"},
    "tokens": {"tokens": "ndarray:int32:2048"},
    "images": {"number": "int", "jpeg": "bytes"},
    "numbers": {"id": "int", "value": "float32"},
}


def prepare(kind: str, source: Path, folder: Path) -> None:
    import pyarrow as pa

    if kind not in COLUMNS:
        raise NotOfferedError(
            {"parquet": "it reads MDS", "documents": "documents are packed when MDS is written"}[kind]
        )
    with MDSWriter(out=str(folder), columns=COLUMNS[kind]) as writer:
        for name in sorted(glob(f"{source}/*.arrow")):
            for batch in pa.ipc.open_stream(pa.memory_map(name)):
                if kind == "tokens":
                    rows = batch["tokens"].flatten().to_numpy().reshape(len(batch), -1)
                    for row in rows:
                        writer.write({"tokens": row})
                else:
                    for row in batch.to_pylist():
                        writer.write(row)


class _Tokens(StreamingDataset):
    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(super().__getitem__(index)["tokens"].copy())


class _Images(StreamingDataset):
    def __getitem__(self, index: int) -> Any:
        return work.decode(super().__getitem__(index)["jpeg"])


def _tokenise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"input_ids": work.tokenise([row["text"] for row in rows])}


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def load(view: View) -> Any:
    clean_stale_shared_memory()
    kind = {"tokens": _Tokens, "images": _Images}.get(view.kind, StreamingDataset)
    dataset = kind(
        local=view.folder,
        shuffle=bool(view.shuffle),
        shuffle_algo="naive" if view.shuffle == "row" else "py1e",
        shuffle_seed=SEED,
        batch_size=view.batch_size or 1,
    )
    if view.batch_size is None:
        return dataset
    collate = _tokenise if view.work == "tokenise" else None if view.kind in ("tokens", "images") else _columns
    return StreamingDataLoader(dataset, batch_size=view.batch_size, num_workers=view.workers, collate_fn=collate)
