"""Memory-mapped files: one map of a file for everyone in the process who reads it."""

import contextlib
import os
from weakref import WeakValueDictionary

import pyarrow as pa

FileVersion = tuple[int, int, int, int]
"""Device, inode, size and time of change: another file in the same place differs in one of them."""

KEPT_FILES, KEPT_BYTES = 4096, 16 << 30


class FileMaps:
    """Maps of files. A map is shared by all who ask for the same file, and closed when nobody holds it."""

    def __init__(self) -> None:
        self._maps: WeakValueDictionary[FileVersion, pa.Buffer] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._maps)

    def map(self, path: str) -> pa.Buffer:
        """The bytes of a file, mapped."""
        version = _version(path)
        content = self._maps.get(version)
        if content is None:
            with pa.memory_map(path) as file:
                content = file.read_buffer()
            if _version(path) == version:  # else another file took its place meanwhile
                self._maps[version] = content
        return content


PROCESS_MAPS = FileMaps()
"""The maps of this process, the only ones there are.

They are shared by datasets that know nothing of each other, and Linux limits the maps of a process, not of a dataset.
The registry holds weak references only, so it keeps nothing alive.
"""


class KeptMaps:
    """The maps that a dataset keeps when their readers are done, because finding the pages again slows an epoch by 10%.

    At most ``KEPT_BYTES`` are kept, because the page tables of the kernel grow with them. No map is kept while the
    process has more than ``KEPT_FILES``, because Linux allows a process 65,530 maps.
    """

    def __init__(self) -> None:
        self._kept: dict[str, pa.Buffer] = {}
        self._bytes = 0

    def keep(self, path: str, size: int) -> None:
        """Keep the map of a file of ``size`` bytes, if the limits allow it."""
        if path in self._kept or self._bytes + size > KEPT_BYTES or len(PROCESS_MAPS) > KEPT_FILES:
            return
        with contextlib.suppress(OSError):  # a missing file is reported by its reader
            self._kept[path] = PROCESS_MAPS.map(path)
            self._bytes += size


def _version(path: str) -> FileVersion:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
