"""WebDataset: other data than tar files are written as such first, eight of them, so that every worker has some."""

from glob import glob
from pathlib import Path
from typing import Any

import torch
import webdataset as wds

from benchmarks.peers import work
from benchmarks.peers.view import SEED, NotOfferedError, View

STATES = "none"

SHARDS = 8


def prepare(kind: str, source: Path, folder: Path) -> None:
    import pyarrow as pa

    if kind == "tars":
        folder.symlink_to(source)
        return
    if kind in ("parquet", "documents"):
        raise NotOfferedError({"parquet": "it reads tar files", "documents": "packing is a function of yours"}[kind])
    if kind == "numbers":
        raise NotOfferedError("it has no state")
    folder.mkdir(parents=True)
    files = sorted(glob(f"{source}/*.arrow"))
    tables = [pa.ipc.open_stream(pa.memory_map(name)).read_all() for name in files]
    table = pa.concat_tables(tables)
    each, number = -(-len(table) // SHARDS), 0
    with wds.ShardWriter(f"{folder}/part-%04d.tar", maxcount=each, maxsize=1e12, verbose=0) as writer:
        for batch in table.to_batches():
            for row in batch.to_pylist():
                writer.write({"__key__": f"{number:09}", **_fields(kind, row)})
                number += 1


def _fields(kind: str, row: dict[str, Any]) -> dict[str, Any]:
    if kind == "tokens":
        return {"pth": torch.tensor(row["tokens"], dtype=torch.int32)}
    if kind == "images":
        return {"jpg": row["jpeg"], "cls": row["number"]}
    return {"json": row}


def _members(sample: dict[str, Any]) -> dict[str, Any]:
    return {"jpg": sample["jpg"], "cls": sample["cls"]}


def _row(sample: dict[str, Any]) -> Any:
    return sample["json"]


def _tokens(sample: dict[str, Any]) -> Any:
    return sample["pth"]


def _image(sample: dict[str, Any]) -> Any:
    return work.decode(sample["jpg"])


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _tokenise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"input_ids": work.tokenise([row["text"] for row in rows])}


def load(view: View) -> Any:
    if view.shuffle == "row":
        raise NotOfferedError("it shuffles shards, and rows in a buffer")
    files = sorted(glob(f"{view.folder}/*.tar"))
    dataset = wds.WebDataset(files, shardshuffle=SHARDS if view.shuffle else False, seed=SEED)
    if view.shuffle:
        dataset = dataset.shuffle(1000)
    if view.kind == "tars":
        dataset = dataset.map(_members)
    elif view.kind == "images":
        dataset = dataset.map(_image)
    else:
        dataset = dataset.decode().map(_tokens if view.kind == "tokens" else _row)
    if view.batch_size is None:
        return dataset
    tensors = view.kind in ("tokens", "images")
    collate = torch.stack if tensors else _tokenise if view.work == "tokenise" else _columns
    dataset = dataset.batched(view.batch_size, collation_fn=collate)
    return wds.WebLoader(dataset, batch_size=None, num_workers=view.workers)
