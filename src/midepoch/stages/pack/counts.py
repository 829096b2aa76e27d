"""The number of packs in each window of an epoch, in a file that processes share.

To know when the lanes of others run out, a reader needs the number of packs in each of their windows. Whoever plans a
window writes its number here, and others read it instead of planning. A number follows from the position of the
window's first row in its lane, and from what the name of the file is a digest of. So it makes no difference who writes
it, or how often.
"""

import os
import struct
import weakref
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from midepoch._common.files import remove

SUFFIX = ".counts"
KEPT_FILES = 16
"""How many files stay in a folder: those of a few epochs."""
ENTRY = struct.Struct("<II")
"""One more than the count of a window, and a checksum."""


class WindowCounts:
    """The counts of the windows of all lanes of an epoch, 8 bytes a window.

    Windows have at least ``size`` rows each, so the first row of each window of a lane is in another *slot* of ``size``
    positions. The checksum in the entry of a slot is also one of the first row: an entry that is half written, damaged,
    or of another first row is as good as none.
    """

    def __init__(self, folder: Path | None, key: str, *, lanes: int, size: int) -> None:
        """Open the file of a key, or make it. Without a folder that can be written to, counts stay in memory."""
        self.path = None if folder is None else folder / f"{key}{SUFFIX}"
        self._lanes, self._size = lanes, size
        self._file: int | None = None
        self._in_memory: dict[int, bytes] = {}
        if self.path is not None:
            with suppress(OSError):
                self._open(self.path)

    def _open(self, path: Path) -> None:
        is_new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        weakref.finalize(self, os.close, self._file)
        if is_new:
            _remove_old(path.parent)

    def _place(self, lane: int, start: int) -> int:
        return ENTRY.size * (start // self._size * self._lanes + lane)

    def get(self, lane: int, start: int) -> int | None:
        """The count of the window whose first row is at this position of the lane; None if it is not known."""
        place = self._place(lane, start)
        entry = self._in_memory.get(place, b"")
        if self._file is not None:
            with suppress(OSError):
                entry = os.pread(self._file, ENTRY.size, place)
        if len(entry) < ENTRY.size:
            return None
        count = ENTRY.unpack(entry)[0] - 1
        return count if count >= 0 and entry == _entry(place, start, count) else None

    def put(self, lane: int, start: int, count: int) -> None:
        """Keep the count of a window. If it cannot be written, it is not kept."""
        place = self._place(lane, start)
        entry = _entry(place, start, count)
        if self._file is None:
            self._in_memory[place] = entry
            return
        with suppress(OSError):  # such as a full disk
            os.pwrite(self._file, entry, place)


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


def _entry(place: int, start: int, count: int) -> bytes:
    return ENTRY.pack(count + 1, zlib.crc32(b"%d %d %d" % (place, start, count)))


def _remove_old(folder: Path) -> None:
    """Remove the oldest files. Who has one open keeps it until it is closed."""
    times: dict[Path, int] = {}
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(OSError):  # another process may just have removed it
            times[path] = path.stat().st_mtime_ns
    for path in sorted(times, key=lambda path: times[path], reverse=True)[KEPT_FILES:]:
        remove(path)
