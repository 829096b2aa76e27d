"""midepoch, from this repository. It reads all files in place."""

from typing import Any

import midepoch as me
from benchmarks import data
from benchmarks.peers import work
from benchmarks.peers.view import BUDGET, PACK, SEED, View
from midepoch.checkpoint.state import signed

STATES = "computed"


def _tokenise(columns: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": work.tokenise(columns["text"])}


def _decode(row: dict[str, Any]) -> dict[str, Any]:
    return {"image": work.decode(row["jpeg"])}


def load(view: View) -> Any:
    dataset = me.read(view.folder, index_dir=data.INDEX)
    if view.shuffle:
        dataset = dataset.shuffle(SEED, level=view.shuffle)
    if view.work == "tokenise":
        columns = ["id", "text", "number", "score"]
        dataset = dataset.map(_tokenise, batched=True, one_to_one=True, batch_size=64, remove_columns=columns)
    elif view.work in ("concat", "whole"):
        strategy = "concat" if view.work == "concat" else "best_fit"
        dataset = dataset.pack(PACK, strategy=strategy).with_format("torch")
    elif view.work == "padded":
        return me.Loader(dataset.batch_by_tokens(BUDGET, overlong="alone"), num_workers=view.workers)
    elif view.work == "decode":
        dataset = dataset.map(_decode, remove_columns=["jpeg"]).with_format("torch")
    elif view.kind == "tokens":
        dataset = dataset.with_format("torch")
    if view.batch_size is None:
        return dataset
    return me.Loader(dataset, batch_size=view.batch_size, num_workers=view.workers)


def resume_point(view: View, loader: Any, rows: int) -> dict[str, Any]:
    """The state of a loader in this process after a number of rows, without reading them."""
    next(iter(loader))
    batches = rows // (view.batch_size or 1)
    return signed({**loader.state_dict(), "turn": batches, "cursors": [[1, batches]]})
