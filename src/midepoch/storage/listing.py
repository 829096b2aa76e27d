"""Which files a source names: one file, a folder, a glob or a list of those, on this machine or in an object store."""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

from midepoch.errors import NoDataError
from midepoch.storage.clients import ObjectInfo
from midepoch.storage.local import FileStamp, stamp_of
from midepoch.storage.location import Location
from midepoch.storage.objects import StoredFile
from midepoch.storage.store import Store
from midepoch.storage.urls import SIGNS, check_plain, common_folder, is_url, local_path, split_glob

log = logging.getLogger("midepoch")
PathSpec = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
TEXT_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
SUFFIXES = (
    *(".arrow", ".feather", ".ipc", ".parquet", ".pq", ".orc"),
    *TEXT_SUFFIXES,
    *(text + packed for text in TEXT_SUFFIXES for packed in (".gz", ".zst")),
)
PACKED = ("", ".gz", ".zst")
FORMAT_SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "arrow": (".arrow", ".feather", ".ipc"),
    "parquet": (".parquet", ".pq"),
    "orc": (".orc",),
    "jsonl": tuple(text + packed for text in (".jsonl", ".ndjson", ".json") for packed in PACKED),
    "json": tuple(text + packed for text in (".jsonl", ".ndjson", ".json") for packed in PACKED),
    "csv": tuple(text + packed for text in (".csv", ".tsv") for packed in PACKED),
}
"""How the names end of those files of a folder that are read when a format is asked for."""
# Beside data of other formats such a file is most often about the data: dataset_info.json, state.json.
ASIDE = ".json"
HIDDEN = re.compile(r"/[._]")


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a data set: ``names`` are relative to ``root``, in the order in which they are read.

    ``spec`` is the source in full: it stays the same while files come and go.
    """

    spec: str
    root: str
    names: tuple[str, ...]
    stamps: tuple[FileStamp, ...]
    store: Store | None = None

    def location(self, number: int) -> Location:
        """Where a file lies."""
        path = os.path.join(self.root, self.names[number])
        return path if self.store is None else StoredFile(self.store, path, size=self.stamps[number].size)


def find(
    source: PathSpec | Listing, storage_options: Mapping[str, Any] | None = None, format: str | None = None
) -> Listing:
    """List the files that a source names, sorted; an explicit list keeps its own order.

    Of a folder only those are taken whose names end as those of the ``format`` do, if one is asked for. What is listed
    already stays as it is: to list a store takes a request for every thousand objects.
    """
    if isinstance(source, Listing):
        return source
    suffixes = SUFFIXES if format is None else FORMAT_SUFFIXES.get(format, SUFFIXES)
    if isinstance(source, str | os.PathLike):
        sources = [os.fspath(source)]
    else:
        sources = [os.fspath(one) for one in source]
        if not sources:
            raise NoDataError("The list of sources is empty; pass at least one file, folder or glob.")
    sources = [local_path(one) or one for one in sources]
    if any(map(is_url, sources)):
        return _find_objects(sources, storage_options or {}, suffixes)
    found = [_find_one(one, suffixes) for one in sources]
    paths = [path for _, some in found for path in some]
    root = os.path.commonpath([root for root, _ in found])
    _refuse_repeats(paths)
    prefix = len(os.path.join(root, ""))
    names = tuple(path[prefix:].replace(os.sep, "/") for path in paths)
    _refuse_unspeakable(names)
    spec = "\n".join(os.path.abspath(os.path.expanduser(one)) for one in sources)
    return Listing(spec, root, names, tuple(stamp_of(path) for path in paths))


def _find_one(source: str, suffixes: tuple[str, ...]) -> tuple[str, list[str]]:
    """The root and the paths of one source."""
    path = os.path.abspath(os.path.expanduser(source))
    if os.path.isdir(path):
        return path, _data_files(path, _walk(path), suffixes)
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


def _data_files(folder: str, paths: Iterable[str], suffixes: tuple[str, ...]) -> list[str]:
    """Those of the files below a folder that are data, sorted. Beside others, JSON files do not count as data."""
    found: list[str] = []
    others: list[str] = []
    for path in paths:
        (found if path.endswith(suffixes) else others).append(path)
    if not found:
        seen = f"it holds {len(others)} others, such as {os.path.basename(others[0])}" if others else "it is empty"
        ends = [suffix for suffix in suffixes if not suffix.endswith(PACKED[1:])]
        packed = ", .gz or .zst" if len(ends) < len(suffixes) else ""
        raise NoDataError(
            f"The folder {folder} has no file that ends in {', '.join(ends)}{packed} ({seen}). "
            "To read files whatever their names, pass a glob such as 'folder/*'."
        )
    data = [path for path in found if not path.endswith(ASIDE)]
    if data and len(data) < len(found):
        log.info(
            "%s files that end in %s are left out of %s; name them to read them.", len(found) - len(data), ASIDE, folder
        )
    return sorted(data or found, key=lambda path: path.split("/" if is_url(path) else os.sep))


def _walk(folder: str, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[str]:
    """The files below a folder, without those that are hidden or begin with '_'.

    A link to a folder ``above`` is not followed, or it would never end.
    """
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


def _find_objects(urls: list[str], options: Mapping[str, Any], suffixes: tuple[str, ...]) -> Listing:
    """List the objects that URLs name, all of one store."""
    for url in urls:
        if not is_url(url):
            raise ValueError(f"{url} is a path, and other sources are URLs. Read them apart, and join them with mix.")
        check_plain(url)
    urls = [url if url.endswith("://") else url.rstrip("/") for url in urls]
    store = Store(urls[0], options)
    for url in urls:
        other = Store(url, options)
        if (other.scheme, other.bucket) != (store.scheme, store.bucket):
            raise ValueError(
                f"{urls[0]} and {url} lie in different stores or buckets. Read them apart, and join them with mix."
            )
    roots, found = [], []
    for url, there in zip(urls, store.stat(urls), strict=True):
        root, some = _find_object(store, url, there, suffixes)
        roots.append(root)
        found += some
    _refuse_repeats([one.url for one in found])
    root = common_folder(roots)
    prefix = len(root) + 1
    names = tuple(one.url[prefix:] for one in found)
    _refuse_unspeakable(names)
    stamps = tuple(FileStamp(one.size, one.mtime_ns) for one in found)
    return Listing("\n".join([store.identity, *urls]), root, names, stamps, store)


def _find_object(store: Store, url: str, there: ObjectInfo, suffixes: tuple[str, ...]) -> tuple[str, list[ObjectInfo]]:
    """The root and the objects of one URL."""
    if there.kind == "file":
        return there.url.rpartition("/")[0], [there]
    if there.kind == "folder":
        objects = {one.url: one for one in store.list_objects(there.url)}
        prefix = len(there.url) + 1
        seen = [
            path for path in objects if not path[prefix:].startswith((".", "_")) and not HIDDEN.search(path[prefix:])
        ]
        return there.url, [objects[path] for path in _data_files(there.url, seen, suffixes)]
    if not SIGNS.search(url):
        raise NoDataError(f"{url} does not exist. Pass the URL of an object, a folder or a glob.")
    root, pattern, deep = split_glob(url)
    if root.endswith((":", ":/")):
        raise NoDataError(f"{url} has a glob where the bucket should be named.")
    (above,) = store.stat([root])
    found = [] if above.kind is None else store.list_objects(above.url, deep=deep)
    matches = [one for one in found if pattern.fullmatch(one.url[len(above.url) + 1 :])]
    if not matches:
        raise NoDataError(f"{url} matches no object below {root}. Check the pattern, or pass the folder itself.")
    return above.url, sorted(matches, key=lambda one: one.url.split("/"))


def _refuse_unspeakable(names: Iterable[str]) -> None:
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"The file name {name!r} is not valid UTF-8, so no state could name it. Rename it."
            ) from None


def _refuse_repeats(paths: list[str]) -> None:
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            raise ValueError(f"{path} is named twice by the sources; each of its rows would be delivered twice.")
        seen.add(path)
