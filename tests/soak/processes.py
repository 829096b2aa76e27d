"""The processes of a soak: found by a mark in their environment, whoever their parent is, so that none is left."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "MIDEPOCH_SOAK"
LEG = "MIDEPOCH_SOAK_LEG"


def marked(variable: str, value: str) -> set[int]:
    """The processes that were started with this variable in their environment, but for this one."""
    line, found = f"{variable}={value}".encode(), set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if line in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found - {os.getpid()}


def send(process: int, number: int) -> None:
    """Send a signal to a process, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(process, number)


def kill_marked(variable: str, value: str) -> None:
    """Kill these processes, until none is left."""
    while left := marked(variable, value):
        for process in left:
            send(process, signal.SIGKILL)
        time.sleep(0.02)


def start_guard(token: str) -> "subprocess.Popen[bytes]":
    """Start a process that kills all others of this soak once this process is gone, however it ended."""
    command = [sys.executable, "-m", "soak.processes", token]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def workers_of(rank: int) -> list[int]:
    """The worker processes of a rank: its children, and those of its fork server."""
    workers = []
    for child in _children(rank):
        command = _command(child)
        if "multiprocessing.forkserver" in command:
            workers += _children(child)
        elif "resource_tracker" not in command:
            workers.append(child)
    return sorted(workers)


def actors(token: str) -> list[int]:
    """The processes of the soak's Ray cluster in which actors are."""
    names = {process: _command(process) for process in marked(MARK, token)}
    return sorted(process for process, name in names.items() if name.startswith("ray::WorkerHost"))


def _command(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    return ""


def _children(process: int) -> list[int]:
    with suppress(OSError):
        tasks = Path(f"/proc/{process}/task").glob("*/children")
        return [int(child) for task in tasks for child in task.read_text().split()]
    return []


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdin.read()  # until the driver is gone
    kill_marked(MARK, sys.argv[1])
