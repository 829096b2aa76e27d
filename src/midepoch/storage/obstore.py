"""The client of s3, gs and az: obstore, one request a range, and every answer says of which version it is.

An object that is replaced and restored between two requests is noticed, and so are answers that are too short. Answers
that come too slowly are given up.
"""

import contextlib
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from email.utils import format_datetime
from typing import Any, TypeVar

import pyarrow as pa

from midepoch.errors import StoreError
from midepoch.storage.fsspec import HTTP_CONNECT_SECONDS, HTTP_SECONDS, LEAST_BYTES_A_SECOND
from midepoch.storage.options import OpenStore, opener
from midepoch.storage.retry import OtherVersionError, error_kind
from midepoch.storage.store import Handle, ObjectInfo

T = TypeVar("T")
LEAST_CLASS, CLASS_FACTOR = 1 << 20, 8
"""Requests of up to 1 MiB, 8 MiB, 64 MiB and so on have a time limit each, because obstore has one for a connection."""
LONG_SECONDS = 86_400.0
PAGE_RETRIES = 2
"""How often obstore tries one page of a listing again. We retry all other requests ourselves."""
WHOLE_NAME = re.compile(r"(?!.*(?:^|/)\.{0,2}(?:/|$))[^\x00-\x1f\x7f]+")
"""The names that obstore takes as they are: no part is empty, or one or two dots."""
ADDRESS = re.compile(r" (https?://)(?:[^/\s@]*@)?([^/\s]+)\S* in \S+ - ")


class Stores:
    """The stores of obstore by the host or bucket of a URL, and by about how many bytes a request asks for."""

    def __init__(self, open_store: OpenStore, options: Mapping[str, Any]) -> None:
        self._open, self._options = open_store, options
        self._opened: dict[tuple[str, int, int], Any] = {}

    def at(self, url: str, nbytes: int = 0, retries: int = 0) -> Any:
        """The store for such requests. Threads may open one twice, and then one of the two is dropped."""
        origin, most = url.split("/")[2], LEAST_CLASS
        while most < nbytes:
            most *= CLASS_FACTOR
        key = origin, most, retries
        if key not in self._opened:
            seconds = HTTP_SECONDS + most / LEAST_BYTES_A_SECOND
            is_plain = (self._options.get("endpoint") or url).startswith("http://")
            limits = {"allow_http": is_plain, **_client_options(seconds, self._options)}
            opened = self._open(url, client_options=limits, retry_config={"max_retries": retries})
            self._opened.setdefault(key, opened)
        return self._opened[key]


class ObstoreClient:
    """A client of the objects in a bucket or container."""

    def __init__(self, scheme: str, bucket: str, options: Mapping[str, Any]) -> None:
        self._stores = Stores(opener(scheme, bucket, options), options)

    def stat(self, url: str) -> ObjectInfo:
        """What is at a URL: an object, names that begin with it and a slash, or nothing."""
        import obstore
        from obstore.exceptions import GenericError, InvalidPathError

        store, name = self._stores.at(url), _name(url)
        if name:
            with contextlib.suppress(FileNotFoundError):
                return _object_info(url, shortly(lambda: obstore.head(store, name)))
        try:
            found = shortly(lambda: next(iter(obstore.list(store, name or None, chunk_size=1)), ()))
        except InvalidPathError:  # there is a name that obstore does not take
            return ObjectInfo(url, "folder")
        except (GenericError, FileNotFoundError) as error:
            if error_kind(error) != "gone":
                raise
            return ObjectInfo(url, None)  # there is no such bucket
        return ObjectInfo(url, "folder" if found or not name else None)

    def list_objects(self, folder: str, *, deep: bool) -> list[ObjectInfo]:
        import obstore
        from obstore.exceptions import InvalidPathError

        store, name = self._stores.at(folder, retries=PAGE_RETRIES), _name(folder)
        try:
            if deep:
                found = [meta for page in shortly(lambda: [*obstore.list(store, name or None)]) for meta in page]
                folders = {meta["path"].rpartition("/")[0] for meta in found}
            else:
                listed = shortly(lambda: obstore.list_with_delimiter(store, name or None))
                found, folders = [*listed["objects"]], {*listed["common_prefixes"]}
        except (InvalidPathError, ValueError) as error:
            raise StoreError(
                f"{folder} cannot be listed, because a part of the name of one of its objects is empty, or is dots: "
                f"{error}. Rename that object, or pass the URLs of the others as a list."
            ) from None
        marks = {name, *folders}
        return [
            _object_info(folder, meta)
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

    def open(self, url: str, size: int | None = None) -> Handle:
        import obstore

        name = _name(url)
        meta = shortly(lambda: obstore.head(self._stores.at(url), name))
        return ObstoreHandle(lambda nbytes: self._stores.at(url, nbytes), name, meta["size"], version_of(meta))


class ObstoreHandle:
    """An object of which each read is of the version that was opened, because its answer says so."""

    def __init__(self, store: Callable[[int], Any], name: str, size: int, version: str) -> None:
        self._store, self._name = store, name
        self.size, self.version = size, version

    def read_at(self, nbytes: int, offset: int) -> pa.Buffer:
        import obstore
        from obstore.exceptions import PreconditionError

        options: Any = {"range": (offset, offset + nbytes)}
        if self.version.startswith('"'):  # a weak etag never matches
            options["if_match"] = self.version
        try:
            answer = shortly(lambda: obstore.get(self._store(nbytes), self._name, options=options))
        except PreconditionError:
            raise OtherVersionError from None
        # The answer says how large the whole is.
        if (answer.meta["size"], version_of(answer.meta)) != (self.size, self.version):
            raise OtherVersionError
        return pa.py_buffer(shortly(answer.bytes))


def version_of(meta: Mapping[str, Any]) -> str:
    """The etag of an object, or its time of change."""
    return meta["e_tag"] or format_datetime(meta["last_modified"])


def _client_options(seconds: float, options: Mapping[str, Any]) -> dict[str, Any]:
    """Time limits and the like as obstore takes them.

    If the user sets a limit, it is on silence, and slow answers are not given up.
    """
    silence = options.get("request_timeout")
    proxy = options.get("proxy")
    return {
        "connect_timeout": timedelta(seconds=options.get("connect_timeout") or HTTP_CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=silence or HTTP_SECONDS),
        "timeout": timedelta(seconds=LONG_SECONDS if silence else seconds),
        **({"proxy_url": proxy} if proxy else {}),
    }


def _name(url: str) -> str:
    """The name of an object or folder, without its bucket."""
    name = url.partition("://")[2].partition("/")[2]
    if name and not WHOLE_NAME.fullmatch(name):
        raise StoreError(
            f"{url} cannot be read from the store: a part of its path is empty, or is one or two dots. Copy the object "
            "to a path without such parts."
        )
    return name


def _object_info(url: str, meta: Mapping[str, Any]) -> ObjectInfo:
    """An entry of an object beside or below a URL."""
    changed = int(meta["last_modified"].timestamp() * 1e6) * 1000
    return ObjectInfo(
        f"{'/'.join(url.split('/')[:3])}/{meta['path']}", "file", meta["size"], changed, meta["e_tag"] or ""
    )


def shortly(action: Callable[[], T]) -> T:
    """Do something. Of its errors, the paths and queries of addresses and the inner values at the end are left out."""
    from obstore.exceptions import BaseError

    try:
        return action()
    except (BaseError, FileNotFoundError) as error:
        raise type(error)(ADDRESS.sub(r" at \1\2: ", str(error).partition("\n\nDebug source:")[0])) from None
