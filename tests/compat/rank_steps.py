"""What ranks of a process group do in tests, one function each. ``ranks.py`` starts them."""

import json
import logging
import os
import runpy
import sys
import time
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import midepoch as me
from counted_pipelines import ids_of_packs, pipelines
from midepoch.distributed import Complete, gather_state, in_step
from midepoch.storage import shared_listing
from worlds import ids, is_kept, is_late


def example(name, *arguments):
    """Run a script of ``examples`` with these arguments, as a shell would."""
    sys.argv = [name, *arguments]
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / f"{name}.py"), run_name="__main__")


def launched(name, *arguments):
    """The same as torchrun does it, also on one rank."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ.update({} if "RANK" in os.environ else alone)
    example(name, *arguments)


def write(out, name, value):
    Path(out, f"{name}-{dist.get_rank()}.json").write_text(json.dumps(value))
    dist.barrier()
    dist.destroy_process_group()


def in_step_or_not(action, folder, out):
    """Read with all ranks in step, or with ranks that disagree."""
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
    write(out, action, steps)


def checkpointed(action, pipeline, folder, out):
    """Read some batches, and save a torch.distributed.checkpoint; or load it, and read on."""
    dist.init_process_group("gloo")
    dataset = me.read(folder).shuffle(1, window=20).lanes(4)
    dataset = dataset.filter(is_kept) if pipeline == "filtered" else dataset
    loader = me.Loader(dataset.shard(), num_workers=1)
    inside = {"loader": Complete(loader) if pipeline == "filtered" else loader}
    if action == "save":
        got = ids(islice(loader, 5))
        dcp.save(inside, checkpoint_id=f"{out}/checkpoint")
    else:
        dcp.load(inside, checkpoint_id=f"{out}/checkpoint")
        got = ids(loader)
    write(out, action, got)


def checkpointed_packs(leg, steps, folder, out):
    """Every rank puts its own loader into the checkpoint: of a counted pipeline, one rank's state is that of all."""
    dist.init_process_group("gloo")
    dataset = pipelines("best_fit", folder).survey(folder=Path(out, "surveys")).lanes(4)
    loader = me.Loader(dataset.shard())
    if leg:
        dcp.load({"loader": loader}, checkpoint_id=f"{out}/checkpoint-{leg - 1}")
    got = []
    for item in loader:
        got.append([] if loader.is_padding else ids_of_packs(item))
        if len(got) == steps:
            break
    dcp.save({"loader": loader}, checkpoint_id=f"{out}/checkpoint-{leg}")
    write(out, f"leg-{leg}", got)


def counted(action, folder, out, save_at=0):
    """Train on packs. Rank 0 saves one file, and all ranks of the next leg load it."""
    dist.init_process_group("gloo")
    rank, half = dist.get_rank(), action == "half surveyed"
    dataset = pipelines("best_fit", folder).lanes(3).shard()
    dataset = dataset.survey(folder=Path(out, "surveys")) if not half or rank == 0 else dataset
    loader = me.Loader(dataset, num_workers=1, collate_fn=ids_of_packs, even=None if half else "auto")
    if action == "load":
        loader.load_state_dict(json.loads(Path(out, "state.json").read_text()))
    length, steps = len(loader) if loader.plan.counted else None, []
    for step, pack in enumerate(loader, start=1):
        dist.all_reduce(torch.zeros(1))  # a rank with fewer steps would make the others hang here
        steps.append({"pack": pack, "padding": loader.is_padding})
        if step == save_at:
            if rank == 0:
                Path(out, "state.json").write_text(json.dumps(loader.state_dict()))
            break
    write(out, action, {"steps": steps, "length": length})


def mesh(folder, out):
    """Read the shards of a real mesh of torch."""
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo")
    device_mesh = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
    dataset = me.read(folder).shuffle(1).shard(mesh=device_mesh, dim=("dp_replicate", "dp_shard"))
    place = device_mesh.get_coordinate()
    write(out, "mesh", {"dp": place[1], "tp": place[2], "rows": ids(me.Loader(dataset, batch_size=4))})


def listing(url, storage, out, patience, late=None, dies=None):
    """Open one folder of a store on all ranks: how many rows each found, and which warnings it logged."""
    logged = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.append(record.getMessage())
    logging.getLogger("midepoch").addHandler(handler)
    shared_listing.PATIENCE_SECONDS = patience
    rank = int(os.environ.get("RANK", "0"))
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    if rank == dies:
        os._exit(0)
    time.sleep(3 if rank == late else 0)
    dataset = me.read(url, storage_options=storage, index_dir=out, shared_listing=True)
    Path(out, f"listed-{rank}.json").write_text(json.dumps([rank, len(dataset), logged]))
    os._exit(0)
