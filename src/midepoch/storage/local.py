"""Files on this machine: which version of a file is there, and whether it is still the indexed one."""

import os
from dataclasses import dataclass

from midepoch.errors import DataChangedError, NoDataError


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What a listing says of a version of a file: its size, its time of change and, in a store, its etag or the like.

    Two versions differ in one of them. Some stores tell times in whole seconds, and some list no ``version``.
    """

    size: int
    mtime_ns: int
    version: str = ""


def stamp_of(path: str) -> FileStamp:
    """The stamp that the file has now."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise NoDataError(f"{path} cannot be read: {error.strerror}.") from error
    return FileStamp(status.st_size, status.st_mtime_ns)


def check_unchanged(path: str, indexed: FileStamp) -> None:
    """Raise ``DataChangedError`` if the file is not the version that was indexed."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise DataChangedError(
            f"{path} cannot be read: {error.strerror}. It was there when the dataset was opened: restore it."
        ) from error
    if status.st_mtime_ns != indexed.mtime_ns or status.st_size != indexed.size:
        now = FileStamp(status.st_size, status.st_mtime_ns)
        what = f"{indexed.size:,} bytes then, {now.size:,} now" if now.size != indexed.size else "same size"
        raise DataChangedError(
            f"{path} was changed while it was in use ({what}). Rows of two versions must not be mixed: open the "
            "dataset again and start over. To resume from a checkpoint, restore the file first."
        )
