"""Lightning: train, be killed at any moment, resume with exactly the rows that would have come next.

python examples/lightning_resume.py FOLDER [--kill-after STEP]

Start it again in the same folder to resume. What each step received is appended to FOLDER/rows.jsonl.
"""

import argparse
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

import midepoch as me

STEPS, SAVE_EVERY = 28, 7  # two epochs; Lightning gets steps, and the loader counts epochs


class Data(lightning.LightningDataModule):
    """The data. A checkpoint holds the position of training, not how far Lightning has read ahead."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def setup(self, stage: str) -> None:
        """Build the loader, once the trainer knows its ranks."""
        data = me.read(self.folder / "data", index_dir=self.folder / "index")
        data = data.shuffle(seed=42).with_format("torch").batch(8).repeat()
        data = data.shard(self.trainer.world_size, self.trainer.global_rank)
        self.loader = me.Loader(data, num_workers=2, even="pad")
        self.state = self.loader.state_dict()

    def train_dataloader(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Every batch with the state after it: Lightning asks for the next batch before it trains on this one."""
        for batch in self.loader:
            yield batch, self.loader.state_dict()

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Remove the state from a batch that is about to be trained on."""
        if self.trainer.training:
            batch, self.state = batch
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The state that Lightning writes into every checkpoint."""
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load that state; Lightning calls this before it asks for the first batch."""
        self.state = state
        self.loader.load_state_dict(state)


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
    trainer.fit(Model(folder), datamodule=Data(folder), ckpt_path="last")


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
