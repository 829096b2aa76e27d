"""Small files that several processes share: written atomically, locked while they are built, checked when read.

Indexes and cached blocks say which rows are delivered. In folders that other users can write to, a file of another user
could say anything, so it is used only in folders for which the user has said ``trust_shared=True``, or with
``MIDEPOCH_TRUST_SHARED=1`` in the environment. Files of the superuser are always used.
"""

import contextlib
import errno
import os
import shutil
import stat
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from midepoch._common.world import trusts_shared_folders

Bytes = bytes | memoryview
"""Arrow's buffers too."""

TRAILER = struct.Struct("<QI4s")
POLL_SECONDS = 0.005


def write_privately(path: Path, content: Bytes, mode: int = 0o600) -> None:
    """Write a file under another name and rename it, so that readers see the old file or the new one, never half.

    It is for this user alone, and so is its folder if that has to be made. If this fails, no temporary file is left.
    Users who trust each other have the permissions that they are used to. ``mode`` is for files that others may read.
    """
    temporary = temporary_name(path)
    try:
        make_private_folder(path.parent)
        with open_privately(temporary, mode) as file:
            file.write(content)
        temporary.replace(path)
    except OSError:
        remove(temporary)
        raise


def open_privately(path: Path, mode: int = 0o600) -> BinaryIO:
    """A new file to write to, for this user alone, unless users of the folder trust each other."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return open(os.open(path, flags, 0o666 if is_shared(path) else mode), "wb")


def make_private_folder(path: Path) -> None:
    """Make a folder, and those above it, that other users cannot read, unless it exists."""
    mode = 0o777 if is_shared(path) else 0o700
    for folder in reversed([path, *path.parents]):
        if not folder.is_dir():
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode)
            if not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(folder))


def temporary_name(path: Path) -> Path:
    """A hidden name in the same folder that no other process or thread uses."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")


def remove(path: Path) -> None:
    """Remove a file, if it exists and the file system allows it."""
    with contextlib.suppress(OSError):
        path.unlink()


def remove_folder(path: Path) -> None:
    """Remove a folder with everything in it, as far as it exists and the file system allows it."""
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def explained(what: str, folder: Path) -> Iterator[None]:
    """Say what an error of the file system means for work that is kept in a folder, and goes on after a stop."""
    causes = {errno.ENOSPC: "The disk is full", errno.EDQUOT: "The quota of the disk is used up"}
    try:
        yield
    except OSError as error:
        cause = causes.get(error.errno or 0, str(error))
        raise OSError(
            error.errno,
            f"{what} cannot be written to {folder}: {cause}. What was finished is kept, so the next call continues "
            "there. Free some space, or pass another folder.",
        ) from error


@contextlib.contextmanager
def exclusive_lock(path: Path, deadline: float | None = None) -> Iterator[None]:
    """Let one process work while others that want the same lock wait, until ``deadline`` at most.

    The system releases the lock of a killed process. Where the file system has no locks, nobody waits: the work may be
    done several times, so its result has to be written atomically. A ``deadline``, a time of ``time.monotonic``, is for
    such work too, so that nobody waits forever for a process that hangs.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ImportError):
            import fcntl

            make_private_folder(path.parent)
            lock = _open_lock(path)
            stack.callback(os.close, lock)
            if deadline is None:
                fcntl.flock(lock, fcntl.LOCK_EX)
            while deadline is not None and not _is_locked(lock) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            stack.callback(fcntl.flock, lock, fcntl.LOCK_UN)  # also for processes that were forked meanwhile
        yield


def _is_locked(lock: int) -> bool:
    """Take a lock, unless another has it; returns whether that worked."""
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_lock(path: Path) -> int:
    """The descriptor of a lock file. In a folder that others can write to, it may be something else: that is not used.

    A link is not followed, a pipe does not block, and the content of a file stays as it is.
    """
    flags = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    mode = 0o666 if is_shared(path) else 0o600
    try:
        lock = os.open(path, os.O_RDWR | flags, mode)
    except PermissionError:  # the lock of another user, which is enough to wait for
        lock = os.open(path, os.O_RDONLY | flags, mode)
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        os.close(lock)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return lock


def framed(body: Bytes, magic: bytes, key: str = "") -> bytes:
    """The body and a trailer: its length, its checksum, and four bytes that name the file format and its version.

    The checksum covers ``key``, which says what the body must be, so that it cannot be taken for another.
    """
    return b"".join([body, TRAILER.pack(memoryview(body).nbytes, _checksum(body, key), magic)])


def _checksum(body: Bytes, key: str) -> int:
    return zlib.crc32(body, zlib.crc32(key.encode()))


def unframed(content: Bytes, magic: bytes, key: str = "") -> tuple[memoryview, int]:
    """The body of a frame, not copied, and its checksum; ``ValueError`` if it is damaged or another."""
    view = memoryview(content)
    if view.nbytes < TRAILER.size:
        raise ValueError("it is too short")
    body = view[: -TRAILER.size]
    size, checksum, version = TRAILER.unpack(view[-TRAILER.size :])
    if version != magic:
        raise ValueError("it is damaged, or of another version")
    if size != body.nbytes or _checksum(body, key) != checksum:
        raise ValueError("it has a wrong checksum")
    return body, checksum


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
