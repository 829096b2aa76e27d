"""Hugging Face ``datasets`` with torchdata's StatefulDataLoader. It reads all files in place.

As its documentation recommends for training: ``to_iterable_dataset`` and a shuffle buffer; for a shuffle of single
rows, the map-style dataset, shuffled by the loader. The buffer is filled from one shard at a time: with several, the
default, version 5.2 cannot load a state into workers ("list index out of range").
"""

import os
from glob import glob
from itertools import chain
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
import datasets
import pyarrow.compute as pc
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.peers import work
from benchmarks.peers.view import PACK, ROWS_OF_A_BUDGET, SEED, NotOfferedError, View

STATES = "read"
SHARDS = 64

datasets.disable_progress_bars()


def _tokenise(columns: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": work.tokenise(columns["text"])}


def _decode(row: dict[str, Any]) -> dict[str, Any]:
    return {"image": work.decode(row["jpeg"])}


def _concat(columns: dict[str, Any]) -> dict[str, Any]:
    joined = list(chain.from_iterable(columns["input_ids"]))
    return {"input_ids": [joined[at : at + PACK] for at in range(0, len(joined) - PACK + 1, PACK)]}


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _pad(rows: list[dict[str, Any]]) -> dict[str, Any]:
    tokens = [row["input_ids"] for row in rows]
    masks = [torch.ones(len(one), dtype=torch.int64) for one in tokens]
    return {
        "input_ids": pad_sequence(tokens, batch_first=True),
        "attention_mask": pad_sequence(masks, batch_first=True),
    }


def _grouped_by_length(dataset: datasets.Dataset) -> Any:
    """What the Trainer of transformers does with ``group_by_length``."""
    from transformers.trainer_pt_utils import LengthGroupedSampler

    lengths = pc.list_value_length(dataset.data["input_ids"]).to_pylist()
    sampler = LengthGroupedSampler(ROWS_OF_A_BUDGET, lengths=lengths)
    return DataLoader(dataset.with_format("torch"), batch_size=ROWS_OF_A_BUDGET, sampler=sampler, collate_fn=_pad)


def load(view: View) -> Any:
    dataset = _dataset(view)
    if view.work == "whole":
        raise NotOfferedError("packing is a function of yours; the documentation shows concatenation")
    if view.work == "padded":
        return _grouped_by_length(dataset)
    columns = dataset.column_names
    if view.work == "tokenise":
        dataset = dataset.map(_tokenise, batched=True, batch_size=64, remove_columns=columns)
    elif view.work == "concat":
        dataset = dataset.map(_concat, batched=True, remove_columns=columns).with_format("torch")
    elif view.work == "decode":
        dataset = dataset.map(_decode, remove_columns=["jpeg"]).with_format("torch")
    elif view.kind == "tokens":
        dataset = dataset.with_format("torch")
    if view.batch_size is None:
        return dataset
    collate = None if view.kind in ("tokens", "documents", "images") else _columns
    mapped = isinstance(dataset, datasets.Dataset)
    return StatefulDataLoader(
        dataset,
        batch_size=view.batch_size,
        num_workers=view.workers,
        collate_fn=collate,
        shuffle=True if mapped and view.shuffle else None,
    )


def _dataset(view: View) -> Any:
    if view.kind == "tars":
        files = sorted(glob(f"{view.folder}/*.tar"))
        dataset = datasets.load_dataset("webdataset", data_files=files, split="train", streaming=True)
        dataset = dataset.cast_column("jpg", datasets.Image(decode=False))
        return dataset.shuffle(seed=SEED, buffer_size=1000, max_buffer_input_shards=1)
    if view.kind == "parquet":
        files = sorted(glob(f"{view.folder}/*.parquet"))
        dataset = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        if view.shuffle == "row":
            raise NotOfferedError("streamed Parquet has a shuffle buffer")
        return dataset.shuffle(seed=SEED, buffer_size=1000, max_buffer_input_shards=1) if view.shuffle else dataset
    files = sorted(glob(f"{view.folder}/*.arrow"))
    dataset = datasets.concatenate_datasets([datasets.Dataset.from_file(name) for name in files])
    if view.shuffle == "row":
        return dataset
    streamed = dataset.to_iterable_dataset(num_shards=SHARDS)
    return streamed.shuffle(seed=SEED, buffer_size=1000, max_buffer_input_shards=1) if view.shuffle else streamed
