"""Run by torchrun: read with all ranks in step, or with ranks that disagree, and write what each rank received."""

import json
import sys
from pathlib import Path

import torch.distributed as dist

import midepoch as me
from midepoch.distributed import gather_state, in_step
from worlds import ids, is_late

action, folder, out = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
dataset = me.read(folder).shuffle(1, window=20)
if action == "in step":  # far more rows are kept of some lanes than of others
    loader = me.Loader(dataset.lanes(3).filter(is_late).shard(), batch_size=2, num_workers=1)
elif action == "lanes":
    loader = me.Loader(dataset.lanes(4).shard(), batch_size=2, num_workers=rank * 2)
elif action == "workers":
    loader = me.Loader(dataset.shard(), batch_size=2, num_workers=rank + 1)
else:
    loader = me.Loader(dataset.shuffle(rank).shard(), batch_size=2)
steps = []
for batch in in_step(loader):
    merged = gather_state(loader) if action == "in step" else None
    steps.append({"ids": [] if loader.is_padding else ids([batch]), "padding": loader.is_padding, "state": merged})
    dist.barrier()  # as a training step would wait for the others
assert loader.epoch == 1
Path(out, f"rank-{rank}.json").write_text(json.dumps(steps))
dist.destroy_process_group()
