"""One listing for all ranks: rank 0 lists a remote folder, and the others get it through the store of their group."""

import json
import logging
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from midepoch._common.hashing import digest
from midepoch._common.world import launched_rank, process_group_store
from midepoch.storage.listing import Listing, PathSpec, as_paths, find
from midepoch.storage.local import FileStamp
from midepoch.storage.store import Store
from midepoch.storage.urls import is_url, local_path

log = logging.getLogger("midepoch")

PATIENCE_SECONDS = 60.0
"""How long a rank looks for the listing before it lists the folder itself."""
FIRST_SECONDS, MOST_SECONDS = 0.02, 1.0
"""The time between two looks, which grows."""
PART_BYTES = 8 << 20
"""torch's TCPStore takes values of up to 16 MiB."""
FAILED = b"failed"


GroupStore = Any
"""A key-value store that all ranks reach, such as torch's TCPStore: ``add``, ``set``, ``check`` and ``get`` are used.

``get`` is called only for keys that are there, so no call waits for another rank.
"""


def find_once(source: PathSpec | Listing, options: Mapping[str, Any] | None, *, suffixes: Sequence[str]) -> Listing:
    """What ``find`` finds, listed by rank 0 alone if all ranks call this. Whatever goes wrong, a rank lists itself."""
    if isinstance(source, Listing):
        return source
    urls = as_paths(source)
    if not urls or not is_url(urls[0]) or local_path(urls[0]) is not None:
        return find(urls, options, suffixes=suffixes)
    group, (rank, ranks) = process_group_store(), launched_rank() or (0, 1)
    if group is None or ranks < 2:
        log.warning("shared_listing has no effect: there is no process group of several ranks with a store.")
        return find(urls, options, suffixes=suffixes)
    try:
        key = f"midepoch/listing/{digest(json.dumps([Store(urls[0], options).identity, urls]).encode()).hex()}"
        key = f"{key}/{group.add(f'{key}/calls of {rank}', 1)}"  # the first, second … call of this rank for these URLs
        content = None if rank == 0 else _wait_for(group, key)
    except RuntimeError as error:  # the process that holds the store has died
        log.warning("The listing of rank 0 cannot be had (%s); this rank lists the files itself.", error)
        return find(urls, options, suffixes=suffixes)
    if content is not None:
        return _listing_of(content, options)
    return _published(group, key, urls, options, suffixes) if rank == 0 else find(urls, options, suffixes=suffixes)


def _published(
    group: GroupStore, key: str, urls: list[str], options: Mapping[str, Any] | None, suffixes: Sequence[str]
) -> Listing:
    """List the files, and write the listing for the other ranks. If it fails, they need not wait for it."""
    parts = [FAILED]
    try:
        listing = find(urls, options, suffixes=suffixes)
        content = _content_of(listing)
        parts = [content[begin : begin + PART_BYTES] for begin in range(0, len(content), PART_BYTES)]
    finally:
        try:
            for number, part in enumerate(parts):
                group.set(f"{key}/part {number}", part)
            group.set(key, str(len(parts)).encode())
        except RuntimeError as error:
            log.warning("The listing cannot be shared with the other ranks: %s", error)
    return listing


def _wait_for(group: GroupStore, key: str) -> bytes | None:
    """The listing of rank 0; None if it does not come, which is logged."""
    deadline, seconds = time.monotonic() + PATIENCE_SECONDS, FIRST_SECONDS
    while not group.check([key]):
        if time.monotonic() >= deadline:
            log.warning("Rank 0 has shared no listing for %g s; this rank lists the files itself.", PATIENCE_SECONDS)
            return None
        time.sleep(seconds)
        seconds = min(MOST_SECONDS, 1.5 * seconds)
    content = b"".join(group.get(f"{key}/part {number}") for number in range(int(group.get(key))))
    if content == FAILED:
        log.warning("Rank 0 could not list the files; this rank lists them itself.")
        return None
    return content


def _content_of(listing: Listing) -> bytes:
    stamps = [[stamp.size, stamp.mtime_ns, stamp.version] for stamp in listing.stamps]
    return zlib.compress(json.dumps([listing.spec, listing.root, listing.names, stamps]).encode(), 1)


def _listing_of(content: bytes, options: Mapping[str, Any] | None) -> Listing:
    spec, root, names, stamps = json.loads(zlib.decompress(content))
    return Listing(spec, root, tuple(names), tuple(FileStamp(*stamp) for stamp in stamps), Store(root, options))
