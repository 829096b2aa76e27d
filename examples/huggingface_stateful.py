"""A Hugging Face dataset in torchdata's StatefulDataLoader: killed at any moment, resumed with any number of workers.

python examples/huggingface_stateful.py FOLDER [--workers N] [--kill-after STEP]

Start it again in the same folder to resume. What each step received is appended to FOLDER/rows.jsonl.
"""

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import midepoch as me

EPOCHS, SAVE_EVERY, LENGTH = 3, 4, 16


def train(folder: Path, workers: int = 2, kill_after: int | None = None) -> None:
    """Train for some epochs, from the last checkpoint if there is one."""
    dataset = me.fast_load_iterable_dataset(
        "json",
        data_files=str(folder / "data" / "*.jsonl"),
        split="train",
        cache_dir=str(folder / "cache"),
        index_dir=folder / "index",
    )
    # The dataset makes the batches and has four lanes, so 0, 1, 2 and 4 workers yield the same batches.
    dataset = dataset.shuffle(seed=42).map(tokenise).with_format("torch").batch(8).lanes(4)
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    torch.manual_seed(0)
    model = torch.nn.EmbeddingBag(128, 1)
    optimizer = torch.optim.Adam(model.parameters())
    step = first_epoch = 0
    if (folder / "checkpoint.pt").exists():
        saved = torch.load(folder / "checkpoint.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step, first_epoch = saved["step"], saved["epoch"]
        if saved["workers"] == workers:
            loader.load_state_dict(saved["loader"])
        else:  # StatefulDataLoader itself refuses another number of workers
            dataset.load_state_dict(me.from_stateful_dataloader(saved["loader"]))

    for epoch in range(first_epoch, EPOCHS):
        dataset.set_epoch(epoch)  # in the epoch of the checkpoint this changes nothing
        for batch in loader:
            step += 1
            logits = model(batch["tokens"]).squeeze(1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch["label"].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log(folder / "rows.jsonl", step, batch["id"].tolist())
            if step % SAVE_EVERY == 0:
                content = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                content |= {"epoch": epoch, "workers": workers, "loader": loader.state_dict()}
                save(content, folder / "checkpoint.pt")
            if step == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)


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
    """Write 96 rows as JSON lines, unless they are there."""
    if not folder.exists():
        folder.mkdir(parents=True)
        for part in range(4):
            rows = [
                {"id": row, "text": f"text no. {row}", "label": row % 2} for row in range(24 * part, 24 * part + 24)
            ]
            (folder / f"part-{part}.jsonl").write_text("\n".join(map(json.dumps, rows)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the data, the checkpoint and the log")
    parser.add_argument("--workers", type=int, default=2, help="of the StatefulDataLoader; another number may resume")
    parser.add_argument("--kill-after", type=int, metavar="STEP", help="die by SIGKILL after this step")
    arguments = parser.parse_args()
    write(arguments.folder / "data")
    train(arguments.folder, arguments.workers, arguments.kill_after)
