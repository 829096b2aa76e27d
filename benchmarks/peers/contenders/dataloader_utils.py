"""torch-dataloader-utils: data are written as Parquet first, unless they are Parquet."""

from glob import glob
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch_dataloader_utils import StructuredDataset

from benchmarks.peers import work
from benchmarks.peers.view import SEED, NotOfferedError, View

STATES = "read"


def prepare(kind: str, source: Path, folder: Path) -> None:
    if kind == "documents":
        raise NotOfferedError("packing is a function of yours")
    folder.mkdir(parents=True)
    for name in sorted(glob(f"{source}/*.parquet")):
        (folder / Path(name).name).hardlink_to(name)
    for name in sorted(glob(f"{source}/*.arrow")):
        table = pa.ipc.open_stream(pa.memory_map(name)).read_all()
        pq.write_table(table, folder / f"{Path(name).stem}.parquet", row_group_size=2000)


def _as_it_is(batch: Any) -> Any:
    return batch


def _tokens(batch: pa.RecordBatch) -> Any:
    column = batch["tokens"]
    return torch.from_numpy(column.flatten().to_numpy().reshape(len(column), -1).copy())


def _tokenise(columns: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": work.tokenise(columns["text"])}


def _images(columns: dict[str, Any]) -> Any:
    return torch.stack([work.decode(jpeg) for jpeg in columns["jpeg"]])


class Loader:
    """The loader and its dataset, which has the state."""

    def __init__(self, loader: Any, dataset: Any) -> None:
        self.loader, self.dataset = loader, dataset

    def __iter__(self) -> Any:
        return iter(self.loader)

    def state_dict(self) -> Any:
        return self.dataset.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.dataset.load_state_dict(state)


def load(view: View) -> Loader:
    if view.batch_size is None:
        raise NotOfferedError("it yields batches")
    if view.shuffle == "row":
        raise NotOfferedError("it shuffles chunks, and rows in a buffer")
    collates = {"tokenise": _tokenise, "decode": _images}
    loader, dataset = StructuredDataset.create_dataloader(
        path=view.folder,
        format="parquet",
        num_workers=view.workers,
        batch_size=view.batch_size,
        shuffle=bool(view.shuffle),
        shuffle_seed=SEED,
        shuffle_buffer_size=1000 if view.shuffle else None,
        output_format="arrow" if view.kind == "tokens" else "dict",
        collate_fn=_tokens if view.kind == "tokens" else collates.get(view.work, _as_it_is),
    )
    return Loader(loader, dataset)
