"""Run as a script: four processes in a real mesh of torch read their shards, and write what each received."""

import json
import multiprocessing
import sys
from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh

import midepoch as me
from worlds import ids


def read(folder, out, rank):
    torch.distributed.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
    loader = me.Loader(me.read(folder).shuffle(1).shard(mesh=mesh, dim=("dp_replicate", "dp_shard")), batch_size=4)
    rows = ids(loader)
    place = mesh.get_coordinate()
    Path(out, f"rank-{rank}.json").write_text(json.dumps({"dp": place[1], "tp": place[2], "rows": rows}))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=read, args=(*sys.argv[1:], rank)) for rank in range(4)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(any(process.exitcode for process in ranks))
