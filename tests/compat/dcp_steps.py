"""Run by torchrun: read some batches, with torch.distributed.checkpoint before or after."""

import json
import sys
from itertools import islice
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import midepoch as me
from midepoch.distributed import Complete
from worlds import ids, is_kept

action, pipeline, folder, out = sys.argv[1:]
dist.init_process_group("gloo")
dataset = me.read(folder).shuffle(1, window=20).lanes(4)
if pipeline == "filtered":
    dataset = dataset.filter(is_kept)
loader = me.Loader(dataset.shard(), num_workers=1)
inside = {"loader": Complete(loader) if pipeline == "filtered" else loader}
if action == "save":
    got = ids(islice(loader, 5))
    dcp.save(inside, checkpoint_id=f"{out}/checkpoint")
else:
    dcp.load(inside, checkpoint_id=f"{out}/checkpoint")
    got = ids(loader)
Path(out, f"{action}-{dist.get_rank()}.json").write_text(json.dumps(got))
dist.destroy_process_group()
