"""A rank of a training run over a saved data set: some steps, rank 0 alone saves, and all go on from its state."""

import json
import sys
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist

import midepoch as me

data, out = sys.argv[1], Path(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()


def build():
    return me.fast_load_iterable_dataset(data, split="train").shuffle(seed=5, level="block").shard().batch(2)


dataset = build()
batches = [batch["id"] for batch in islice(iter(dataset), 6)]
if rank == 0:
    torch.save(dataset.state_dict(), out / "state.pt")
dist.barrier()
resumed = build()
resumed.load_state_dict(torch.load(out / "state.pt", weights_only=True))
batches += [batch["id"] for batch in resumed]
(out / f"{rank}.json").write_text(json.dumps(batches))
dist.barrier()
dist.destroy_process_group()
