"""Train with torchrun, die at any moment, and resume with another number of processes, workers and batch size.

    torchrun --nproc-per-node 2 examples/train.py --data DATA --out OUT --workers 2
    torchrun --nproc-per-node 3 examples/train.py --data DATA --out OUT --workers 1 --batch-size 16

DATA is a folder of Arrow or Parquet files with the columns ``id`` and ``x``. Every step appends the ids it received to
``OUT/ids-RANK.jsonl``; the checkpoint is ``OUT/checkpoint.pt``. Rank 0 prints at which step it resumed, the loss, and
at the end whether every row came once, over all resumes.
"""

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import midepoch as me
from midepoch.distributed import gather_state, in_step


def main() -> None:
    """Train one epoch, from the checkpoint if there is one."""
    options = arguments()
    dist.init_process_group("gloo")
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)

    dataset = me.read(options.data).shuffle(seed=42, window=64).lanes(12)  # 1, 2, 3, 4 and 6 readers divide 12
    if options.keep_even:
        dataset = dataset.filter(is_even)
    loader = me.Loader(dataset.shard(), batch_size=options.batch_size, num_workers=options.workers, digest=True)

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step = 0
    if (out / "checkpoint.pt").exists():
        saved = torch.load(out / "checkpoint.pt", weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    steps = loader.progress().steps  # None if their number is not known, as with a filter
    of_steps = "" if steps is None else f" of {steps}"
    how = f"{dist.get_world_size()} processes with --workers {options.workers}"
    say(f"{'resumed' if step else 'began'} at step {step}{of_steps} on {how}")

    for batch in in_step(loader):  # a rank that runs out of batches repeats one until the others have none left
        step += 1
        x = batch["x"].float().unsqueeze(1)
        loss = (model(x) - x).square().mean() * (0 if loader.is_padding else 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not loader.is_padding:
            with (out / f"ids-{dist.get_rank()}.jsonl").open("a") as log:
                log.write(json.dumps({"step": step, "ids": batch["id"].tolist()}) + "\n")
            if step % options.log_every == 0:
                say(f"step {step}: loss {loss.item():.4f}")

        if step % options.save_every == 0:
            state = gather_state(loader)  # every rank takes part; rank 0 writes
            if dist.get_rank() == 0:
                content = {
                    "step": step,
                    "model": model.module.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": state,
                }
                save(content, out / "checkpoint.pt", die=step == options.die_saving_at)
        if step == options.die_at and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
    say_whether_complete(loader, dataset, step)
    dist.destroy_process_group()


def say(line: str) -> None:
    """Print a line on rank 0."""
    if dist.get_rank() == 0:
        print(line, flush=True)


def say_whether_complete(loader: me.Loader, dataset: me.Dataset, step: int) -> None:
    """Compare what all ranks received of the epoch, over all resumes, with what the dataset has."""
    epoch = loader.epoch - 1  # the loop has ended, so the loader is at the next one
    digests = [0] * dist.get_world_size()  # sums of the hashes of rows, which add up
    dist.all_gather_object(digests, loader.digest())
    if dist.get_rank() == 0:
        expected = dataset.survey()  # counts what a filter keeps; without one there is nothing to count
        if sum(digests) % 2**64 != expected.digest(epoch):
            raise SystemExit(f"epoch {epoch} ended after step {step}, and rows were lost or came twice")
        say(f"epoch {epoch} ended after step {step}: each of its {len(expected):,} rows came once")


def save(content: dict[str, Any], path: Path, *, die: bool = False) -> None:
    """Write a checkpoint so that a kill leaves either the old one or the new one, never half of one."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        torch.save(content, file)
        if die:
            file.truncate(file.tell() // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def is_even(row: dict[str, Any]) -> bool:
    """A filter: an example of a pipeline whose ranks must merge their states."""
    return int(row["id"]) % 2 == 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--keep-even", action="store_true", help="filter the rows")
    parser.add_argument("--die-at", type=int, help="let the last rank kill itself after this step")
    parser.add_argument("--die-saving-at", type=int, help="let rank 0 kill itself while it saves this step")
    return parser.parse_args()


if __name__ == "__main__":
    main()
