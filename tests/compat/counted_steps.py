"""Run by torchrun: train on packs that are counted. Rank 0 saves one file, and all ranks of the next run load it."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import midepoch as me
from counted_pipelines import ids_of_packs, pipelines

folder, out, action, surveys, save_at = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
dataset = pipelines("best_fit", folder).lanes(3).shard()
if action != "half surveyed" or rank == 0:
    dataset = dataset.survey(folder=surveys)
even = None if action == "half surveyed" else "auto"
loader = me.Loader(dataset, num_workers=1, collate_fn=ids_of_packs, even=even)
if action == "load":
    loader.load_state_dict(json.loads(Path(out, "state.json").read_text()))
length, steps = len(loader) if loader.plan.counted else None, []
for step, pack in enumerate(loader, start=1):
    dist.all_reduce(torch.zeros(1))  # a rank with fewer steps would make the others hang here
    steps.append({"pack": pack, "padding": loader.is_padding})
    if step == int(save_at):
        if rank == 0:
            Path(out, "state.json").write_text(json.dumps(loader.state_dict()))
        break
Path(out, f"{action}-{rank}.json").write_text(json.dumps({"steps": steps, "length": length}))
dist.destroy_process_group()
