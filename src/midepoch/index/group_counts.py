"""The number of outputs of each group of an epoch, in a file that processes share.

To know when the lanes of others run out, a reader needs the number of packs in each of their windows. Whoever plans a
window writes its number here, and others read it instead of planning. A number follows from the position of the
group's first row in its lane, and from what the name of the file is a digest of. So it makes no difference who writes
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


class GroupCounts:
    """The counts of the groups of all lanes of an epoch, 8 bytes a group.

    Groups have at least ``size`` rows each, so the first row of each group of a lane is in another *slot* of ``size``
    positions. The entry of a slot holds the offset of the first row, the count, and a few bits of a checksum: an entry
    that is half written, damaged, or of another first row is as good as none.
    """

    def __init__(self, path: Path | None, *, lanes: int, lane_rows: int, size: int) -> None:
        """Open the file, or make it. Without a path, or where no file can be written, counts stay in memory."""
        self.path, self._size = path, size
        self._slots = lane_rows // size + 1
        self._descriptor: int | None = None
        self._entries: npt.NDArray[np.uint64] | None = None
        if path is not None:
            with suppress(OSError):
                self._entries = self._map(path, lanes * self._slots)
        if self._entries is None:
            self._entries = np.zeros(lanes * self._slots, np.uint64)

    def _map(self, path: Path, entries: int) -> npt.NDArray[np.uint64]:
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            # All processes ask for the same length, so whoever comes second changes nothing.
            os.ftruncate(descriptor, 8 * entries)
            mapped = mmap.mmap(descriptor, 8 * entries, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        if is_new:
            _remove_old(path.parent)
        return np.frombuffer(mapped, np.dtype("<u8"))

    def of_lane(self, lane: int) -> "LaneCounts":
        """The counts of one lane."""
        return LaneCounts(self, lane)

    def get(self, lane: int, start: int) -> int | None:
        """The count of the group whose first row is at this position of the lane; None if it is not known."""
        slot, offset = divmod(start, self._size)
        if slot >= self._slots:
            return None
        assert self._entries is not None
        number = lane * self._slots + slot
        entry = int(self._entries[number])
        count = (entry & ((1 << COUNT_BITS) - 1)) - 1
        return count if count >= 0 and entry == _entry(number, offset, count) else None

    def put(self, lane: int, start: int, count: int) -> None:
        """Keep the count of a group. If it cannot be written, it is not kept."""
        slot, offset = divmod(start, self._size)
        if slot >= self._slots or offset >> OFFSET_BITS or (count + 1) >> COUNT_BITS:
            return
        number = lane * self._slots + slot
        entry = _entry(number, offset, count)
        if self._descriptor is None:
            assert self._entries is not None
            if self._entries.flags.writeable:
                self._entries[number] = entry
            return
        try:
            # Not written through the map: a full disk is an error here, and would kill the process there.
            os.pwrite(self._descriptor, entry.to_bytes(8, "little"), 8 * number)
        except OSError:
            self._descriptor = None


class LaneCounts(NamedTuple):
    """The counts of the groups of one lane, by the position of their first row."""

    counts: GroupCounts
    lane: int

    def get(self, start: int) -> int | None:
        return self.counts.get(self.lane, start)

    def put(self, start: int, count: int) -> None:
        self.counts.put(self.lane, start, count)

    def __str__(self) -> str:
        return str(self.counts.path or "memory")


def counts_path(folder: Path, key: str) -> Path:
    """The file of an epoch's counts in the folder of their survey."""
    return folder / f"{key}{SUFFIX}"


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
