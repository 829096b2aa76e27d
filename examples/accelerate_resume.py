"""accelerate: train, be killed at any moment, resume with exactly the rows that would have come next.

python examples/accelerate_resume.py FOLDER [--kill-after STEP]

Start it again in the same folder to resume. What each step received is appended to FOLDER/rows.jsonl.
"""

import argparse
import json
import os
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from accelerate import Accelerator

import midepoch as me
from midepoch.integrations.accelerate import prepare_loader

EPOCHS, SAVE_EVERY = 2, 7


def train(folder: Path, kill_after: int | None) -> None:
    """Train for two epochs, from the last checkpoint if there is one."""
    accelerator = Accelerator(cpu=True)
    data = me.read(folder / "data", index_dir=folder / "index").shuffle(seed=42).batch(8)
    data = data.shard(accelerator.num_processes, accelerator.process_index)
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    loader = prepare_loader(accelerator, me.Loader(data, num_workers=2))

    step = 0
    if checkpoints := sorted(folder.glob("step-*")):
        accelerator.load_state(str(checkpoints[-1]))
        step = int(checkpoints[-1].name.removeprefix("step-"))

    for epoch in range(loader.epoch, EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            step += 1
            loss = torch.nn.functional.mse_loss(model(batch["x"][:, None]), batch["y"][:, None])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            log(folder, step, batch["id"])
            if step % SAVE_EVERY == 0:
                save(accelerator, folder, step)
            if step == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """Write a checkpoint so that a kill leaves all of it or nothing: under another name, synced, then renamed."""
    temporary = folder / "unfinished"
    if accelerator.is_main_process:
        shutil.rmtree(temporary, ignore_errors=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(temporary))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        for path in (*temporary.iterdir(), temporary):
            sync(path)
        temporary.rename(folder / f"step-{step:06d}")
        sync(folder)


def sync(path: Path) -> None:
    """Flush a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


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
