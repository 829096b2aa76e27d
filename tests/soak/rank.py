"""What a rank of a leg does: read, write down what it received, then its state, and go on."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import midepoch as me
from midepoch.distributed import one_epoch, own_state
from soak.audit import END
from soak.pipelines import build, values_of
from soak.plants import PLANTS


def main(file: Path) -> None:
    leg: dict[str, Any] = json.loads(file.read_text())
    PLANTS[leg["plant"]]()
    rank, folder = int(os.environ["RANK"]), file.parent
    dist.init_process_group("gloo")
    dataset = build(**leg["dataset"])
    loader = me.Loader(
        (dataset.lanes(leg["lanes"]) if leg["lanes"] else dataset).shard(),
        batch_size=leg["batch_size"],
        collate_fn=values_of if leg["collates"] else None,
        num_workers=leg["workers"],
        prefetch_factor=leg["ahead"] if leg["workers"] else None,
        multiprocessing_context=leg["method"] if leg["workers"] and not leg["ray"] else None,
        workers=_ray_workers(leg["ray"]) if leg["ray"] else None,
        worker_restarts=10,
    )
    if leg["state"] is not None:
        loader.load_state_dict(leg["state"])

    def save(step: int) -> None:
        path = folder / f"state-{step}-{rank}.json"
        written = path.with_suffix(".part")
        written.write_text(json.dumps(own_state(loader)))
        written.rename(path)

    with (folder / f"rows-{rank}.jsonl").open("w", buffering=1) as log:
        log.write(f"[0, {os.getpid()}]\n")
        for step, batch in enumerate(one_epoch(loader), start=1):
            values = [] if loader.is_padding else batch if leg["collates"] else values_of(batch)
            log.write(f"{json.dumps([step, values])}\n")
            dist.all_reduce(torch.zeros(1))  # as training keeps ranks in step
            time.sleep(leg["pause"])
            if step % leg["every"] == 0 or step == leg["stop"]:
                save(step)
            if step == leg["stop"]:
                break
        else:
            save(END)
    dist.barrier()
    loader.close()
    sys.stdout.flush()
    os._exit(0)  # threads of gloo may abort the process while the interpreter ends


def _ray_workers(address: str) -> Any:
    import ray

    from midepoch.integrations.ray import RayWorkers

    ray.init(address, log_to_driver=False, logging_level="ERROR")
    return RayWorkers(num_cpus=0, resources={"soak": 1}, start_timeout=300)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
