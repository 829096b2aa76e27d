"""Files of midepoch in folders that other users can write to: only one's own are used, unless the user trusts all.

Indexes and cached blocks say which rows are delivered. A file of another user could say anything, so it is used only
in folders for which the user has said ``trust_shared=True``, or with ``MIDEPOCH_TRUST_SHARED=1`` in the environment.
Those of the superuser are always used.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from midepoch._common.world import trusts_shared_folders

FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
OPEN_FILES = "/proc/self/fd"
HOW = "pass trust_shared=True where it is opened, or set MIDEPOCH_TRUST_SHARED=1"

_shared = set[Path]()


def trust_folder(folder: Path) -> None:
    """Trust all users who can write to a folder, in this process: use their files in it, and let them use ours."""
    _shared.add(folder)


def check_trust(trust_shared: bool) -> bool:
    """The argument of this name, if it is True or False. A text such as "no" would be true, and trust all users."""
    if not isinstance(trust_shared, bool):
        raise TypeError(f"trust_shared must be True or False, got {trust_shared!r}.")
    return trust_shared


def is_shared(path: Path) -> bool:
    """Whether all users are trusted who can write to the folder of this file, or to this folder."""
    return trusts_shared_folders() or (bool(_shared) and not _shared.isdisjoint([path, *path.parents]))


class UntrustedFileError(OSError):
    """A file is not used, because another user has written it or could."""


def read_trusted(path: Path) -> bytes:
    """All bytes of a file; ``UntrustedFileError`` if another user may have written them."""
    with _opened(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
        return file.read()


def check_trusted(path: Path) -> None:
    """Raise ``UntrustedFileError`` if another user may have written a file."""
    with _opened(path):
        pass


def map_trusted(path: Path) -> pa.Buffer:
    """The bytes of a file, mapped; ``UntrustedFileError`` if another user may have written them."""
    with _opened(path) as descriptor:
        # The file that was checked, not one that has taken its name meanwhile.
        name = f"{OPEN_FILES}/{descriptor}" if os.path.isdir(OPEN_FILES) else str(path)
        with pa.memory_map(name) as file:
            return file.read_buffer()


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    # A link is not followed, and a pipe does not block.
    descriptor = os.open(path, FLAGS)
    try:
        _check(os.fstat(descriptor), path)
        yield descriptor
    finally:
        os.close(descriptor)


def _check(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UntrustedFileError(f"{path.name} is no regular file")
    if not hasattr(os, "geteuid") or is_shared(path):
        return
    if found.st_uid not in (os.geteuid(), 0):
        raise UntrustedFileError(
            f"it belongs to another user, number {found.st_uid}. If you trust all users who can write to this folder, "
            f"{HOW}"
        )
    if found.st_mode & stat.S_IWOTH:
        raise UntrustedFileError(f"every user can write to it. If you trust them, {HOW}; else take the permission away")
