"""Classify images of a folder, cropped and flipped at random: killed at any moment, resumed with any number of workers.

python examples/vision.py FOLDER [--workers N] [--kill-after STEP]

Start it again in the same folder to resume. What each step received is appended to FOLDER/steps.jsonl, with its pixels.
With torchvision installed, its transforms augment the images; else a few lines of torch do.
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

try:
    from torchvision.transforms import v2
except ImportError:
    v2 = None

STEPS, SAVE_EVERY = 30, 4
STORED, SIDE = 24, 16


def train(folder: Path, workers: int = 2, kill_after: int | None = None) -> None:
    """Train for some steps, from the last checkpoint if there is one."""
    images = me.image_folder(folder / "data", decoder="turbo", size=STORED)
    dataset = images.shuffle(seed=42).map(augmented, with_rng=True).lanes(4)  # so that any workers yield the same order
    loader = me.Loader(dataset, batch_size=8, num_workers=workers)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(len(images.class_names))
    )
    model(torch.zeros(1, 3, SIDE, SIDE))
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
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
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


def augmented(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A crop, maybe flipped, that depends only on seed, epoch and row."""
    pixels = torch.from_numpy(row["image"]).permute(2, 0, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(1 << 63)))
        return {"image": transform(pixels).float() / 255}


def transform(pixels: torch.Tensor) -> torch.Tensor:
    """Crop and flip with torch's random numbers, as the transforms of torchvision do."""
    if v2 is not None:
        return v2.Compose([v2.RandomCrop(SIDE), v2.RandomHorizontalFlip()])(pixels)
    top, left = torch.randint(STORED - SIDE + 1, (2,)).tolist()
    crop = pixels[:, top : top + SIDE, left : left + SIDE]
    return crop.flip(-1) if torch.rand(()) < 0.5 else crop


def save(content: dict[str, Any], path: Path) -> None:
    """Write a checkpoint so that a kill leaves either the old one or the new one, never half of one."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def log(path: Path, step: int, batch: dict[str, Any]) -> None:
    """Log which images a step received, and a digest of their pixels."""
    digest = hashlib.sha256(batch["image"].numpy().tobytes()).hexdigest()
    with path.open("a") as file:
        file.write(json.dumps({"step": step, "paths": batch["path"], "digest": digest}) + "\n")


def write(folder: Path) -> None:
    """Write 90 images of noise in three classes, unless they are there."""
    if folder.exists():
        return
    rng = np.random.default_rng(0)
    for number in range(90):
        path = folder / ("cat", "dog", "eel")[number % 3] / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (30, 40, 3), np.uint8)).save(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the data, the checkpoint and the log")
    parser.add_argument("--workers", type=int, default=2, help="of the loader; another number may resume")
    parser.add_argument("--kill-after", type=int, metavar="STEP", help="die by SIGKILL after this step")
    arguments = parser.parse_args()
    write(arguments.folder / "data")
    train(arguments.folder, arguments.workers, arguments.kill_after)
