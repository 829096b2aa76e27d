"""The files that a source names: a file, a folder, a glob or a list of those, on this machine or in a store."""

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from glob import glob
from pathlib import Path
from typing import Any

from midepoch._common.checks import count, way_to_a_dataset
from midepoch.errors import MidepochError, NoDataError, StoreError
from midepoch.storage.hub import pinned
from midepoch.storage.local import FileStamp, stamp_of
from midepoch.storage.manifests import HEAD_BYTES, MANIFEST, MDS, candidates, mds_shards, shards_of
from midepoch.storage.objects import StoredFile
from midepoch.storage.options import HTTP, OPTIONS
from midepoch.storage.store import ObjectInfo, Store
from midepoch.storage.urls import (
    WILDCARDS,
    check_plain,
    common_folder,
    expanded,
    is_url,
    local_path,
    split_glob,
)

log = logging.getLogger("midepoch")
PathSpec = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
METADATA = ".json"
"""Next to files with other suffixes, such a file is most often about the data: dataset_info.json, state.json."""
HIDDEN = re.compile(r"/[._]")
LITDATA = re.compile(r"(^|/)chunk-\d+-\d+(\.\w+)*\.bin$")
INDEX = re.compile(r"(^|/)index\.json$")
PACKED_TAR = (
    re.compile(r"\.(tar\.\w+|tgz|tbz2?|txz)$", re.IGNORECASE),
    "compressed tar files",
    "Decompress them to .tar, by gunzip, unzstd, bunzip2 or unxz: then their samples are read in place",
)
IMAGES = (
    re.compile(r"\.(jpe?g|png|webp|gif|bmp|tiff?)$", re.IGNORECASE),
    "images",
    "If each class has a subfolder, read them by midepoch.image_folder(folder); else, copy them to Parquet once: "
    "docs/guides/vision.md shows both",
)
"""The names of files, what such files are, and what there is for them."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a dataset: ``names`` are relative to ``root``, in the order in which they are read.

    ``spec`` is the source in full: it stays the same while files come and go.
    """

    spec: str
    root: str
    names: tuple[str, ...]
    stamps: tuple[FileStamp, ...]
    store: Store | None = None


def find(
    source: PathSpec | Listing, storage_options: Mapping[str, Any] | None = None, *, suffixes: Sequence[str]
) -> Listing:
    """List the files that a source names, sorted; an explicit list keeps its own order.

    From a folder, only files whose names end in one of the ``suffixes`` are taken. A listing is returned unchanged,
    because listing a store takes a request for every thousand objects.
    """
    if isinstance(source, Listing):
        return source
    sources = as_paths(source)
    if not sources:
        raise NoDataError("The list of sources is empty; pass at least one file, folder or glob.")
    sources = [local_path(one) or one for one in sources]
    if any(map(is_url, sources)):
        return _find_objects(sources, storage_options or {}, tuple(suffixes))
    found = [_find_files(one, tuple(suffixes)) for one in sources]
    paths = [path for _, files in found for path in files]
    root = os.path.commonpath([root for root, _ in found])
    _refuse_repeats(paths)
    prefix = len(os.path.join(root, ""))
    names = tuple(path[prefix:].replace(os.sep, "/") for path in paths)
    _refuse_undecodable(names)
    spec = "\n".join(os.path.abspath(os.path.expanduser(one)) for one in sources)
    return Listing(spec, root, names, tuple(stamp_of(path) for path in paths))


def as_paths(source: Any) -> list[str]:
    """The paths and URLs that a source names. Raises on rows in memory, and says what to do with them."""
    if isinstance(source, str | os.PathLike):
        return expanded(os.fspath(source))
    if hasattr(source, "state_dict") and hasattr(source, "train_test_split"):
        raise TypeError("This is an open midepoch dataset, not a path. Use it as it is.")
    if any(kind.__module__.startswith(("datasets.", "torch.utils.data")) for kind in type(source).__mro__):
        raise TypeError(f"This is a {type(source).__name__}, not a path. {way_to_a_dataset(source)}")
    sources = list(source) if isinstance(source, Iterable) and not isinstance(source, Mapping) else [source]
    kind, others = type(source).__name__, [one for one in sources if not isinstance(one, str | os.PathLike)]
    if others or hasattr(source, "columns"):  # a DataFrame iterates over the names of its columns
        item = f" with a {type(others[0]).__name__} in it" if others and others[0] is not source else ""
        raise TypeError(
            f"The source is a {kind}{item}; it must be a path, a URL, a glob, or a list of those. Write rows in memory "
            "to a file first: frame.to_parquet('data.parquet'), or pyarrow.parquet.write_table(pyarrow.Table."
            "from_pylist(rows), 'data.parquet')."
        )
    return [path for one in sources for path in expanded(os.fspath(one))]


def _find_files(source: str, suffixes: tuple[str, ...]) -> tuple[str, list[str]]:
    """The root and the paths of one source on this machine."""
    path = os.path.abspath(os.path.expanduser(source))
    if os.path.isdir(path):
        paths = list(_walk(path))
        return path, mds_shards(paths, _local_bytes, _local_size) or _data_files(path, paths, suffixes)
    if os.path.isfile(path):
        is_manifest = path.endswith(METADATA) and MANIFEST.match(_local_bytes(path, HEAD_BYTES))
        return os.path.dirname(path), shards_of(path, _local_bytes(path), _local_size) if is_manifest else [path]
    if WILDCARDS.search(source):
        return _find_glob(path, source)
    raise NoDataError(f"{source} does not exist; it was looked for at {path}. Pass a file, a folder or a glob.")


def _local_bytes(path: str, nbytes: int = -1) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(nbytes)
    except OSError as error:
        raise NoDataError(f"{path} cannot be read: {error.strerror}.") from error


def _local_size(path: str) -> int | None:
    return os.path.getsize(path) if os.path.isfile(path) else None


def _find_glob(path: str, source: str) -> tuple[str, list[str]]:
    parts = Path(path).parts
    fixed = next(number for number, part in enumerate(parts) if WILDCARDS.search(part))
    root = Path(*parts[:fixed])
    if not root.is_dir():
        raise NoDataError(f"{source} matches nothing: the folder {root} does not exist.")
    # As in a shell, a star matches no hidden name; pathlib's own glob would.
    matches = map(Path, glob(os.path.join(*parts), recursive=True))
    files = sorted(match for match in matches if match.is_file())
    if not files:
        raise NoDataError(f"{source} matches no file below {root}. Check the pattern, or pass the folder itself.")
    return str(root), [str(file) for file in files]


def _data_files(folder: str, paths: Iterable[str], suffixes: tuple[str, ...]) -> list[str]:
    """The data files of a folder, sorted. Next to other data files, JSON files count as metadata."""
    known: list[str] = []
    others: list[str] = []
    for path in paths:
        (known if path.endswith(suffixes) else others).append(path)
    data = [path for path in known if not path.endswith(METADATA)]
    if not data and (foreign := foreign_layout([*known, *others])) is not None:
        raise NoDataError(f"The folder {folder} has no files that midepoch reads. {foreign}.")
    if not known and (unread := unread_kind(others)) is not None:
        raise NoDataError(f"The folder {folder} has {unread[0]}, which midepoch does not read. {unread[1]}.")
    if not known:
        seen = f"it holds {count('other', len(others))}, such as {os.path.basename(others[0])}" if others else ""
        ending = f" that ends in {_in_words(suffixes)}" if any(suffixes) else ""
        raise NoDataError(
            f"The folder {folder} has no file{ending} ({seen or 'it is empty'}). "
            "To read files whatever their names, pass a glob such as 'folder/*'."
        )
    if data and len(data) < len(known):
        log.info(
            "%s of %s that end in %s are not read; name them to read them.",
            count("file", len(known) - len(data)),
            folder,
            METADATA,
        )
    return sorted(data or known, key=lambda path: path.split("/" if is_url(path) else os.sep))


def _in_words(suffixes: tuple[str, ...]) -> str:
    """The suffixes, those of two parts as their second part alone: ".csv, .tsv, .gz or .zst"."""
    firsts = [suffix for suffix in suffixes if suffix.count(".") == 1]
    seconds = dict.fromkeys("." + suffix.rpartition(".")[2] for suffix in suffixes if suffix.count(".") > 1)
    return ", ".join([*firsts, *([" or ".join(seconds)] if seconds else [])])


def _walk(folder: str, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[str]:
    """The files below a folder, except names that begin with '.' or '_'.

    A link to a folder ``above`` is not followed, because it would never end.
    """
    status = os.stat(folder)
    here = (status.st_dev, status.st_ino)
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
    """List the objects that URLs name, all in one store."""
    for url in urls:
        if not is_url(url):
            raise ValueError(f"{url} is a path, and other sources are URLs. Read them apart, and join them with mix.")
        check_plain(url)
        scheme, separator, rest = url.partition("://")
        if scheme.lower() in OPTIONS and "//" in rest:
            raise StoreError(
                f"{url} cannot be read from the store: it has two slashes in a row, so a part of its path is empty. "
                f"Write {scheme}{separator}{re.sub('/+', '/', rest)}, or copy the objects to paths without empty parts."
            )
    urls = [pinned(url if url.endswith("://") else url.rstrip("/"), options) for url in urls]
    store = Store(urls[0], options)
    for url in urls:
        other = Store(url, options)
        if (other.scheme, other.bucket) != (store.scheme, store.bucket):
            raise ValueError(
                f"{urls[0]} and {url} are in different stores or buckets. Read them apart, and join them with mix."
            )
    roots, objects = [], []
    for url, info in zip(urls, store.stat(urls), strict=True):
        root, below = _find_object(store, url, info, suffixes, alone=len(urls) == 1)
        roots.append(root)
        objects += below
    _refuse_repeats([one.url for one in objects])
    root = common_folder(roots)
    prefix = len(root) + 1
    names = tuple(one.url[prefix:] for one in objects)
    _refuse_undecodable(names)
    stamps = tuple(FileStamp(one.size, one.mtime_ns, one.version) for one in objects)
    return Listing("\n".join([store.identity, *urls]), root, names, stamps, store)


def _find_object(
    store: Store, url: str, info: ObjectInfo, suffixes: tuple[str, ...], *, alone: bool
) -> tuple[str, list[ObjectInfo]]:
    """The root and the objects of one URL. A JSON file that is ``alone`` may name the others."""
    if info.kind == "file":
        root, objects = info.url.rpartition("/")[0], {info.url: info}
        if alone and info.url.endswith(METADATA) and MANIFEST.match(StoredFile(store, info.url).read_at(HEAD_BYTES, 0)):
            content = _stored_bytes(store, info.url)
            objects = {one.url: one for one in store.stat(candidates(info.url, content)) if one.kind == "file"}
            return root, [objects[path] for path in shards_of(info.url, content, _sizes(objects))]
        return root, [info]
    if info.kind == "folder":
        is_page = store.scheme in HTTP  # its links may lead anywhere, and it does not say how large the files are
        objects = {one.url: one for one in store.list_objects(info.url, deep=not is_page)}
        prefix = len(info.url) + 1
        visible = [
            path for path in objects if not path[prefix:].startswith((".", "_")) and not HIDDEN.search(path[prefix:])
        ]
        if is_page and any(map(MDS.search, visible)):
            objects |= {one.url: one for one in store.stat([path for path in visible if MDS.search(path)])}
        paths = mds_shards(visible, partial(_stored_bytes, store), _sizes(objects))
        paths = paths or _data_files(info.url, visible, suffixes)
        return info.url, store.stat(paths) if is_page else [objects[path] for path in paths]
    if not WILDCARDS.search(url):
        raise NoDataError(
            f"{url} does not exist. {_last_existing(store, url)}Pass the URL of an object, a folder or a glob."
        )
    root, pattern, deep = split_glob(url)
    if root.endswith((":", ":/")):
        raise NoDataError(f"{url} has a glob in place of the bucket. Name the bucket.")
    (above,) = store.stat([root])
    below = [] if above.kind is None else store.list_objects(above.url, deep=deep)
    matches = [one for one in below if pattern.fullmatch(one.url[len(above.url) + 1 :])]
    if not matches and store.scheme in HTTP:
        raise NoDataError(
            f"{url} matches nothing: {root} is not a page that links to such files, and HTTP has no other way to list "
            "a folder. Pass a list of URLs, one for each file."
        )
    if not matches:
        missing = _last_existing(store, root) if above.kind is None else ""
        raise NoDataError(
            f"{url} matches no object below {root}. {missing}Check the pattern, or pass the folder itself."
        )
    if store.scheme in HTTP:  # a page of links does not say how large the files are
        matches = store.stat([one.url for one in matches])
    return above.url, sorted(matches, key=lambda one: one.url.split("/"))


def _stored_bytes(store: Store, url: str) -> bytes:
    return store.read(url, lambda size: None)


def _sizes(objects: Mapping[str, ObjectInfo]) -> Callable[[str], int | None]:
    return lambda path: objects[path].size if path in objects else None


def _refuse_undecodable(names: Iterable[str]) -> None:
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"The file name {name!r} is not valid UTF-8, so no checkpoint could store it. Rename the file."
            ) from None


def _refuse_repeats(paths: list[str]) -> None:
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            raise ValueError(f"The sources name {path} twice; each of its rows would be delivered twice. Name it once.")
        seen.add(path)


def _last_existing(store: Store, url: str) -> str:
    """A sentence that says which part of a URL exists: a wrong bucket and a wrong name are different mistakes."""
    if not store.bucket:
        return ""
    bucket = f"{store.scheme}://{store.bucket}"
    with contextlib.suppress(MidepochError):  # whoever may not look into the bucket learns no more
        above = url.rpartition("/")[0]
        while len(above) >= len(bucket):
            if store.stat([above])[0].kind is not None:
                return f"{above} does, so check the name after it. "
            above = above.rpartition("/")[0]
        return f"There is no bucket {store.bucket!r}: check its name, and the endpoint in storage_options. "
    return ""


def foreign_layout(names: Iterable[str]) -> str | None:
    """Which other library wrote a folder with these files, and what to do; None if none is recognised."""
    names = list(names)
    if not (any(map(INDEX.search, names)) and any(map(LITDATA.search, names))):
        return None
    return (
        "It is a dataset of LitData, whose files midepoch does not read. Read the files that it was made from, or let "
        "that library fetch its rows: midepoch.from_indexable(litdata.StreamingDataset(folder))"
    )


def unread_kind(names: Iterable[str]) -> tuple[str, str] | None:
    """What files with these names are, and what there is for them; None if they are not recognised."""
    names, kinds = list(names), (PACKED_TAR, IMAGES)
    return next(((what, advice) for pattern, what, advice in kinds if any(map(pattern.search, names))), None)
