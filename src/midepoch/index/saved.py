"""Index files on disk: one for each source and version of its files, in a folder that processes share."""

import logging
import os
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pyarrow as pa

from midepoch._common.files import check_trust, exclusive_lock, remove, remove_folder, trust_folder, write_privately
from midepoch._common.hashing import digest
from midepoch._common.world import default_index_dir
from midepoch.index.index import IndexView
from midepoch.storage.listing import Listing

log = logging.getLogger("midepoch")

UNUSED_DAYS, MOST_BYTES = 90, 4 << 30
"""Indexes that nobody has opened for so long are removed, and so are the oldest, if all together have more bytes."""
DAY = 24 * 3600


class SavedIndexes:
    """The saved indexes of one source.

    Older versions stay for a while, because other processes may still have them open.
    """

    def __init__(self, folder: Path, listing: Listing, format: str | None) -> None:
        self._folder, self._listing = folder, listing
        self._source = digest_of(listing.spec if format is None else f"{listing.spec}\n{format=}")
        self._path = folder / f"{self._source}-{digest_of(repr((listing.names, listing.stamps)))}.index"

    def lock(self) -> AbstractContextManager[None]:
        """Let one process build the index while others wait."""
        return exclusive_lock(self._folder / f"{self._source}.lock")

    def load(self, *, warn: bool = False) -> IndexView | None:
        """The saved index of exactly the listed files; None if there is none, or if it is damaged."""
        view = self._load(self._path, warn=warn)
        if view is None or not self._matches(view):
            return None
        with suppress(OSError):
            os.utime(self._path)  # the time of its last use
        return view

    def load_newest(self) -> IndexView | None:
        """The index that was saved last, whose files may have changed since."""
        versions = self._versions()
        return self._load(versions[0]) if versions else None

    def save(self, content: pa.Buffer) -> IndexView:
        """Write an index of the listed files and map it. If it cannot be written, keep it in memory."""
        try:
            write_privately(self._path, content)
        except OSError as error:
            log.warning("The index cannot be kept in %s (%s): it is built at every start.", self._folder, error)
            return IndexView(self._listing.root, content)
        clean(self._folder, keep=self._path)
        return self.load() or IndexView(self._listing.root, content)

    def _load(self, path: Path, *, warn: bool = False) -> IndexView | None:
        try:
            return IndexView.load(self._listing.root, str(path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            if warn:
                log.warning("The index %s cannot be used (%s); it is built again.", path, error)
            return None

    def _matches(self, view: IndexView) -> bool:
        return view.names == list(self._listing.names) and view.stamps == list(self._listing.stamps)

    def _versions(self) -> list[Path]:
        """The saved indexes of the source, the newest first."""
        times: dict[Path, int] = {}
        for path in self._folder.glob(f"{self._source}-*.index"):
            with suppress(OSError):  # another process may just have removed it
                times[path] = path.stat().st_mtime_ns
        return sorted(times, key=lambda path: (times[path], path), reverse=True)


def clean(
    folder: Path, *, days: float = UNUSED_DAYS, most_bytes: int = MOST_BYTES, keep: Path | None = None
) -> tuple[int, int]:
    """Remove indexes that were not used for some days, and the oldest of those that have too many bytes together.

    ``keep`` stays in any case. Returns how many were removed, and their bytes.
    """
    found = list[tuple[float, int, Path]]()
    for path in folder.glob("*.index"):
        with suppress(OSError):
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    oldest, used, removed = time.time() - days * DAY, 0, list[int]()
    for last_use, size, path in sorted(found, reverse=True):
        used += size
        if path != keep and (last_use < oldest or used > most_bytes):
            _remove_with_pruning(path)
            removed.append(size)
            used -= size
    return len(removed), sum(removed)


def forget(saved_at: str | None) -> None:
    """Remove a saved index, and all others of its source.

    A listing without etags knows an object by its size and the second of its last change. If that was not enough to
    notice a change, the same index would be loaded again.
    """
    if saved_at is not None:
        path = Path(saved_at)
        for version in path.parent.glob(f"{path.name.partition('-')[0]}-*.index"):
            remove(version)


def index_folder(chosen: str | os.PathLike[str] | None) -> Path:
    """The chosen folder for indexes, else ``MIDEPOCH_INDEX_DIR``, else one in the user's cache."""
    return (default_index_dir() if chosen is None else Path(chosen).expanduser()).absolute()


def trusted_index_folder(chosen: str | os.PathLike[str] | None, trust_shared: bool) -> Path:
    """The same folder. With ``trust_shared`` all users are trusted who can write to it."""
    folder = index_folder(chosen)
    if check_trust(trust_shared):
        trust_folder(folder)
    return folder


def digest_of(text: str) -> str:
    """A short name for a text."""
    return digest(text.encode("utf-8", "surrogateescape")).hex()


def _remove_with_pruning(path: Path) -> None:
    """Remove an index, and what was saved beside it: pruned blocks and surveys."""
    for file in (path, *path.parent.glob(f"{path.stem}-*.kept")):
        remove(file)
    for folder in path.parent.glob(f"{path.stem}-*.survey*"):
        remove_folder(folder)
