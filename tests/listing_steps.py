"""Ranks of a process group that open one folder of a store: ``python listing_steps.py '{"url": …}'``.

The processes are forked from one that has loaded torch and has no threads yet: a thread may hold a lock when it forks.
The store of the group is in the parent, as under torchrun.
"""

import json
import logging
import os
import sys
import time
from datetime import timedelta

import torch.distributed as dist

import midepoch as me
from midepoch.storage import shared_listing

PORT_BYTES = 5


def rank(number, ports, options):
    """One rank: how many rows it found, and which warnings it logged. The port of the store comes from a pipe."""
    port = int(os.read(ports, PORT_BYTES))
    logged = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.append(record.getMessage())
    logging.getLogger("midepoch").addHandler(handler)
    shared_listing.PATIENCE_SECONDS = options["patience"]
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=100))
    dist.init_process_group("gloo", store=store, rank=number, world_size=options["ranks"])
    if number == options.get("dies"):
        os._exit(0)
    time.sleep(options.get("late", {}).get(str(number), 0))
    dataset = me.read(
        options["url"], storage_options=options["storage"], index_dir=options["index"], shared_listing=True
    )
    os.write(1, f"{json.dumps([number, len(dataset), logged])}\n".encode())  # whole lines, although all write here
    os._exit(0)


def main():
    """Start the ranks, and wait for them."""
    options = json.loads(sys.argv[1])
    ports, to_ranks = os.pipe()
    children = []
    for number in range(options["ranks"]):
        child = os.fork()
        if child == 0:
            rank(number, ports, options)
        children.append(child)
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(to_ranks, f"{server.port:{PORT_BYTES}d}".encode() * options["ranks"])
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
