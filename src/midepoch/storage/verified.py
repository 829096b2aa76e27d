"""Reads that are verified: each answer of a store or web server says which version its bytes are of, and how many.

pyarrow and fsspec return the bytes alone. obstore returns what the answer says of itself too, so an object that is
replaced and restored between two requests is noticed, and so is an answer that is too short. It also gives up answers
that come too slowly. It is used where it is installed and can be. It lists the objects of S3 with their etags, which
pyarrow does not report. The plain clients find and list other objects, except for those of Azure.
"""

import contextlib
import importlib.util
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from functools import cache
from multiprocessing import parent_process
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa

from midepoch._common.checks import cached_property
from midepoch.errors import StoreError
from midepoch.storage import clients
from midepoch.storage.azure import AZURE
from midepoch.storage.clients import HTTP, HTTP_SECONDS, LEAST_BYTES_A_SECOND, Client, Handle, ObjectInfo
from midepoch.storage.obstores import PLAIN, OpenStore, opener, shortly
from midepoch.storage.retry import OtherVersionError

log = logging.getLogger("midepoch")

LEAST_CLASS, CLASS_FACTOR = 1 << 20, 8
"""Requests of up to 1 MiB, 8 MiB, 64 MiB and so on have a time limit each, because obstore has one for a connection."""
UNKNOWN = datetime.fromtimestamp(0, UTC)
"""The time of change of an object whose answer has none."""
LISTED = ("s3", *AZURE)
"""The schemes whose objects obstore lists."""
PAGE_RETRIES = 2
"""How often one page of a listing is tried again. We retry all other requests ourselves."""
WHOLE_NAME = re.compile(r"(?!.*(?:^|/)\.{0,2}(?:/|$))[^\x00-\x1f\x7f]+")
"""The names that obstore takes as they are: no part is empty, or one or two dots."""
NO_LENGTH = "Content-Length Header missing"
UNQUOTED = "/!$&'()*+,;=:@|[]^\\"


def connect(scheme: str, bucket: str, options: Mapping[str, Any]) -> Client:
    """A client for the URLs of a scheme, which verifies reads if it can."""
    if scheme not in PLAIN:
        return clients.connect(scheme, bucket, options)
    options = dict(options)
    wanted = options.pop("client", None)
    if wanted not in (None, "obstore", PLAIN[scheme]):
        raise StoreError(f"client in storage_options must be 'obstore' or {PLAIN[scheme]!r} for {scheme}:// URLs.")
    open_store, reason = None, "another client was asked for"
    if wanted in (None, "obstore"):
        open_store, reason = opener(scheme, bucket, options)
    if open_store is not None:
        return VerifiedClient(scheme, bucket, options, open_store)
    if wanted == "obstore":
        raise StoreError(f"obstore cannot be used for {scheme}:// URLs here, because {reason}.")
    if scheme in AZURE:
        _check_adlfs(scheme, f"obstore cannot be used here, because {reason}")
    log.debug("obstore does not verify reads of %s://, because %s.", scheme, reason)
    if wanted is None and scheme == "s3" and importlib.util.find_spec("obstore") is None:
        _warn_of_plain_s3()
    return clients.connect(scheme, bucket, options)


def _check_adlfs(scheme: str, why: str) -> None:
    if importlib.util.find_spec("adlfs") is None:
        raise StoreError(
            f"{scheme}:// URLs are read by obstore or by adlfs. {why}, and adlfs is not installed. To read with adlfs: "
            "pip install adlfs."
        )


@cache
def _warn_of_plain_s3() -> None:
    """Warn once, and not in workers."""
    if parent_process() is None:
        log.warning(
            "s3:// is read without obstore: the version of an object is checked after each read, not with it, and an "
            "answer that comes very slowly is waited for. To read with it: pip install 'midepoch[remote]'. To read "
            "without it: storage_options={'client': 'pyarrow'}."
        )


class VerifiedClient:
    """A client whose handles verify what they read. What obstore cannot name is left to the plain client."""

    def __init__(self, scheme: str, bucket: str, options: Mapping[str, Any], open_store: OpenStore) -> None:
        self._at, self._open_store = (scheme, bucket, options), open_store
        self._stores: dict[tuple[str, int, int], Any] = {}

    @cached_property
    def _plain(self) -> Client:
        if self._at[0] in AZURE:
            _check_adlfs(self._at[0], "obstore cannot name an object whose name has an empty part, or one of dots")
        return clients.connect(*self._at)

    def stat(self, urls: Sequence[str]) -> list[ObjectInfo]:
        if self._at[0] not in LISTED:
            return self._plain.stat(urls)
        return [self._stat(url) if self._at[0] in AZURE else self._stat_s3(url) for url in urls]

    def list_objects(self, folder: str, *, deep: bool) -> list[ObjectInfo]:
        if self._at[0] not in LISTED:
            return self._plain.list_objects(folder, deep=deep)
        import obstore
        from obstore.exceptions import InvalidPathError

        store, (origin, name) = self._store(folder, 0, PAGE_RETRIES), _split(folder)
        try:
            if deep:
                found = [meta for page in shortly(lambda: [*obstore.list(store, name or None)]) for meta in page]
                folders = {meta["path"].rpartition("/")[0] for meta in found}
            else:
                listed = shortly(lambda: obstore.list_with_delimiter(store, name or None))
                found, folders = [*listed["objects"]], {*listed["common_prefixes"]}
        except (InvalidPathError, ValueError):  # there is a name that obstore does not take
            return [_at(origin, info) for info in self._plain.list_objects(folder, deep=deep)]
        marks = {name, *folders}
        return [
            _object_info(origin, meta)
            for meta in found
            if meta["size"] or (meta["path"] not in marks and self._is_there(store, meta["path"]))
        ]

    def _is_there(self, store: Any, name: str) -> bool:
        """False for an empty object whose name ends in a slash, which marks a folder. obstore lists it without."""
        import obstore

        try:
            shortly(lambda: obstore.head(store, name))
        except FileNotFoundError:
            return False
        return True

    def open(self, url: str) -> Handle:
        scheme = self._at[0]
        name = _http_name(url) if scheme in HTTP else _split(url)[1]
        if name is None or not WHOLE_NAME.fullmatch(name):
            return self._plain.open(url)

        def store(nbytes: int) -> Any:
            return self._store(url, nbytes)

        if scheme in HTTP:  # not every server answers HEAD, and fsspec knows what to do then
            plain = self._plain.open(url)
            return VerifiedHandle(store, name, plain.size, plain.version, plain=plain)
        import obstore

        meta = shortly(lambda: obstore.head(store(0), name))
        generation = meta["version"] if scheme == "gs" else None
        return VerifiedHandle(store, name, meta["size"], meta["e_tag"] or "", generation)

    def _stat_s3(self, url: str) -> ObjectInfo:
        """What is at a URL of S3. obstore reports the etag of an object, and pyarrow knows what a folder is there.

        Most names of objects have a dot, and most of folders have none, so the likelier one is asked first.
        """
        import obstore

        origin, name = _split(url)
        info = None if "." in name.rpartition("/")[2] else self._plain.stat([url])[0]
        if (info is None or info.kind == "file") and WHOLE_NAME.fullmatch(name):
            with contextlib.suppress(FileNotFoundError):
                return _object_info(origin, shortly(lambda: obstore.head(self._store(url, 0), name)))
        return info or self._plain.stat([url])[0]

    def _stat(self, url: str) -> ObjectInfo:
        """What is at a URL of Azure: an object, names that begin with it, or nothing."""
        import obstore
        from obstore.exceptions import InvalidPathError

        store, (origin, name) = self._store(url, 0), _split(url)
        if name and not WHOLE_NAME.fullmatch(name):
            return _at(origin, self._plain.stat([url])[0])
        try:
            if name:
                return _object_info(origin, shortly(lambda: obstore.head(store, name)))
        except FileNotFoundError:
            pass
        try:
            is_there = bool(shortly(lambda: next(iter(obstore.list(store, name or None, chunk_size=1)), ())))
        except FileNotFoundError:  # there is no such container
            is_there = False
        except (InvalidPathError, ValueError):  # there is a name that obstore does not take
            is_there = True
        return ObjectInfo(url, "folder" if is_there else None)

    def _store(self, url: str, nbytes: int, retries: int = 0) -> Any:
        """The store for requests of about this size. Threads may open one twice, and then one of the two is dropped."""
        origin, most = url.split("/")[2], LEAST_CLASS
        while most < nbytes:
            most *= CLASS_FACTOR
        store = self._stores.get((origin, most, retries))
        if store is None:
            opened = self._open_store(url, HTTP_SECONDS + most / LEAST_BYTES_A_SECOND, retries)
            store = self._stores.setdefault((origin, most, retries), opened)
        return store


class VerifiedHandle:
    """An object of which each read is of the version that was opened, as far as answers say what they are of."""

    def __init__(
        self,
        store: Callable[[int], Any],
        name: str,
        size: int,
        etag: str,
        generation: str | None = None,
        plain: Handle | None = None,
    ) -> None:
        """An object by its etag or time of change, and by the number that GCS gives to each version.

        ``plain`` reads answers that do not say how long they are, which obstore does not take.
        """
        self._plain = plain
        self._store, self._name, self.size = store, name, size
        self._etag, self._generation, self.version = etag, generation, generation or etag
        self.verifies = True
        """False from the first answer on that does not say which version it is of."""

    def read_at(self, nbytes: int, offset: int) -> pa.Buffer:
        import obstore
        from obstore.exceptions import GenericError, PreconditionError

        # Not every web server knows ranges, and a whole file needs none.
        options: dict[str, Any] = {} if (offset, nbytes) == (0, self.size) else {"range": (offset, offset + nbytes)}
        if self._etag.startswith('"'):  # a weak one never matches
            options["if_match"] = self._etag
        try:
            answer = shortly(lambda: obstore.get(self._store(nbytes), self._name, options=options))  # type: ignore[arg-type]
        except PreconditionError:
            raise OtherVersionError from None
        except GenericError as error:
            if self._plain is None or NO_LENGTH not in str(error):
                raise
            self.verifies = False
            return self._plain.read_at(nbytes, offset)
        verified = self._is_same_version(answer.meta)
        # Of a part, the answer says how large the whole is; a whole one that is too short may have been cut off.
        if verified is False or ("range" in options and answer.meta["size"] != self.size):
            raise OtherVersionError
        if verified is None:
            self.verifies = False
        return pa.py_buffer(shortly(answer.bytes))

    def _is_same_version(self, meta: Mapping[str, Any]) -> bool | None:
        """Whether an answer, by what it says of itself, is of the version that was opened; None if it is silent."""
        if self._generation is not None and meta["version"] is not None:
            return bool(meta["version"] == self._generation)
        return is_of_version(self._etag, meta["e_tag"], meta["last_modified"])


def is_of_version(version: str, etag: str | None, changed: datetime) -> bool | None:
    """Whether an answer is of a version, which is an etag or a time of change; None if it does not say so."""
    if version.startswith(('"', "W/")):
        return None if etag is None else etag == version
    try:
        then = parsedate_to_datetime(version)
    except ValueError:
        return None if etag is None or not version else etag == version
    return None if changed == UNKNOWN else format_datetime(then) == format_datetime(changed)


def _split(url: str) -> tuple[str, str]:
    """A URL up to its bucket, container or host, and the name after it."""
    scheme, _, rest = url.partition("://")
    host, _, name = rest.partition("/")
    return f"{scheme}://{host}", name


def _at(origin: str, info: ObjectInfo) -> ObjectInfo:
    """An entry of adlfs, which leaves the account out of URLs, and has one name for all schemes."""
    return info._replace(url=f"{origin}/{_split(info.url)[1]}".rstrip("/"))


def _object_info(origin: str, meta: Mapping[str, Any]) -> ObjectInfo:
    changed = int(meta["last_modified"].timestamp() * 1e6) * 1000
    return ObjectInfo(f"{origin}/{meta['path']}", "file", meta["size"], changed, meta["e_tag"] or "")


def _http_name(url: str) -> str | None:
    """The name of which obstore makes this URL; None if it would make another one."""
    parts = urlsplit(url)
    path = parts.path.removeprefix("/")
    name = unquote(path)
    is_same = not parts.query and not parts.fragment and "?" not in url and path in (quote(name, UNQUOTED), name)
    return name if is_same and "%" not in name else None
