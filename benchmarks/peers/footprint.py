"""The memory of a process and its children, without the pages of files, which the system can drop at any time."""

import os
import re
import threading
from types import TracebackType

PARTS = re.compile(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)
PERIOD = 0.03


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
    try:
        with open(f"/proc/{process}/smaps_rollup") as file:
            own = sum(int(kilobytes) for kilobytes in PARTS.findall(file.read())) * 1024
        with open(f"/proc/{process}/task/{process}/children") as file:
            children = [int(child) for child in file.read().split()]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0  # it has ended
    return own + sum(memory_of_tree(child) for child in children)
