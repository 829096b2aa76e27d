"""A replica group of torchft, which trains a tiny model on gloo: GROUP DATA STEPS LOG LIGHTHOUSE."""

import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo
from torchft.optim import OptimizerWrapper

import midepoch as me
from midepoch.integrations.torchft import QuorumLoader

if __name__ == "__main__":
    group, data, steps, log, lighthouse = sys.argv[1:]
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    limit = timedelta(seconds=20)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=1,
        use_async_quorum=False,
        timeout=limit,
        quorum_timeout=timedelta(seconds=60),
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"group_{group}",
    )
    optimizer = OptimizerWrapper(manager, torch.optim.SGD(model.parameters(), lr=1e-6))
    dataset = me.read(data).shuffle(1, window=20).lanes(8).shard(1, 0)
    loader = me.Loader(dataset, batch_size=2, num_workers=1, persistent_workers=True)
    batches = QuorumLoader(manager, loader, micro_batches=12)
    while manager.current_step() < int(steps):
        optimizer.zero_grad()
        step, groups, rows = manager.current_step(), manager.num_participants(), []
        for batch, weight in batches.step():
            (model(batch["id"].float()[:, None]).mean() * weight).backward()
            rows += batch["id"].tolist() if weight else []
        for parameter in model.parameters():
            manager.allreduce(parameter.grad).wait()
        optimizer.step()
        if manager.current_step() > step:
            with open(log, "a") as file:
                file.write(json.dumps([step, group, groups, rows]) + "\n")
    loader.close()
    manager.shutdown(wait=False)
    os._exit(0)  # the threads of torchft would wait
