"""Run as a script: Ray Train on 2 workers, of which one is killed, and then on 3. Logs what each step received."""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

KILL_AFTER = 4


def train(config):
    import torch

    import midepoch as me
    from midepoch.integrations.ray import prepare_loader
    from worlds import ids

    folder, number = Path(config["folder"]), config["number"]
    context = ray.train.get_context()
    rank = context.get_world_rank()
    dataset = me.read(folder / "data", index_dir=folder / "index").shuffle(1, window=20).lanes(6)
    loader = prepare_loader(me.Loader(dataset.shard(), batch_size=2))
    step = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as saved:
            step = json.loads(Path(saved, "model.json").read_text())["step"]
    for epoch in range(loader.epoch, 1):
        loader.set_epoch(epoch)
        for batch in loader:
            step += 1
            torch.distributed.barrier()  # as a training step would wait for the others
            rows = [] if loader.is_padding else ids([batch])
            with (folder / f"rows-{number}-{rank}.jsonl").open("a") as file:
                file.write(json.dumps({"step": step, "rank": rank, "rows": rows}) + "\n")
            if number == 0 and step == KILL_AFTER and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == 0:
                with tempfile.TemporaryDirectory() as saved:
                    Path(saved, "model.json").write_text(json.dumps({"step": step}))
                    loader.report({"step": step}, saved)
            else:
                loader.report({"step": step})


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    for number, workers in enumerate([2, 3]):
        trainer = TorchTrainer(
            train,
            train_loop_config={"folder": str(folder), "number": number},
            scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(name="run", storage_path=str(folder / "storage")),
            torch_config=TorchConfig(backend="gloo"),
        )
        try:
            trainer.fit()
            ended = "whole"
        except ray.train.TrainingFailedError as error:
            ended = str(error)
        (folder / f"ended-{number}.txt").write_text(ended)
    ray.shutdown()
