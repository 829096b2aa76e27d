"""Mapped files: one map a file for all in this process who read it, as long as one of them does."""

import os
from weakref import WeakValueDictionary

import pyarrow as pa

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
