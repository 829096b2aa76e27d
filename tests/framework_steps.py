"""Training with accelerate, Lightning or transformers and its integration, on a number of processes, with kills."""

import json
import os
import signal
from pathlib import Path

import torch

import midepoch as me
from worlds import is_kept

SAVE_EVERY, STEPS = 2, 60


def dataset_of(folder, pipeline):
    dataset = me.read(folder / "data", index_dir=folder / "index").shuffle(1, window=20).lanes(6)
    if pipeline == "filter":
        return dataset.filter(is_kept)
    return dataset.pack(8, column="tokens", eos=1, window=16).survey(folder=folder / "survey")


def as_tensors(items):
    """A batch: what identifies each row or pack, padded with -1, and numbers to train on."""
    rows = [item["tokens"].tolist() if "cu_seqlens" in item else [item["id"]] for item in items]
    longest = max(map(len, rows))
    return {
        "rows": torch.tensor([row + [-1] * (longest - len(row)) for row in rows]),
        "x": torch.tensor([[float(len(row))] for row in rows]),
    }


def rows_of(batch):
    return [[token for token in row if token >= 0] for row in batch["rows"].tolist()]


def loader_of(folder, pipeline, ranks, rank):
    data = dataset_of(folder, pipeline).shard(ranks, rank)
    return me.Loader(data, batch_size=2, collate_fn=as_tensors)


class Log:
    """What each step received, and the kill after one of them."""

    def __init__(self, out, leg, rank, kill_after):
        self.path, self.rank, self.kill_after = out.parent / f"{out.name}-{leg}-{rank}.jsonl", rank, kill_after

    def step(self, step, epoch, batch, is_padding):
        rows = [] if is_padding else rows_of(batch)
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, "epoch": epoch, "rank": self.rank, "rows": rows}) + "\n")

    def die(self, step):
        if step == self.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)


def transformers(out, log, loader_of_rank):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from midepoch.integrations.transformers import loader_trainer

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x):
            return {"loss": self.layer(x).square().mean()}

    loader = loader_of_rank()

    class Logging(loader_trainer(Trainer)):
        def training_step(self, model, inputs, *args):
            log.step(self.state.global_step + 1, loader.epoch, inputs, loader.is_padding)
            return super().training_step(model, {"x": inputs["x"]}, *args)

    class Kill(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            log.die(state.global_step)

    steps = {"max_steps": STEPS} if out.name == "filter" else {"num_train_epochs": 2}
    args = TrainingArguments(
        output_dir=str(out), save_steps=SAVE_EVERY, use_cpu=True, report_to=[], disable_tqdm=True, **steps
    )
    trainer = Logging(Model(), args, loader=loader, callbacks=[Kill()])
    resume = any((out).glob("checkpoint-*/trainer_state.json"))
    if log.rank == 0 and resume:  # as a kill in the middle of a save leaves it
        (out / "checkpoint-1000").mkdir(exist_ok=True)
    trainer.train(resume_from_checkpoint=resume)


def accelerate(out, log, loader_of_rank):
    from accelerate import Accelerator

    from midepoch.integrations.accelerate import prepare_loader

    accelerator = Accelerator(cpu=True)
    loader = loader_of_rank()
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    loader = prepare_loader(accelerator, loader)
    step = 0
    if saved := sorted(out.glob("step-*/complete")):
        accelerator.load_state(str(saved[-1].parent))
        step = int(saved[-1].parent.name[5:])
    for epoch in range(loader.epoch, 2):
        loader.set_epoch(epoch)
        for batch in loader:
            step += 1
            accelerator.backward(model(batch["x"]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            log.step(step, loader.epoch, batch, loader.is_padding)
            if step % SAVE_EVERY == 0:
                accelerator.save_state(str(out / f"step-{step:06d}"))
                accelerator.wait_for_everyone()
                (out / f"step-{step:06d}" / "complete").touch()
            log.die(step)


def lightning(out, log, loader_of_rank):
    import lightning as pl
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint

    from midepoch.integrations.lightning import LoaderDataModule

    data = LoaderDataModule(loader_of_rank)

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, number):
            log.step(self.global_step + 1, data.epoch, batch, data.is_padding)
            return self.layer(batch["x"]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters())

    class Kill(Callback):
        def on_train_batch_start(self, trainer, *_):
            log.die(trainer.global_step)

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        strategy="ddp" if "WORLD_SIZE" in os.environ else "auto",
        max_steps=STEPS,
        callbacks=[ModelCheckpoint(out, every_n_train_steps=SAVE_EVERY, save_last=True), Kill()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), datamodule=data, ckpt_path="last")


def train(framework, folder, pipeline, leg, kill_after):
    """One process of a leg. The last one is killed after a step."""
    folder, rank, ranks = Path(folder), int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    (folder / pipeline).mkdir(exist_ok=True)
    log = Log(folder / pipeline, leg, rank, kill_after if rank == ranks - 1 else None)

    def loader_of_rank(ranks=ranks, rank=rank):
        return loader_of(folder, pipeline, ranks, rank)

    globals()[framework](folder / pipeline, log, loader_of_rank)
