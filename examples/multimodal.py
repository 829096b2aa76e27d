"""Chats with images, cropped at random, packed and flattened: killed at any moment, resumed with any number of workers.

python examples/multimodal.py FOLDER [--workers N] [--kill-after STEP]

Start it again in the same folder to resume. What each step received is appended to FOLDER/steps.jsonl, with its pixels.
"""

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import midepoch as me

STEPS, SAVE_EVERY = 30, 4
SIDE = 8


def train(folder: Path, workers: int = 2, kill_after: int | None = None) -> None:
    """Train for some steps, from the last checkpoint if there is one."""
    dataset = me.MultiModalIterableDataset(
        folder / "data" / "chats.jsonl",
        processor=process,
        with_rng=True,
        data_folder=folder / "data",
        packing=True,
        packing_length=128,
        packing_window=16,
        on_error="skip",
    ).lanes(4)  # so that any number of workers yields the same packs
    loader = me.Loader(dataset, batch_size=2, num_workers=workers, collate_fn=me.MultiModalCollator(padding="flatten"))
    torch.manual_seed(0)
    model = torch.nn.Linear(3 * SIDE * SIDE, 1)
    optimizer = torch.optim.Adam(model.parameters())
    step = 0
    if (folder / "checkpoint.pt").exists():
        saved = torch.load(folder / "checkpoint.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        loader.load_state_dict(saved["loader"])

    while step < STEPS:
        for batch in loader:  # the rest of an epoch
            step += 1
            if batch["pixel_values"] is not None:
                loss = model(batch["pixel_values"].flatten(1)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            log(folder / "steps.jsonl", step, batch)
            if step % SAVE_EVERY == 0:
                content = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save(content | {"loader": loader.state_dict()}, folder / "checkpoint.pt")
            if step == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
            if step == STEPS:
                break
    print(f"Skipped: {dataset.metrics()}")


def process(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Bytes as tokens, one token per image, and a crop of each image that depends only on seed, epoch and row."""
    tokens: list[int] = []
    for message in sample["messages"]:
        content = message["content"]
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            tokens += [256] if part["type"] == "image" else list(part["text"].encode())
    crops = []
    for image in sample["images"]:
        left, top = (int(rng.integers(size - SIDE + 1)) for size in image.size)
        crops.append(np.asarray(image.crop((left, top, left + SIDE, top + SIDE)), np.float32) / 255)
    ids = np.array(tokens)
    return {
        "id": sample["id"],
        "input_ids": ids,
        "labels": np.where(ids == 256, -100, ids),
        "pixel_values": np.stack(crops) if crops else None,
    }


def save(content: dict[str, Any], path: Path) -> None:
    """Write a checkpoint so that a kill leaves either the old one or the new one, never half of one."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def log(path: Path, step: int, batch: dict[str, Any]) -> None:
    """Log which rows a step received, and a digest of all tokens and pixels."""
    ids = [number for pack in batch["id"] for number in pack]
    pixels = batch["pixel_values"]
    content = batch["input_ids"].numpy().tobytes() + (b"" if pixels is None else pixels.numpy().tobytes())
    with path.open("a") as file:
        file.write(json.dumps({"step": step, "ids": ids, "digest": hashlib.sha256(content).hexdigest()}) + "\n")


def write(folder: Path) -> None:
    """Write 96 chats, most of them about an image of noise, two of which are broken, unless they are there."""
    if folder.exists():
        return
    (folder / "images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    with (folder / "chats.jsonl").open("w") as file:
        for number in range(96):
            parts: list[dict[str, Any]] = [{"type": "text", "text": f"question no. {number} " + "?" * (number % 17)}]
            if number % 4:
                name = f"images/{number}.png"
                noise = rng.integers(0, 255, (12, 16, 3), np.uint8)
                Image.fromarray(noise).save(folder / name)
                if number in (30, 61):
                    (folder / name).write_bytes(b"not an image")
                parts.append({"type": "image_url", "image_url": {"url": name}})
            messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": f"answer {number}"}]
            file.write(json.dumps({"id": number, "messages": messages}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the data, the checkpoint and the log")
    parser.add_argument("--workers", type=int, default=2, help="of the loader; another number may resume")
    parser.add_argument("--kill-after", type=int, metavar="STEP", help="die by SIGKILL after this step")
    arguments = parser.parse_args()
    write(arguments.folder / "data")
    train(arguments.folder, arguments.workers, arguments.kill_after)
