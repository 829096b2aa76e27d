"""Writing small files that other processes may read at the same moment: they see the old one or the new, never half."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name and rename it. Where that cannot be, nothing is left of it."""
    temporary = name_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        remove(temporary)
        raise


def name_beside(path: Path) -> Path:
    """A hidden name in the same folder that no other process or thread takes."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")


def remove(path: Path) -> None:
    """Remove a file if it is there and can be."""
    with contextlib.suppress(OSError):
        path.unlink()


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Let one process of many build an index while the others wait for it.

    The lock goes with its process, so a killed one leaves nothing behind. Where locks do not work, all build:
    that costs time, never a wrong index.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ImportError):
            import fcntl

            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(path, "w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
