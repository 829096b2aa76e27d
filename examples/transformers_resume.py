"""The transformers Trainer: train, be killed at any moment, resume with exactly the rows that would have come next.

python examples/transformers_resume.py FOLDER [--kill-after STEP]

Start it again in the same folder to resume. What each step received is appended to FOLDER/rows.jsonl.
"""

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import midepoch as me
from midepoch.integrations.transformers import loader_trainer

EPOCHS, SAVE_EVERY = 2, 7


class LoggingTrainer(loader_trainer(Trainer)):  # type: ignore[misc]
    """A Trainer that takes its batches from a loader, and logs what it receives."""

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any) -> torch.Tensor:
        """One step."""
        log(Path(self.args.output_dir), self.state.global_step + 1, inputs.pop("id"))
        return super().training_step(model, {**inputs, "labels": inputs["input_ids"].clone()}, *args)


class Kill(TrainerCallback):
    """Die by SIGKILL after a step and its checkpoint, if it has one."""

    def __init__(self, after: int | None) -> None:
        self._after = after

    def on_step_begin(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        """Called before the next step."""
        if state.global_step == self._after:
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder: Path, kill_after: int | None) -> None:
    """Train for two epochs, from the last checkpoint if there is one."""
    args = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=EPOCHS,
        save_steps=SAVE_EVERY,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    data = me.read(folder / "data", index_dir=folder / "index").shuffle(seed=42).batch(8)
    loader = me.Loader(data.shard(args.world_size, args.process_index), num_workers=2)
    config = GPT2Config(vocab_size=128, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    trainer = LoggingTrainer(GPT2LMHeadModel(config), args, loader=loader, callbacks=[Kill(kill_after)])
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*/trainer_state.json")))


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
            tokens = pa.array([[(row + place) % 128 for place in range(16)] for row in ids], pa.list_(pa.int64()))
            table = pa.table({"id": pa.array(ids, pa.int64()), "input_ids": tokens})
            pq.write_table(table, folder / f"part-{part}.parquet", row_group_size=10)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the data, the checkpoints and the log")
    parser.add_argument("--kill-after", type=int, metavar="STEP", help="die by SIGKILL after this step")
    arguments = parser.parse_args()
    write(arguments.folder / "data")
    train(arguments.folder, arguments.kill_after)
