"""Writing small files that other processes may read at the same moment: they see the old one or the new, never half."""

import contextlib
import os
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
