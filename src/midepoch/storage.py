"""Which files a source names: one file, a folder, a glob or a list of those, on a local file system."""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

import pyarrow as pa

from midepoch.errors import DataChangedError, NoDataError

log = logging.getLogger("midepoch")

Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

TEXT_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
SUFFIXES = (
    *(".arrow", ".feather", ".ipc", ".parquet", ".pq", ".orc"),
    *TEXT_SUFFIXES,
    *(text + packed for text in TEXT_SUFFIXES for packed in (".gz", ".zst")),
)
# Beside data of other formats such a file is most often about the data: dataset_info.json, state.json.
ASIDE = ".json"


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What tells one version of a file from another."""

    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a data set: ``names`` are relative to ``root``, in the order in which they are read.

    ``spec`` is the source in full: it stays the same while files come and go.
    """

    spec: str
    root: str
    names: tuple[str, ...]
    stamps: tuple[FileStamp, ...]


def find(source: Source) -> Listing:
    """List the files that a source names, sorted; an explicit list keeps its own order."""
    if isinstance(source, str | os.PathLike):
        sources = [os.fspath(source)]
    else:
        sources = [os.fspath(one) for one in source]
        if not sources:
            raise NoDataError("The list of sources is empty; pass at least one file, folder or glob.")
    found = [_find_one(one) for one in sources]
    paths = [path for _, some in found for path in some]
    root = os.path.commonpath([root for root, _ in found])
    _refuse_repeats(paths)
    below = len(os.path.join(root, ""))
    names = tuple(path[below:].replace(os.sep, "/") for path in paths)
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"The file name {name!r} is not valid UTF-8, so no state could name it. Rename it."
            ) from None
    spec = "\n".join(os.path.abspath(os.path.expanduser(one)) for one in sources)
    return Listing(spec, root, names, tuple(stamp_of(path) for path in paths))


def stamp_of(path: str) -> FileStamp:
    """The file's present size and time of change."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise NoDataError(f"{path} cannot be read: {error.strerror}.") from error
    return FileStamp(found.st_size, found.st_mtime_ns)


def read_bytes(path: str, storage_options: Mapping[str, Any] | None = None) -> bytes:
    """The whole content of a file."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise NoDataError(f"{path} cannot be read: {error.strerror}.") from error


def open_file(path: str, *, mapped: bool = False) -> pa.NativeFile:
    """The bytes of a file, to be read by position. Every format reads through this.

    ``mapped`` asks for views of the file instead of copies.
    """
    return pa.memory_map(path) if mapped else pa.OSFile(path)


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


def _find_one(source: str) -> tuple[str, list[str]]:
    """The root and the paths of one source."""
    if re.match(r"[a-z][a-z0-9+.-]+://", source):
        raise NoDataError(f"{source} is a URL; this version reads local files. Copy or mount the data first.")
    path = os.path.abspath(os.path.expanduser(source))
    if os.path.isdir(path):
        return path, _files_below(path)
    if os.path.isfile(path):
        return os.path.dirname(path), [path]
    if any(sign in source for sign in "*?["):
        return _find_glob(path, source)
    raise NoDataError(f"{source} does not exist. Pass a file, a folder or a glob; it was looked for at {path}.")


def _find_glob(path: str, source: str) -> tuple[str, list[str]]:
    parts = Path(path).parts
    fixed = next(number for number, part in enumerate(parts) if any(sign in part for sign in "*?["))
    root = Path(*parts[:fixed])
    if not root.is_dir():
        raise NoDataError(f"{source} matches nothing: the folder {root} does not exist.")
    # As in a shell, a star matches no hidden name; pathlib's own glob would.
    matches = map(Path, glob(os.path.join(*parts), recursive=True))
    found = sorted(match for match in matches if match.is_file())
    if not found:
        raise NoDataError(f"{source} matches no file below {root}. Check the pattern, or pass the folder itself.")
    return str(root), [str(match) for match in found]


def _files_below(folder: str) -> list[str]:
    """The data files in a folder and its subfolders, without those that are hidden or begin with '_'.

    Beside others, JSON files do not count as data.
    """
    found: list[str] = []
    others: list[str] = []
    for path in _walk(folder):
        (found if path.endswith(SUFFIXES) else others).append(path)
    if not found:
        seen = f"it holds {len(others)} others, such as {os.path.basename(others[0])}" if others else "it is empty"
        raise NoDataError(
            f"The folder {folder} has no file that ends in {', '.join(SUFFIXES[:11])}, .gz or .zst ({seen}). "
            "To read files whatever their names, pass a glob such as 'folder/*'."
        )
    data = [path for path in found if not path.endswith(ASIDE)]
    if data and len(data) < len(found):
        log.info(
            "%s files that end in %s are left out of %s; name them to read them.", len(found) - len(data), ASIDE, folder
        )
    return sorted(data or found, key=lambda path: path.split(os.sep))


def _walk(folder: str, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[str]:
    """The files below a folder; a link to a folder ``above`` is not followed, or it would never end."""
    found = os.stat(folder)
    here = (found.st_dev, found.st_ino)
    if here in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith((".", "_")):
                continue
            if entry.is_dir():
                yield from _walk(entry.path, above | {here})
            elif entry.is_file():
                yield entry.path


def _refuse_repeats(paths: list[str]) -> None:
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            raise ValueError(f"{path} is named twice by the sources; each of its rows would be delivered twice.")
        seen.add(path)
