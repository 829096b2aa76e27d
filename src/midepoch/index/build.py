"""Building an index and keeping it on disk: fresh, whole, and safe with many processes at once."""

import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from midepoch._common.files import exclusive_lock, write_atomically
from midepoch._common.hashing import digest
from midepoch._common.progress_bar import ProgressBar
from midepoch._common.world import default_index_dir
from midepoch.errors import MidepochError, NoDataError
from midepoch.formats import FORMATS, Scan, scan_file
from midepoch.index.index import Index, index_bytes
from midepoch.storage.listing import Listing, PathSpec, find
from midepoch.storage.local import FileStamp
from midepoch.storage.location import Location
from midepoch.storage.objects import StoredFile
from midepoch.storage.store import Store

log = logging.getLogger("midepoch")

SCAN_THREADS = 16
REMOTE_SCANS = 32  # most of their time is spent waiting
KEPT_VERSIONS = 8


def open_index(
    source: PathSpec | Listing,
    *,
    format: str | None = None,
    index_dir: str | os.PathLike[str] | None = None,
    threads: int = SCAN_THREADS,
    anew: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Index:
    """The index of a source: from the cache where that is whole and fresh, else built, and cached.

    ``anew`` scans all files again, with so many ``threads``.
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"format is {format!r}; it can be {', '.join(map(repr, FORMATS))}, or left out.")
    listing = find(source, storage_options)
    store = listing.store
    threads = threads if store is None else max(threads, REMOTE_SCANS)
    folder = index_folder(index_dir)
    source_key = digest_of(listing.spec if format is None else f"{listing.spec}\n{format=}")
    path = folder / f"{source_key}-{digest_of(repr((listing.names, listing.stamps)))}.index"
    index = None if anew else _load(listing.root, path, store)
    if index is None or not index.matches(listing):
        with exclusive_lock(folder / f"{source_key}.lock"):
            index = None if anew else _load(listing.root, path, store, tell=True)
            if index is None or not index.matches(listing):
                earlier = _versions(folder, source_key)
                known = _load(listing.root, earlier[0]) if earlier and not anew else None
                scans = _scan_all(listing, format, known.scans() if known else {}, threads)
                index = _save(path, listing, scans)
                for old in earlier[KEPT_VERSIONS:]:
                    for one in (old, *folder.glob(f"{old.stem}-*.kept")):
                        one.unlink(missing_ok=True)
    _warn_of_compressed(index)
    return index


def _warn_of_compressed(index: Index) -> None:
    packed = [name for name, seeks in zip(index.names, index.seeks, strict=True) if not seeks]
    if packed:
        log.warning(
            "%s of %s files, such as %s, are compressed as a whole and cannot seek: a resume, a block shuffle, several "
            "lanes decompress them from the start again and again. Decompress them, or convert them to Parquet.",
            f"{len(packed):,}",
            f"{len(index.names):,}",
            packed[0],
        )


def digest_of(text: str) -> str:
    """A short name for a text."""
    return digest(text.encode("utf-8", "surrogateescape")).hex()


def _versions(folder: Path, source_key: str) -> list[Path]:
    """The indexes of a source, the newest first. Older ones are kept for processes that still run on them."""
    found = [(path.stat().st_mtime_ns, path) for path in folder.glob(f"{source_key}-*.index")]
    return [path for _, path in sorted(found, reverse=True)]


def index_folder(chosen: str | os.PathLike[str] | None) -> Path:
    """The folder that was chosen for indexes, else ``MIDEPOCH_INDEX_DIR``, else one in the user's cache."""
    return (default_index_dir() if chosen is None else Path(chosen)).absolute()


def _load(root: str, path: Path, store: Store | None = None, *, tell: bool = False) -> Index | None:
    """The cached index, or None where there is none that can be trusted, which may be told."""
    try:
        return Index.load(root, str(path), store)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        if tell:
            log.warning("The index %s cannot be used (%s); it is built again.", path, error)
        return None


def _save(path: Path, listing: Listing, scans: list[Scan]) -> Index:
    """Write the index and map it. Where that cannot be, keep it in memory."""
    content = index_bytes(listing, scans)
    try:
        write_atomically(path, content)
    except OSError as error:
        log.warning("The index cannot be kept in %s (%s): it is built at every start.", path.parent, error)
        return Index(listing.root, content, store=listing.store)
    loaded = _load(listing.root, path, listing.store)
    whole = loaded is not None and loaded.matches(listing)
    return loaded if loaded is not None and whole else Index(listing.root, content, store=listing.store)


def _scan_all(
    listing: Listing, format: str | None, known: Mapping[tuple[str, FileStamp], Scan], threads: int
) -> list[Scan]:
    """Scan the files that are not known yet, several at once."""
    scans = [known.get(key) for key in zip(listing.names, listing.stamps, strict=True)]
    missing = [number for number, scan in enumerate(scans) if scan is None]
    bar = ProgressBar("indexing", unit="files", total=len(missing))
    with bar, ThreadPoolExecutor(threads) as pool:
        waiting = {pool.submit(_scan_one, listing.location(n), format): n for n in missing}
        try:
            for finished, future in enumerate(as_completed(waiting), start=1):
                scans[waiting[future]] = future.result()
                bar.update(finished)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return [scan for scan in scans if scan is not None]


def _scan_one(path: Location, format: str | None) -> Scan:
    try:
        scan = scan_file(path, format)
        return replace(scan, version=path.version) if isinstance(path, StoredFile) else scan
    except MidepochError:
        if isinstance(path, StoredFile) and path.failure is not None:
            raise path.failure from None
        raise
    except OSError as error:
        raise NoDataError(f"{path} cannot be read: {error.strerror or error}.") from error
