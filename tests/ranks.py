"""Ranks of a process group, forked from one process that has loaded torch: that takes longer than all their work.

Tests call ``start``. Run as a script, this module is that process. It has no threads when it forks, because a thread
may hold a lock then. The store of the group is in it, as under torchrun.
"""

import json
import multiprocessing
import os
import subprocess
import sys
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path

TESTS = Path(__file__).parent
PORT_BYTES = 5


def environment():
    """The environment of processes that import the tests' modules and talk over loopback."""
    paths = os.pathsep.join(map(str, [TESTS.parent / "src", TESTS, TESTS / "compat"]))
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1"),
        "PYTHONPATH": paths,
    }


def start(function, legs, folder, *, preload=""):
    """Run a function, such as "rank_steps.mesh", on some ranks in each leg, which is ``[ranks, *arguments]``.

    Returns the exit codes of the ranks of each leg, and all that they wrote to standard output and error.
    """
    said = folder / "said.txt"
    command = [sys.executable, __file__, function, json.dumps(legs, default=str), str(folder), preload]
    with said.open("w") as output:  # workers of killed ranks would keep a pipe open
        subprocess.run(command, env=environment(), stdout=output, stderr=output, check=False)
    codes = folder / "codes.json"
    assert codes.exists(), said.read_text()
    return json.loads(codes.read_text()), said.read_text()


def run(function, legs, folder):
    """The same, for ranks that must all end well."""
    codes, said = start(function, legs, folder)
    assert not any(map(any, codes)), said[-5000:]


def one_rank(function, rank, ranks, ports, arguments):
    port = os.read(ports, PORT_BYTES).decode().strip()
    if ranks > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "GROUP_RANK": "0"}
        os.environ |= {"LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "test"}
    function(*arguments)
    sys.stdout.flush()
    os._exit(0)  # threads of gloo may abort the process while the interpreter ends


def one_leg(function, ranks, arguments):
    """The exit codes of all ranks. If one dies, the others are killed too, as a launcher does it."""
    context = multiprocessing.get_context("fork")
    ports, to_ranks = os.pipe()
    processes = [
        context.Process(target=one_rank, args=(function, rank, ranks, ports, arguments)) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(to_ranks, f"{store.port:{PORT_BYTES}d}".encode() * ranks)
    running = list(processes)
    while running:
        wait([process.sentinel for process in running])
        if any(process.exitcode for process in processes):
            for process in running:
                process.kill()
        running = [process for process in running if process.is_alive()]
    return [process.exitcode for process in processes]


if __name__ == "__main__":
    import torch.distributed

    torch.set_num_threads(1)
    name, legs, folder, preload = sys.argv[1:]
    for module in filter(None, preload.split(",")):
        import_module(module)
    module, _, attribute = name.rpartition(".")
    function = getattr(import_module(module), attribute)
    codes = [one_leg(function, ranks, arguments) for ranks, *arguments in json.loads(legs)]
    Path(folder, "codes.json").write_text(json.dumps(codes))
