"""LanceDB's StreamingDataset: data are written as a Lance table first.

The shuffle of "block" is of clumps of 1,000 rows; "row" is its default. Splits are four, so that 2 and 4 workers divide
them; more workers need more.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from glob import glob
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import torch
from lancedb.streaming import StreamingDataLoader, StreamingDataset

from benchmarks.peers import work
from benchmarks.peers.process import cores
from benchmarks.peers.view import PACK, SEED, NotOfferedError, View

STATES = "read"

SPLITS, CLUMP = 4, 1000
# what takes its workers longest to import; it must not be forked itself
PRELOADED = ["torch", "pyarrow.dataset", "lance_namespace"]


def prepare(kind: str, source: Path, folder: Path) -> None:
    if kind == "parquet":
        raise NotOfferedError("it reads Lance tables")
    files = sorted(glob(f"{source}/*.arrow"))
    streams = [pa.ipc.open_stream(pa.memory_map(name)) for name in files]
    schema = streams[0].schema
    if kind == "documents":
        schema = pa.schema({"input_ids": pa.list_(pa.int32())})

    def batches() -> Iterator[pa.RecordBatch]:
        for stream in streams:
            for batch in stream:
                yield batch.cast(schema) if batch.schema != schema else batch

    lancedb.connect(folder).create_table("rows", pa.RecordBatchReader.from_batches(schema, batches()))


def _tokens(batch: pa.RecordBatch) -> Any:
    column = batch["tokens"]
    return torch.from_numpy(column.flatten().to_numpy().reshape(len(column), -1).copy())


def _tokenise(batch: pa.RecordBatch) -> Any:
    return [{"input_ids": ids} for ids in work.tokenise(batch["text"].to_pylist())]


def _images(batch: pa.RecordBatch) -> Any:
    return [work.decode(jpeg) for jpeg in batch["jpeg"].to_pylist()]


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


class _Rows:
    """The plain loop over a table that its documentation starts with."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __iter__(self) -> Iterator[Any]:
        for batch in self.table.search().to_batches():
            yield from batch.to_pylist()


class Loader:
    """A dataset and its loader for each epoch, as they want it. The state is the dataset's."""

    def __init__(self, make: Callable[[int], StreamingDataLoader]) -> None:
        self._make, self._epoch, self._begun = make, 0, False
        self._loader = make(0)

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            self._epoch += 1
            self._loader = self._make(self._epoch)
        self._begun = True
        return iter(self._loader)

    def state_dict(self) -> Any:
        return self._loader.dataset.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._loader.dataset.load_state_dict(state)


def load(view: View) -> Any:
    if view.work == "whole":
        raise NotOfferedError("it cuts one stream of tokens into blocks")
    multiprocessing.set_forkserver_preload(PRELOADED)
    table = lancedb.connect(view.folder).open_table("rows")
    if view.batch_size is None:
        return _Rows(table)
    options: dict[str, Any] = {}
    if view.work == "concat":
        options = {
            "columns": ["input_ids"],
            "pack_sequences": PACK,
            "eos_id": 0,
            "pad_id": 0,
            "blocks_per_epoch": "auto",
        }
    else:
        transforms = {"tokens": _tokens, "images": _images}
        options = {"transform": _tokenise if view.work == "tokenise" else transforms.get(view.kind)}
    tensors = view.kind in ("tokens", "images", "documents")

    def make(epoch: int) -> StreamingDataLoader:
        dataset = StreamingDataset(
            table,
            num_splits=max(SPLITS, view.workers),
            shuffle=bool(view.shuffle),
            shuffle_seed=SEED,
            epoch=epoch,
            transform_parallelism=cores(),  # its default counts cores that the process may not use too
            shuffle_clump_size=CLUMP if view.shuffle == "block" else None,
            **options,
        )
        return StreamingDataLoader(
            dataset,
            batch_size=view.batch_size,
            num_workers=view.workers,
            collate_fn=None if tensors else _columns,
            multiprocessing_context="forkserver" if view.workers else None,
        )

    return Loader(make)
