"""What each process of the demo runs, under torchrun: a small transformer, trained with DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/demo/train.py FOLDER RUN SESSION --workers 2

It goes on from ``FOLDER/RUN/checkpoint.pt`` if that is there. What every step received, and its loss, is appended to
``FOLDER/RUN/SESSION/rank-RANK.jsonl``.
"""

import argparse
import json
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from corpus import LENGTH, packs
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import midepoch as me

GLOBAL_BATCH, MICRO_BATCH, WIDTH, HEADS, BLOCKS = 12, 2, 64, 4, 2
"""Twelve packs a step, two at a time: six micro-batches, which one, two and three ranks can share."""


def train(options: argparse.Namespace) -> None:
    """Train one epoch, from the checkpoint if there is one."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, ranks, run = dist.get_rank(), dist.get_world_size(), options.folder / options.run
    dataset = packs(options.folder).shard()
    loader = me.Loader(
        dataset, global_batch_size=GLOBAL_BATCH, micro_batch_size=MICRO_BATCH, num_workers=options.workers
    )
    model = DistributedDataParallel(Transformer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = 1
    if (run / "checkpoint.pt").exists():
        saved = torch.load(run / "checkpoint.pt", weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"] + 1

    with (run / options.session / f"rank-{rank}.jsonl").open("w", buffering=1) as log:
        for number, batch in enumerate(loader):
            is_last = (number + 1) % loader.accumulation == 0
            with nullcontext() if is_last else model.no_sync():
                loss, tokens = loss_of(model, batch)
                # The same gradient on any number of ranks: a fixed divisor, and DDP divides by the number of ranks.
                weight = 0 if loader.is_padding else ranks / (GLOBAL_BATCH * LENGTH)
                if not loader.is_padding:
                    rows = [row for pack in batch["id"] for row in pack.tolist()]
                    log.write(json.dumps({"step": step, "rows": rows, "loss": loss.item(), "tokens": tokens}) + "\n")
                if step == options.kill_at and rank == 0:
                    kill_all_processes()
                (loss * weight).backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
                if step % options.save_every == 0 and rank == 0:
                    content = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                    save(content | {"loader": loader.state_dict()}, run / "checkpoint.pt")  # one rank saves for all
                step += 1
    dist.destroy_process_group()


class Transformer(nn.Module):
    """A causal transformer over packed documents. No document sees another one."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(128, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128))

    def forward(self, batch: dict[str, Any]) -> Tensor:
        """The scores of every next token."""
        documents = batch["document_ids"]
        may_see = (documents.unsqueeze(1) == documents.unsqueeze(2)).tril().unsqueeze(1)
        x = self.tokens(batch["input_ids"]) + self.places(batch["position_ids"])
        for block in self.blocks:
            x = block(x, may_see)
        return self.head(x)


class Block(nn.Module):
    """Attention, then two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.to_heads = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH))
        self.from_heads = nn.Linear(WIDTH, WIDTH)
        self.dense = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, may_see: Tensor) -> Tensor:
        """The same shape again."""
        heads = self.to_heads(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.from_heads(scaled_dot_product_attention(*heads, attn_mask=may_see).transpose(1, 2).flatten(2))
        return x + self.dense(x)


def loss_of(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, int]:
    """The sum of the losses of all next tokens that are in the document of their token, and how many there are."""
    documents, labels = batch["document_ids"], batch["labels"].clone()
    labels[:, 1:][documents[:, 1:] != documents[:, :-1]] = -100
    loss = cross_entropy(model(batch)[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    return loss, int((labels[:, 1:] != -100).sum())


def save(content: dict[str, Any], path: Path) -> None:
    """Write a checkpoint so that a kill leaves either the old one or the new one, never half of one."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def kill_all_processes() -> None:
    """Send SIGKILL to torchrun, to all ranks and to all their workers. Nothing can be saved or closed any more."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # this one has just ended
            continue
    # Without torchrun the parent is the user's shell, which has to live.
    family = [os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid()]
    for member in family:  # grows meanwhile
        family += [child for child, parent in parents.items() if parent == member]
    for process in sorted(family, key=os.getpid().__eq__):  # this process last
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="has the corpus")
    parser.add_argument("run", help="the folder of the checkpoint, inside that folder")
    parser.add_argument("session", help="the folder of the logs, inside that one")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--kill-at", type=int, metavar="STEP", help="end all processes with SIGKILL inside this step")
    return parser.parse_args()


if __name__ == "__main__":
    train(arguments())
    # A thread of gloo may let go of a tensor while the interpreter ends, which aborts the process. So leave at once.
    sys.stdout.flush()
    os._exit(0)
