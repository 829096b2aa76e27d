"""Mapped files: one map a file for all in this process who read it, as long as one of them does."""

import os
from dataclasses import dataclass
from weakref import WeakValueDictionary

import pyarrow as pa

from midepoch.errors import DataChangedError, NoDataError

Version = tuple[int, int, int, int]

_maps: WeakValueDictionary[Version, pa.Buffer] = WeakValueDictionary()


def mapped(path: str) -> pa.Buffer:
    """The bytes of a file. Its pages are looked up once, however many have it open."""
    version = _version(path)
    there = _maps.get(version)
    if there is None:
        with pa.memory_map(path) as file:
            there = file.read_buffer()
        if _version(path) == version:  # else another file took its place meanwhile
            _maps[version] = there
    return there


def count() -> int:
    """How many maps there are in this process."""
    return len(_maps)


def _version(path: str) -> Version:
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What tells one version of a file from another."""

    size: int
    mtime_ns: int


def stamp_of(path: str) -> FileStamp:
    """The file's present size and time of change."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise NoDataError(f"{path} cannot be read: {error.strerror}.") from error
    return FileStamp(found.st_size, found.st_mtime_ns)


def check_unchanged(path: str, indexed: FileStamp) -> None:
    """Raise if the file is not the one that was indexed."""
    try:
        found = stamp_of(path)
    except NoDataError as error:
        raise DataChangedError(f"{error} It was there when the data set was opened: restore it.") from error
    if found != indexed:
        what = f"{indexed.size:,} bytes then, {found.size:,} now" if found.size != indexed.size else "same size"
        raise DataChangedError(
            f"{path} was changed while it was in use ({what}). Rows of two versions must not be mixed: "
            "restore the file and resume from the last checkpoint, or open the data set anew and start over."
        )
