"""LitData: data are optimised into its own chunks first. Parquet it reads in place."""

from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import Any

import litdata
import numpy as np
import torch
from litdata.streaming.item_loader import ParquetLoader, TokensLoader

from benchmarks.peers import work
from benchmarks.peers.view import PACK, SEED, NotOfferedError, View

STATES = "read"


class _Rows:
    """The rows of one Arrow file, as LitData's writer wants them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, name: str) -> Iterator[Any]:
        import pyarrow as pa

        for batch in pa.ipc.open_stream(pa.memory_map(name)):
            if self.kind == "tokens":
                yield from (torch.from_numpy(row.copy()) for row in _matrix(batch))
            elif self.kind == "documents":
                for tokens in batch["input_ids"]:
                    yield torch.from_numpy(tokens.values.to_numpy().astype(np.int32))
            else:
                yield from batch.to_pylist()


def _matrix(batch: Any) -> Any:
    return batch["tokens"].flatten().to_numpy().reshape(len(batch), -1)


def prepare(kind: str, source: Path, folder: Path) -> None:
    if kind == "parquet":
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(glob(f"{source}/*.parquet")):
            (folder / Path(name).name).hardlink_to(name)
        litdata.index_parquet_dataset(str(folder))
        return
    tokens = kind == "documents"
    litdata.optimize(
        fn=_Rows(kind),
        inputs=sorted(glob(f"{source}/*.arrow")),
        output_dir=str(folder),
        num_workers=1,
        start_method="fork",  # a new process would import everything again, for each kind of data
        item_loader=TokensLoader() if tokens else None,
        **({"chunk_size": PACK * 1024} if tokens else {"chunk_bytes": "64MB"}),
    )


def _tokenise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"input_ids": work.tokenise([row["text"] for row in rows])}


def _decode(rows: list[dict[str, Any]]) -> Any:
    return torch.stack([work.decode(row["jpeg"]) for row in rows])


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def load(view: View) -> Any:
    if view.shuffle == "row":
        raise NotOfferedError("it shuffles chunks, and rows inside of chunks")
    if view.work == "whole":
        raise NotOfferedError("it cuts one stream of tokens into blocks")
    loader = {"parquet": ParquetLoader, "documents": lambda: TokensLoader(block_size=PACK)}.get(view.kind)
    dataset = litdata.StreamingDataset(
        view.folder, shuffle=bool(view.shuffle), drop_last=False, seed=SEED, item_loader=loader() if loader else None
    )
    if view.batch_size is None:
        return dataset
    collate = {"tokenise": _tokenise, "decode": _decode}.get(view.work)
    if collate is None and view.kind in ("texts", "parquet"):
        collate = _columns
    options: dict[str, Any] = {} if collate is None else {"collate_fn": collate}
    if view.kind == "parquet" and view.workers:
        options["multiprocessing_context"] = "spawn"  # its Parquet reader must not be forked
    return litdata.StreamingDataLoader(dataset, batch_size=view.batch_size, num_workers=view.workers, **options)
