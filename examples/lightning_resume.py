"""Lightning: train, be killed at any moment, resume with exactly the rows that would have come next.

python examples/lightning_resume.py FOLDER [--kill-after STEP]

Start it again in the same folder to resume. What each step received is appended to FOLDER/rows.jsonl.
"""

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import lightning
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

import midepoch as me
from midepoch.integrations.lightning import LoaderDataModule

STEPS, SAVE_EVERY = 28, 7  # two epochs; Lightning gets steps, and the loader counts epochs


class Model(lightning.LightningModule):
    """A tiny model that logs what it receives."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.layer = folder, torch.nn.Linear(1, 1)

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """One step."""
        log(self.folder, self.global_step + 1, batch["id"])
        return torch.nn.functional.mse_loss(self.layer(batch["x"][:, None]), batch["y"][:, None])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer."""
        return torch.optim.AdamW(self.parameters())


class Kill(Callback):
    """Die by SIGKILL after a step and its checkpoint, if it has one."""

    def __init__(self, after: int | None) -> None:
        self.after = after

    def on_train_batch_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Called before the next step."""
        if trainer.global_step == self.after:
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder: Path, kill_after: int | None) -> None:
    """Train from the last checkpoint, if there is one. Lightning itself writes checkpoints under another name first."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=STEPS,
        callbacks=[ModelCheckpoint(folder, every_n_train_steps=SAVE_EVERY, save_last=True), Kill(kill_after)],
        logger=False,
        enable_progress_bar=False,
    )
    data = me.read(folder / "data", index_dir=folder / "index").shuffle(seed=42).batch(8)
    loader = me.Loader(data.shard(trainer.world_size, trainer.global_rank), num_workers=2)
    trainer.fit(Model(folder), datamodule=LoaderDataModule(loader), ckpt_path="last")


def log(folder: Path, step: int, ids: torch.Tensor) -> None:
    """Log which rows a step received."""
    with (folder / "rows.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "ids": ids.tolist()}) + "\n")


def write(folder: Path) -> None:
    """Write a dataset of 100 rows, unless it exists."""
    if not folder.exists():
        folder.mkdir(parents=True)
        for part in range(4):
            ids = range(25 * part, 25 * (part + 1))
            x = pa.array([row / 100 for row in ids], pa.float32())
            y = pa.array([1 - row / 50 for row in ids], pa.float32())
            table = pa.table({"id": pa.array(ids, pa.int64()), "x": x, "y": y})
            pq.write_table(table, folder / f"part-{part}.parquet", row_group_size=10)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the data, the checkpoints and the log")
    parser.add_argument("--kill-after", type=int, metavar="STEP", help="die by SIGKILL after this step")
    arguments = parser.parse_args()
    write(arguments.folder / "data")
    train(arguments.folder, arguments.kill_after)
