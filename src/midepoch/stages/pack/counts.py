"""The number of packs in each window of an epoch, in a file that processes share.

To know when the lanes of others run out, a reader needs the number of packs in each of their windows. Whoever plans a
window writes its number here, and others read it instead of planning. A number follows from the position of the
window's first row in its lane, and from what the name of the file is a digest of. So it makes no difference who writes
it, or how often.
"""

import mmap
import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from midepoch._common.files import remove

SUFFIX = ".counts"
KEPT_FILES = 16
"""How many files stay in a folder: those of a few epochs."""
COUNT_BITS, OFFSET_BITS = 28, 24
CHECK = 0x9E3779B97F4A7C15
"""An odd number, by which an entry is multiplied to get the bits that show whether it is damaged."""


class WindowCounts:
    """The counts of the windows of all lanes of an epoch, 8 bytes a window.

    Windows have at least ``size`` rows each, so the first row of each window of a lane is in another *slot* of ``size``
    positions. The entry of a slot holds the offset of the first row, the count, and a few bits of a checksum: an entry
    that is half written, damaged, or of another first row is as good as none.
    """

    def __init__(self, folder: Path | None, key: str, *, lanes: int, lane_rows: int, size: int) -> None:
        """Open the file of a key, or make it. Without a folder that can be written to, counts stay in memory."""
        self.path = None if folder is None else folder / f"{key}{SUFFIX}"
        self._size, self._slots = size, lane_rows // size + 1
        self._file: int | None = None
        self._entries: npt.NDArray[np.uint64] = np.zeros(lanes * self._slots, np.uint64)
        if self.path is not None:
            with suppress(OSError):
                self._map(self.path)

    def _map(self, path: Path) -> None:
        is_new = not path.exists()
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        weakref.finalize(self, os.close, file)
        os.ftruncate(file, self._entries.nbytes)  # all processes ask for the same length
        mapped = mmap.mmap(file, self._entries.nbytes, access=mmap.ACCESS_READ)
        self._file, self._entries = file, np.frombuffer(mapped, "<u8")
        if is_new:
            _remove_old(path.parent)

    def get(self, lane: int, start: int) -> int | None:
        """The count of the window whose first row is at this position of the lane; None if it is not known."""
        slot, offset = divmod(start, self._size)
        if slot >= self._slots:
            return None
        number = lane * self._slots + slot
        entry = int(self._entries[number])
        count = (entry & ((1 << COUNT_BITS) - 1)) - 1
        return count if count >= 0 and entry == _entry(number, offset, count) else None

    def put(self, lane: int, start: int, count: int) -> None:
        """Keep the count of a window. If it cannot be written, it is not kept."""
        slot, offset = divmod(start, self._size)
        if slot >= self._slots or offset >> OFFSET_BITS or (count + 1) >> COUNT_BITS:
            return
        number = lane * self._slots + slot
        entry = _entry(number, offset, count)
        if self._file is None:
            self._entries[number] = entry
            return
        with suppress(OSError):  # a full disk, which would kill the process if it wrote through the map
            os.pwrite(self._file, entry.to_bytes(8, "little"), 8 * number)


class CountsOfLane(NamedTuple):
    """The counts of the windows of one lane, by the position of their first row."""

    counts: WindowCounts
    lane: int

    def get(self, start: int) -> int | None:
        return self.counts.get(self.lane, start)

    def put(self, start: int, count: int) -> None:
        self.counts.put(self.lane, start, count)

    def __str__(self) -> str:
        return str(self.counts.path or "memory")


def _entry(number: int, offset: int, count: int) -> int:
    body = offset << COUNT_BITS | (count + 1)
    check = ((body + number + 1) * CHECK >> 40) & 0xFFF
    return check << (COUNT_BITS + OFFSET_BITS) | body


def _remove_old(folder: Path) -> None:
    """Remove the oldest files. Who has one open keeps it until it is closed."""
    times: dict[Path, int] = {}
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(OSError):  # another process may just have removed it
            times[path] = path.stat().st_mtime_ns
    for path in sorted(times, key=lambda path: times[path], reverse=True)[KEPT_FILES:]:
        remove(path)
