"""Memory that two processes share: a file without a name, and the places in it that messages take in turn.

The file has no name from the beginning, so nothing is left of it when its processes are gone, however they ended.
"""

import errno
import mmap
import os
import tempfile
from contextlib import suppress
from multiprocessing import reduction
from typing import Any

from midepoch._common.checks import count

STEP = 4 << 20
"""Memory grows by multiples of this number of bytes."""
LENGTH = 256 << 20
"""The length of the file from the beginning, which takes no memory: so a process maps it only once. To map it again
would cost a fault for each page that was in use."""


NOTE_BYTES = 4096
"""The first bytes, in which a worker notes what it reads. Messages come after them."""


class SharedMemory:
    """Bytes that this process and those that it starts can read and write. Only one process lets it grow."""

    def __init__(self) -> None:
        self._file: int | None = _nameless_file()
        with suppress(OSError):  # a limit of file sizes
            os.ftruncate(self._file, LENGTH)
        self._map: mmap.mmap | None = None
        self.size = 0

    def __getstate__(self) -> dict[str, Any]:
        """For a process that is being started: it gets the file itself."""
        assert self._file is not None
        return {"file": reduction.DupFd(self._file)}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self._file, self._map, self.size = values["file"].detach(), None, 0

    def grow(self, size: int) -> None:
        """Have at least ``size`` bytes. Raises if the machine has no room for them."""
        if size <= self.size:
            return
        assert self._file is not None
        wanted = -(-size // STEP) * STEP
        try:
            _allocate(self._file, wanted)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            raise MemoryError(
                f"There is no room for {count('byte', wanted)} of shared memory, through which a worker sends what it "
                f"reads: {error.strerror}. Use fewer workers, smaller batches or a smaller prefetch_factor, or give "
                "the machine (the container) more memory."
            ) from error
        self.size = wanted

    def view(self, start: int, stop: int) -> memoryview:
        """Some of the bytes, not copied."""
        assert self._file is not None
        if self._map is None or len(self._map) < stop:
            self._map = mmap.mmap(self._file, os.fstat(self._file).st_size)
        return memoryview(self._map)[start:stop]

    def note(self) -> memoryview:
        """The bytes in which a worker notes what it reads."""
        return self.view(0, NOTE_BYTES)

    def free(self) -> None:
        """Give the memory back, also if forked processes have inherited the file. No process may use it after that."""
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file, self._map = None, None


class Places:
    """Where messages are in shared memory, from when they are written until they are received."""

    def __init__(self) -> None:
        self._taken: dict[int, tuple[int, int]] = {}  # the end of each place and its turns, by its start
        self.bytes = self.turns = 0

    def __len__(self) -> int:
        return len(self._taken)

    def find(self, size: int) -> int:
        """The start of ``size`` free bytes: the first ones, which are most likely in the CPU's cache."""
        start = NOTE_BYTES
        for begin, (end, _) in sorted(self._taken.items()):
            if begin - start >= size:
                break
            start = max(start, end)
        return start

    def take(self, start: int, size: int, turns: int) -> None:
        """Note that a message of some turns is there."""
        self._taken[start] = start + size, turns
        self.bytes, self.turns = self.bytes + size, self.turns + turns

    def release(self, start: int) -> None:
        """Note that the message that is there was received."""
        end, turns = self._taken.pop(start)
        self.bytes, self.turns = self.bytes - (end - start), self.turns - turns


def _allocate(file: int, size: int) -> None:
    """Let a file have ``size`` bytes, for which there is room; some systems only notice later that there is none."""
    if os.fstat(file).st_size < size:
        os.ftruncate(file, size)
    try:
        os.posix_fallocate(file, 0, size)
    except AttributeError:
        pass
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise


def _nameless_file() -> int:
    with suppress(AttributeError, OSError):  # not every system has files in memory
        return os.memfd_create("midepoch")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
