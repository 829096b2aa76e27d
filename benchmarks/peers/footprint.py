"""The memory and the processor time of a process and its descendants.

Memory is without the pages of files, which the system can drop at any time.
"""

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from glob import glob
from types import TracebackType

PARTS = re.compile(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)
PERIOD = 0.03
TICK = 1 / os.sysconf("SC_CLK_TCK")


class Footprint:
    """Looks at the memory again and again in a thread, and keeps the highest figure."""

    def __init__(self) -> None:
        self._peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Footprint":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def peak_since_last(self) -> int:
        """The highest memory in bytes since the last call."""
        peak = max(self._peak, memory_of_tree(os.getpid()))
        self._peak = 0
        return peak

    def _watch(self) -> None:
        while not self._stop.wait(PERIOD):
            self._peak = max(self._peak, memory_of_tree(os.getpid()))


def memory_of_tree(process: int) -> int:
    """Bytes of anonymous and shared memory of a process and its descendants. Shared pages are counted once."""
    return sum(_memory(one) for one in _tree(process))


def processor_seconds_of_tree(process: int) -> float:
    """What a living process and its descendants have computed, to about a hundredth of a second each."""
    return sum(_processor_seconds(one) for one in _tree(process))


def _tree(process: int) -> Iterator[int]:
    yield process
    for thread in glob(f"/proc/{process}/task/*/children"):  # a child is listed under the thread that started it
        with suppress(FileNotFoundError, ProcessLookupError), open(thread) as file:
            for child in file.read().split():
                yield from _tree(int(child))


def _memory(process: int) -> int:
    with (
        suppress(FileNotFoundError, ProcessLookupError, PermissionError),
        open(f"/proc/{process}/smaps_rollup") as file,
    ):
        return sum(int(kilobytes) for kilobytes in PARTS.findall(file.read())) * 1024
    return 0  # it has ended


def _processor_seconds(process: int) -> float:
    if process == os.getpid():
        ended = os.times()
        return time.process_time() + ended.children_user + ended.children_system
    with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{process}/stat") as file:
        ticks = file.read().rpartition(")")[2].split()[11:15]  # its own, and those of its children that ended
        return sum(map(int, ticks)) * TICK
    return 0.0  # it has ended
