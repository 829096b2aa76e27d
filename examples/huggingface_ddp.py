"""A Hugging Face dataset on several ranks: only rank 0 saves, and any number of ranks resumes from that one state.

    torchrun --nproc-per-node 2 examples/huggingface_ddp.py FOLDER [--kill-after STEP]
    torchrun --nproc-per-node 3 examples/huggingface_ddp.py FOLDER

What each step received is appended to FOLDER/rows-RANK.jsonl.
"""

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import midepoch as me

EPOCHS, SAVE_EVERY, LENGTH = 3, 2, 16


def train(folder: Path, kill_after: int | None = None) -> None:
    """Train for some epochs, from the last checkpoint if there is one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dataset = build(folder).shard(num_shards=ranks, index=rank)

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.EmbeddingBag(128, 1))
    optimizer = torch.optim.Adam(model.parameters())
    step = 0
    if (folder / "checkpoint.pt").exists():
        saved = torch.load(folder / "checkpoint.pt", weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        dataset.load_state_dict(saved["dataset"])  # every rank loads the same state, with any number of ranks
        step = saved["step"]

    for epoch in range(dataset.epoch, EPOCHS):
        dataset.set_epoch(epoch)
        with model.join():  # at the end of an epoch some ranks may have a batch more than others
            for batch in dataset:
                step += 1
                log(folder / f"rows-{rank}.jsonl", step, batch["id"].tolist())
                logits = model(batch["tokens"]).squeeze(1)
                loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch["label"].float())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if rank == 0 and step % SAVE_EVERY == 0:
                    content = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                    save({**content, "dataset": dataset.state_dict()}, folder / "checkpoint.pt")
                if rank == ranks - 1 and step == kill_after:
                    os.kill(os.getpid(), signal.SIGKILL)
        step = most(step)


def build(folder: Path) -> me.SimpleArrowIterableDataset:
    """The dataset. All ranks may call this at once: one of them prepares it, and the others wait."""
    dataset = me.fast_load_iterable_dataset(
        "parquet",
        data_files=str(folder / "data" / "*.parquet"),
        split="train",
        cache_dir=str(folder / "cache"),
        index_dir=folder / "index",
    )
    # The lanes are fixed, so any number of ranks gets the same batches in the same order.
    return dataset.shuffle(seed=42).map(tokenise).with_format("torch").batch(8).lanes(4)


def most(steps: int) -> int:
    """The steps of the rank that took most, so that all ranks count the same."""
    taken = torch.tensor(steps)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return int(taken)


def tokenise(row: dict[str, Any]) -> dict[str, Any]:
    """A tokeniser that needs no files: bytes, all rows of one length."""
    return {"tokens": list(row["text"].encode()[:LENGTH].ljust(LENGTH))}


def save(content: dict[str, Any], path: Path) -> None:
    """Write a checkpoint so that a kill leaves either the old one or the new one, never half of one."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def log(path: Path, step: int, ids: list[int]) -> None:
    """Log which rows a step received."""
    with path.open("a") as file:
        file.write(json.dumps({"step": step, "ids": ids}) + "\n")


def write(folder: Path) -> None:
    """Write 96 rows as Parquet, unless they exist."""
    if not folder.exists():
        import pyarrow as pa
        import pyarrow.parquet as pq

        folder.mkdir(parents=True)
        for part in range(4):
            rows = [
                {"id": row, "text": f"text no. {row}", "label": row % 2} for row in range(24 * part, 24 * part + 24)
            ]
            pq.write_table(pa.Table.from_pylist(rows), folder / f"part-{part}.parquet")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the data, the checkpoint and the logs")
    parser.add_argument("--kill-after", type=int, metavar="STEP", help="let the last rank kill itself after this step")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        write(arguments.folder / "data")
    dist.barrier()
    train(arguments.folder, arguments.kill_after)
    dist.destroy_process_group()
