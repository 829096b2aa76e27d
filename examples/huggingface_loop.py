"""A Hugging Face dataset in a plain loop: train, be killed at any moment, resume with the next example.

python examples/huggingface_loop.py FOLDER [--kill-after STEP]

Start it again in the same folder to resume. What each step received is appended to FOLDER/rows.jsonl.
"""

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch

import midepoch as me

EPOCHS, SAVE_EVERY, LENGTH = 3, 4, 16


def train(folder: Path, kill_after: int | None = None) -> None:
    """Train for some epochs, from the last checkpoint if there is one."""
    # The first run prepares the dataset through `datasets`; later runs do not even import it.
    dataset = me.fast_load_iterable_dataset(
        "json",
        data_files=str(folder / "data" / "*.jsonl"),
        split="train",
        cache_dir=str(folder / "cache"),
        index_dir=folder / "index",
    )
    # Without a level, only the Arrow files are permuted; up to 500 MB `datasets` writes a single file.
    dataset = dataset.shuffle(seed=42).map(tokenise).batch(8)

    torch.manual_seed(0)
    model = torch.nn.EmbeddingBag(128, 1)
    optimizer = torch.optim.Adam(model.parameters())
    step = 0
    if (folder / "checkpoint.pt").exists():
        saved = torch.load(folder / "checkpoint.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        dataset.load_state_dict(saved["dataset"])
        step = saved["step"]

    for epoch in range(dataset.epoch, EPOCHS):
        dataset.set_epoch(epoch)  # in the epoch of the checkpoint this changes nothing
        for batch in dataset:
            step += 1
            logits = model(torch.tensor(batch["tokens"])).squeeze(1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(batch["label"]).float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log(folder / "rows.jsonl", step, batch["id"])
            if step % SAVE_EVERY == 0:
                content = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save({**content, "dataset": dataset.state_dict()}, folder / "checkpoint.pt")
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
    parser.add_argument("--kill-after", type=int, metavar="STEP", help="die by SIGKILL after this step")
    arguments = parser.parse_args()
    write(arguments.folder / "data")
    train(arguments.folder, arguments.kill_after)
