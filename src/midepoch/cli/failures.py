"""What a command says when it fails: what is wrong, where, and what to do. Never a bare message of the system."""

import errno
from pathlib import Path
from traceback import extract_tb

from midepoch.errors import MidepochError

PACKAGE = str(Path(__file__).parents[1])
REMEDIES = {
    errno.ENOENT: "does not exist. Check the path, and the folder in which the command was started",
    errno.ENOTDIR: "cannot be opened: a part of the path is a file, not a folder. Check the path",
    errno.EISDIR: "is a folder, and a file is needed. Name a file in it",
    errno.EACCES: "may not be opened by this user. Change its permissions, or use another path",
    errno.EPERM: "may not be opened by this user. Change its permissions, or use another path",
    errno.EROFS: "cannot be written: the file system is read-only. Use another path",
    errno.ENOSPC: "cannot be written: no space is left. Free some, or use another path",
    errno.ELOOP: "cannot be opened: its symbolic links lead in a circle. Correct or remove them",
    errno.ENAMETOOLONG: "cannot be opened: the name is too long. Check the path",
    errno.EEXIST: "exists already. Remove it, or use another path",
    errno.EMFILE: "cannot be opened: this process has too many open files. Raise the limit with ulimit -n",
}


def in_words(error: Exception) -> str:
    """An error as a user reads it.

    An error of a user's function has notes, which say in which stage and at which row it was raised; the type of the
    error and the line of the function are added.
    """
    notes = [note.removeprefix("midepoch: ") for note in getattr(error, "__notes__", [])]
    if isinstance(error, MidepochError):
        return "\n  ".join([str(error), *notes])
    if notes:
        return "\n  ".join([f"{type(error).__name__}: {error}", *notes, *_line_of_user(error)])
    return of_system(error) if isinstance(error, OSError) else str(error)


def _line_of_user(error: Exception) -> list[str]:
    """The last line of code outside midepoch that led to an error. A syntax error names its own."""
    if isinstance(error, SyntaxError):
        return []
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith((PACKAGE, "<"))]
    return [f"at line {frames[-1].lineno} of {frames[-1].filename}"] if frames else []


def of_system(error: OSError) -> str:
    """An error of the operating system, with the file and what to do."""
    if error.filename is None:
        return error.strerror or str(error)
    said = REMEDIES.get(error.errno or 0, f"cannot be used: {error.strerror}. Check the path and the disk")
    return f"{error.filename} {said}."
