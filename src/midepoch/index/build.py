"""Opening the index of a source: load the saved one, or scan the files and save it."""

import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

from midepoch._common.progress_bar import ProgressBar
from midepoch._common.text import count
from midepoch.errors import MidepochError, NoDataError
from midepoch.formats import FORMATS, Scan, file_suffixes, scan_file
from midepoch.index.encode import index_bytes, scans_of
from midepoch.index.files import FileIndex
from midepoch.index.index import IndexView
from midepoch.index.saved import SavedIndexes, index_folder
from midepoch.storage.listing import Listing, PathSpec, find
from midepoch.storage.local import FileStamp
from midepoch.storage.location import Location
from midepoch.storage.objects import StoredFile

log = logging.getLogger("midepoch")

SCAN_THREADS = 16
REMOTE_SCANS = 32  # most of their time is spent waiting


def open_index(
    source: PathSpec | Listing,
    *,
    format: str | None = None,
    index_dir: str | os.PathLike[str] | None = None,
    threads: int = SCAN_THREADS,
    rescan: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> FileIndex:
    """The index of a source. Only files that changed since the last index was saved are scanned; ``rescan`` scans all.

    Of many processes that open a source at once, one scans and the others wait for it.
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"format is {format!r}; it can be {', '.join(map(repr, FORMATS))}, or left out.")
    listing = find(source, storage_options, suffixes=file_suffixes())
    saved = SavedIndexes(index_folder(index_dir), listing, format)
    view = None if rescan else saved.load()
    if view is None:
        with saved.lock():
            view = None if rescan else saved.load(warn=True)
            if view is None:
                known = None if rescan else saved.load_newest()
                scans = _scan_all(listing, format, scans_of(known) if known else {}, threads)
                view = saved.save(index_bytes(listing, scans))
    _warn_of_compressed(view)
    return FileIndex(view, listing.store)


def _warn_of_compressed(view: IndexView) -> None:
    compressed = [name for name, seeks in zip(view.names, view.seeks, strict=True) if not seeks]
    if compressed:
        log.warning(
            "%s of %s, such as %s, cannot seek: compressed as a whole. A resume, a block shuffle and several lanes "
            "decompress such a file from its start every time. Decompress these files, or convert them to Parquet.",
            f"{len(compressed):,}",
            count("file", len(view.names)),
            compressed[0],
        )


def _scan_all(
    listing: Listing, format: str | None, known: Mapping[tuple[str, FileStamp], Scan], threads: int
) -> list[Scan]:
    """Scan the files that are not known yet, several at once."""
    threads = threads if listing.store is None else max(threads, REMOTE_SCANS)
    scans = [known.get(key) for key in zip(listing.names, listing.stamps, strict=True)]
    missing = [file for file, scan in enumerate(scans) if scan is None]
    bar = ProgressBar("indexing", unit="files", total=len(missing))
    with bar, ThreadPoolExecutor(threads) as pool:
        file_of = {pool.submit(_scan_one, listing.location(file), format): file for file in missing}
        try:
            for finished, future in enumerate(as_completed(file_of), start=1):
                scans[file_of[future]] = future.result()
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
