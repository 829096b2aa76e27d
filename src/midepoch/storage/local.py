"""Files on this machine: which version of a file is there, and whether it is still the indexed one."""

import os
from dataclasses import dataclass

from midepoch.errors import DataChangedError, NoDataError


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
