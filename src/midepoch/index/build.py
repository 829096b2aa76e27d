"""Opening the index of files, on this machine or in a store: load the saved one, or scan the files and save it."""

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from midepoch._common.checks import count
from midepoch._common.jobs import ProgressBar, check_executor, check_started, run_all
from midepoch.errors import DataChangedError, MidepochError, NoDataError
from midepoch.formats import FORMATS, MAX_RECORD_BYTES, Block, BlockReader, Scan, file_suffixes, scan_file
from midepoch.formats.base import SpannedReader
from midepoch.index.index import Index, IndexView, index_bytes
from midepoch.index.saved import SavedIndexes, forget, index_folder
from midepoch.index.schemas import schema_of
from midepoch.storage.listing import Listing, PathSpec, find
from midepoch.storage.local import FileStamp, check_unchanged, stamp_of
from midepoch.storage.objects import Location, StoredFile
from midepoch.storage.store import Store
from midepoch.storage.urls import folder_prefix

log = logging.getLogger("midepoch")

T = TypeVar("T")

SCAN_THREADS = 16
REMOTE_SCANS = 32  # most of their time is spent waiting
JOBS = 64
"""An executor gets one file in each job until there would be more jobs than this, then up to ``REMOTE_SCANS``."""


@dataclass(frozen=True)
class ScanOptions:
    """How files are scanned."""

    format: str | None = None
    max_record_bytes: int = MAX_RECORD_BYTES

    @property
    def name(self) -> str | None:
        """A text that differs where an index may: those of other options are kept apart. None for the defaults."""
        limit = None if self.max_record_bytes == MAX_RECORD_BYTES else self.max_record_bytes
        return self.format if limit is None else f"{self.format},max_record_bytes={limit}"


def open_index(
    source: PathSpec | Listing,
    *,
    format: str | None = None,
    index_dir: str | os.PathLike[str] | None = None,
    threads: int = SCAN_THREADS,
    rescan: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
) -> "FileIndex":
    """The index of a source. Only files that changed since the last index was saved are scanned; ``rescan`` scans all.

    Files are scanned by ``threads`` of this process, or by the workers of an ``executor``. Of many processes that open
    a source at once, one scans and the others wait for it. A record of text, and a block that grows much when it is
    decompressed, may have ``max_record_bytes``.
    """
    check_executor(executor)
    if format is not None and format not in FORMATS:
        raise ValueError(f"format is {format!r}; it can be {', '.join(map(repr, FORMATS))}, or left out.")
    listing = find(source, storage_options, suffixes=file_suffixes())
    options = ScanOptions(format, max_record_bytes)
    saved = SavedIndexes(index_folder(index_dir), listing, options.name)
    view = None if rescan else saved.load()
    if view is None:
        if executor is not None:
            check_started("read(executor=...)")
        with saved.lock():
            view = None if rescan else saved.load(warn=True)
            if view is None:
                known = None if rescan else saved.load_newest()
                scans = _scan_all(listing, options, known.scans if known else {}, threads, executor)
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
    listing: Listing,
    options: ScanOptions,
    known: Mapping[tuple[str, FileStamp], Scan],
    threads: int,
    executor: Executor | None,
) -> list[Scan]:
    """Scan the files that are not known yet, several at once."""
    scans = [known.get(key) for key in zip(listing.names, listing.stamps, strict=True)]
    folder = folder_prefix(listing.root)
    missing = [
        ListedFile(file, folder + listing.names[file], listing.stamps[file].size)
        for file, scan in enumerate(scans)
        if scan is None
    ]
    size = 1 if executor is None else min(REMOTE_SCANS, max(1, len(missing) // JOBS))
    groups = [missing[first : first + size] for first in range(0, len(missing), size)]
    scan = partial(_scan_group, options, listing.store, socket.gethostname())
    with ExitStack() as stack:
        bar = stack.enter_context(ProgressBar("indexing", unit="files", total=len(missing)))
        if executor is None:
            threads = threads if listing.store is None else max(threads, REMOTE_SCANS)
            executor = stack.enter_context(ThreadPoolExecutor(threads))
        finished = 0
        for group, found in run_all(scan, groups, executor, bar.tick):
            for file, one in zip(group, found, strict=True):
                scans[file.number] = one
            finished += len(group)
            bar.update(finished)
    return [scan for scan in scans if scan is not None]


class ListedFile(NamedTuple):
    """A file to scan."""

    number: int
    path: str
    size: int


def _scan_group(options: ScanOptions, store: Store | None, host: str, files: Sequence[ListedFile]) -> list[Scan]:
    """Scan files where this is called. ``host`` is the machine on which they were listed."""
    scan = partial(_scan_one, options, store)
    if store is not None:
        with ThreadPoolExecutor(REMOTE_SCANS) as pool:
            return list(pool.map(scan, files))
    try:
        return [scan(file) for file in files]
    except MidepochError as error:
        if socket.gethostname() != host:
            error.add_note(
                f"midepoch: this is so on {socket.gethostname()}, a machine of the executor; the files were listed on "
                f"{host}. All machines need the same files at the same paths: use a shared folder or an object store."
            )
        raise


def _scan_one(options: ScanOptions, store: Store | None, file: ListedFile) -> Scan:
    try:
        if store is None:
            present = stamp_of(file.path).size
            if present != file.size:
                raise DataChangedError(
                    f"{file.path} has {present:,} bytes, but had {file.size:,} when it was listed. Open the dataset "
                    "again."
                )
            return scan_file(file.path, options.format, options.max_record_bytes)
        stored = StoredFile(store, file.path, size=file.size)
        try:
            return replace(scan_file(stored, options.format, options.max_record_bytes), version=stored.version)
        except MidepochError as error:
            raise stored.failure or error from None
    except OSError as error:
        raise NoDataError(f"{file.path} cannot be read: {error.strerror or error}.") from error


class FileIndex(Index):
    """The blocks of files, all of which are on this machine or in one ``store``."""

    def __init__(self, view: IndexView, store: Store | None = None) -> None:
        self.view, self.store = view, store

    def __reduce__(self) -> tuple[Any, ...]:
        return FileIndex, (self.view, self.store)

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        return schema_of(self.view, columns)

    def open(self, file: int, wanted: pa.Schema) -> BlockReader:
        open_blocks, location = FORMATS[self.view.formats[file]].open_blocks, location_of(self, file)
        opened = partial(open_blocks, location, self.view.schemas[file], wanted)
        if isinstance(location, StoredFile):
            return StoredBlocks(location, opened, partial(forget, self.view.saved_at))
        return opened()

    def check(self, file: int) -> None:
        if self.store is None:
            check_unchanged(self.view.path(file), self.view.stamps[file])


def location_of(index: Index, file: int) -> Location:
    """Where formats read a file: its path, or the version of an object that was indexed."""
    view = index.view
    if index.store is None:
        return view.path(file)
    return StoredFile(index.store, view.path(file), size=view.stamps[file].size, version=view.versions[file])


def is_mapped(index: Index, file: int) -> bool:
    """True if the blocks of a file are views of its bytes."""
    return index.store is None and FORMATS[index.view.formats[file]].is_mapped


class StoredBlocks:
    """The blocks of an object. Each read raises unless the object is the version that was indexed."""

    def __init__(self, file: StoredFile, opened: Callable[[], BlockReader], forget: Callable[[], None]) -> None:
        self._file, self._forget = file, forget
        self._reader = self._safely(opened)

    def read(self, block: Block) -> pa.Table | pa.RecordBatch:
        return next(self.read_all([block]))

    def read_all(self, blocks: Sequence[Block]) -> Iterator[pa.Table | pa.RecordBatch]:
        """The rows of each of these blocks, whose bytes are fetched together if the reader knows which these are."""
        reader = self._reader
        if not isinstance(reader, SpannedReader):
            for block in blocks:
                yield self._safely(lambda block=block: reader.read(block))  # type: ignore[misc]
            return
        fetched = self._safely(lambda: self._file.fetch([span for block in blocks for span in reader.spans(block)]))
        for block in blocks:
            yield self._safely(lambda block=block: reader.decode(block, fetched.open()))  # type: ignore[misc]

    def _safely(self, action: Callable[[], T]) -> T:
        """Do something with the object. An error of the store hides the error that a format made of it."""
        try:
            return action()
        except MidepochError as error:
            cause = self._file.failure or error
        if isinstance(cause, DataChangedError):
            self._forget()
        raise cause
