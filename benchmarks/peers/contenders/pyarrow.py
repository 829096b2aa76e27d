"""The least that Python can do with the same files: pyarrow and a loop. There is no worker, state or packing."""

from collections.abc import Iterator
from glob import glob
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import torch

from benchmarks.peers import work
from benchmarks.peers.view import SEED, NotOfferedError, View

STATES = "none"


class Loop:
    """Batches, made in this process."""

    def __init__(self, view: View) -> None:
        self.view = view

    def __iter__(self) -> Iterator[Any]:
        if self.view.batch_size is None:
            for batch in _record_batches(self.view):
                yield from batch.to_pylist()
            return
        for batch in _record_batches(self.view):
            for at in range(0, len(batch), self.view.batch_size):
                yield _values(self.view, batch.slice(at, self.view.batch_size))


def load(view: View) -> Loop:
    if view.workers:
        raise NotOfferedError("a loop in one process")
    if view.shuffle == "block" or view.work in ("concat", "whole"):
        raise NotOfferedError("a loop without shuffle or packing")
    return Loop(view)


def _record_batches(view: View) -> Iterator[pa.RecordBatch]:
    if view.kind == "parquet":
        yield from ds.dataset(view.folder, format="parquet").to_batches()
        return
    files = sorted(glob(f"{view.folder}/*.arrow"))
    if view.shuffle == "row":
        table = pa.concat_tables(pa.ipc.open_stream(pa.memory_map(name)).read_all() for name in files)
        order = np.random.default_rng(SEED).permutation(len(table))
        for at in range(0, len(order), 64):
            yield from table.take(order[at : at + 64]).combine_chunks().to_batches()
        return
    for name in files:
        yield from pa.ipc.open_stream(pa.memory_map(name))


def _values(view: View, batch: pa.RecordBatch) -> Any:
    if view.kind == "tokens":
        column = batch["tokens"]
        return torch.from_numpy(column.flatten().to_numpy().reshape(len(column), -1).copy())
    if view.work == "tokenise":
        return {"input_ids": work.tokenise(batch["text"].to_pylist())}
    if view.work == "decode":
        return torch.stack([work.decode(jpeg) for jpeg in batch["jpeg"].to_pylist()])
    return batch.to_pydict()
