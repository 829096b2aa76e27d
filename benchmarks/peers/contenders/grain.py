"""Grain over ArrayRecord files. Records are pickled dicts or raw arrays, one a group, as random access wants it.

Grain's shuffle is uniform over all rows, and is the one that it recommends for "block" too.
"""

import multiprocessing
import pickle
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import Any

import grain
import numpy as np
from absl import flags
from array_record.python.array_record_module import ArrayRecordWriter

from benchmarks.peers import work
from benchmarks.peers.view import PACK, SEED, NotOfferedError, View

STATES = "read"
flags.FLAGS.mark_as_parsed()  # workers ask for them; a program that is run by absl.app has parsed them
LEFT: list[Any] = []


def prepare(kind: str, source: Path, folder: Path) -> None:
    import pyarrow as pa

    folder.mkdir(parents=True)
    if kind == "parquet":
        for name in sorted(glob(f"{source}/*.parquet")):
            (folder / Path(name).name).hardlink_to(name)
        return
    for name in sorted(glob(f"{source}/*.arrow")):
        writer = ArrayRecordWriter(str(folder / f"{Path(name).stem}.array_record"), "group_size:1")
        for batch in pa.ipc.open_stream(pa.memory_map(name)):
            for record in _records(kind, batch):
                writer.write(record)
        writer.close()


def _records(kind: str, batch: Any) -> Iterator[bytes]:
    if kind == "tokens":
        for row in batch["tokens"].flatten().to_numpy().reshape(len(batch), -1):
            yield row.tobytes()
    elif kind == "documents":
        for tokens in batch["input_ids"]:
            yield tokens.values.to_numpy().astype(np.int32).tobytes()
    else:
        for row in batch.to_pylist():
            yield pickle.dumps(row)


def _tokens(record: bytes) -> Any:
    return np.frombuffer(record, np.int32)


def _document(record: bytes) -> dict[str, Any]:
    return {"input_ids": np.frombuffer(record, np.int32)}


def _short(document: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": document["input_ids"][:PACK]}


def _image(record: bytes) -> Any:
    return work.decode(pickle.loads(record)["jpeg"]).numpy()


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _tokenise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"input_ids": work.tokenise([row["text"] for row in rows])}


def _packs(rows: list[dict[str, Any]]) -> Any:
    return np.stack([row["input_ids"] for row in rows])


class Loader:
    """Grain's iterators have the state; this keeps the last one, so that the loader has it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.state: Any = None
        self.iterator: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.iterator = iter(self.dataset)
        if self.state is not None:
            self.iterator.set_state(self.state)
            self.state = None
        return (item for item in self.iterator)  # which is not closed with it

    def state_dict(self) -> Any:
        return self.iterator.get_state()

    def load_state_dict(self, state: Any) -> None:
        self.state = state

    def close(self) -> None:
        """Kill the workers, and keep the iterator.

        To close or to free it takes 25 s for each worker that still has batches to hand over.
        """
        LEFT.append(self.iterator)
        for worker in multiprocessing.active_children():
            worker.kill()


def load(view: View) -> Loader:
    if view.kind == "parquet":
        dataset = _parquet(view)
    else:
        source = grain.sources.ArrayRecordDataSource(sorted(glob(f"{view.folder}/*.array_record")))
        rows = grain.MapDataset.source(source).seed(SEED)
        dataset = _pipeline(view, rows.shuffle() if view.shuffle else rows)
    if view.workers:
        options = grain.MultiprocessingOptions(num_workers=view.workers, per_worker_buffer_size=2)
        dataset = dataset.mp_prefetch(options)
    if view.kind in ("tokens", "documents", "images"):
        import torch  # here, so that workers, which hand over NumPy in shared memory, need not import it

        dataset = dataset.map(torch.from_numpy)
    return Loader(dataset)


def _pipeline(view: View, rows: Any) -> Any:
    if view.work in ("concat", "whole"):
        documents = rows.map(_document)
        if view.work == "whole":
            documents = documents.map(_short)
        return _packed(view, documents.to_iter_dataset())
    parse = {"tokens": _tokens, "images": _image}.get(view.kind, pickle.loads)
    rows = rows.map(parse)
    if view.batch_size is None:
        return rows.to_iter_dataset()
    if view.kind in ("tokens", "images"):
        return rows.batch(view.batch_size).to_iter_dataset(_reading(view.batch_size))
    batch_fn = _tokenise if view.work == "tokenise" else _columns
    return rows.batch(view.batch_size, batch_fn=batch_fn).to_iter_dataset(_reading(view.batch_size))


def _reading(batch_size: int) -> Any:
    """Its defaults, 16 threads that read 500 rows ahead. They would read 500 batches ahead, once rows are batched."""
    return grain.ReadOptions(num_threads=16, prefetch_buffer_size=max(16, 500 // batch_size))


def _packed(view: View, documents: Any) -> Any:
    lengths = {"input_ids": PACK}
    if view.work == "concat":
        packs = grain.experimental.ConcatThenSplitIterDataset(documents, length_struct=lengths)
    else:
        packs = grain.experimental.FirstFitPackIterDataset(documents, length_struct=lengths, num_packing_bins=64)
    return packs.batch(view.batch_size, batch_fn=_packs)


def _parquet(view: View) -> Any:
    if view.shuffle:
        raise NotOfferedError("its Parquet reader has no shuffle of its own")
    files = grain.MapDataset.source(sorted(glob(f"{view.folder}/*.parquet")))
    readers = files.map(grain.experimental.ParquetIterDataset)
    rows = grain.experimental.InterleaveIterDataset(readers, cycle_length=4)
    return rows.batch(view.batch_size, batch_fn=_columns)
