"""Run by torchrun: load a torch.distributed.checkpoint if there is one, read some packs, and save again.

Every rank puts its own loader into the checkpoint. The pipeline is counted, so the state of one rank is that of all.
"""

import json
import sys
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import midepoch as me
from counted_pipelines import ids_of_packs, pipelines

leg, steps, folder, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
dist.init_process_group("gloo")
dataset = pipelines("best_fit", folder).survey(folder=out / "surveys").lanes(4)
loader = me.Loader(dataset.shard())
if leg:
    dcp.load({"loader": loader}, checkpoint_id=f"{out}/checkpoint-{leg - 1}")
got = []
for item in loader:
    got.append([] if loader.is_padding else ids_of_packs(item))
    if len(got) == steps:
        break
dcp.save({"loader": loader}, checkpoint_id=f"{out}/checkpoint-{leg}")
(out / f"leg-{leg}-{dist.get_rank()}.json").write_text(json.dumps(got))
dist.destroy_process_group()
