"""The client of web servers and of all other stores: fsspec. It returns bytes alone, without their version.

So web servers are read through its session, whose answers say their version. Others are asked for it after each read.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from midepoch._common.checks import log_once
from midepoch._common.hashing import digest
from midepoch.errors import NotAllowedError, needs
from midepoch.storage.hub import PARTIAL, PINNED, HubHandle
from midepoch.storage.options import HTTP
from midepoch.storage.retry import OtherVersionError, error_kind
from midepoch.storage.store import Handle, ObjectInfo

HTTP_SECONDS, HTTP_CONNECT_SECONDS = 30.0, 10.0
"""How long a server may send nothing, and how long a connection may take."""
LEAST_BYTES_A_SECOND = 64 << 10
"""An answer that comes more slowly is given up and asked for again, unless storage_options has a timeout."""
VERSIONS = ("etag", "generation", "md5hash", "content_md5", "md5", "sha256", "checksum", "versionid", "uid")
TIMES = ("mtime", "lastmodified", "last_modified", "last-modified", "updated", "modified", "created")
DATE = re.compile(r"\w+, \d")
CHANGED = 412
HARMLESS = frozenset(("accept", "accept-language", "referer", "user-agent"))
STRIPPED = frozenset(("authorization", "cookie", "proxy-authorization"))
"""The headers that every client keeps from other hosts."""


class FsspecClient:
    """A client of an fsspec file system."""

    def __init__(self, scheme: str, options: Mapping[str, Any]) -> None:
        with needs("fsspec", "remote", f"Reading {scheme}:// URLs"):
            import fsspec
        self._is_web, self._least_speed = scheme in HTTP, 0
        if self._is_web:
            options = _with_checked_redirects(options)
            if "timeout" not in options and "timeout" not in options.get("client_kwargs", {}):
                options, self._least_speed = _with_time_outs(options), LEAST_BYTES_A_SECOND
        self._options = options
        # fsspec's own cache could return a client that others hold, or one from before a fork.
        self._system = fsspec.filesystem(scheme, skip_instance_cache=True, **options)

    def stat(self, url: str) -> ObjectInfo:
        path = self._system._strip_protocol(url)
        try:
            info = self._system.info(path)
        except FileNotFoundError as error:
            if error_kind(error) != "gone":
                raise
            return ObjectInfo(url, None)
        # A web server lists the files of a folder on a page that links to them.
        is_page = info.get("mimetype") == "text/html" and "." not in url.rpartition("/")[2]
        if info.get("type") == "directory" or is_page:
            return ObjectInfo(self._system.unstrip_protocol(path), "folder")
        return self._object_info(path, info)

    def list_objects(self, folder: str, *, deep: bool) -> list[ObjectInfo]:
        if not PINNED.match(folder):
            self._system.invalidate_cache()
        path = self._system._strip_protocol(folder)
        entries = self._system.find(path, maxdepth=None if deep else 1, detail=True)
        return [self._object_info(name, info) for name, info in entries.items() if info.get("type", "file") == "file"]

    def open(self, url: str, size: int | None = None) -> Handle:
        if PINNED.match(url):
            known = self._system.info(self._system._strip_protocol(url))["size"] if size is None else size
            return HubHandle(url, int(known), self._options)
        if self._is_web:
            return HttpHandle(self._system, url, self._least_speed)
        return FsspecHandle(self._system, url)

    def _object_info(self, path: str, info: Mapping[str, Any]) -> ObjectInfo:
        size, url = int(info.get("size") or 0), self._system.unstrip_protocol(path)
        return ObjectInfo(url, "file", size, change_number(info), version_of(info))


class FsspecHandle:
    """An object that fsspec reads by ranges. After each, it is asked whether it is still the same version."""

    def __init__(self, system: Any, url: str) -> None:
        self._system, self._path = system, system._strip_protocol(url)
        self.size, self.version = self._now()

    def read_at(self, nbytes: int, offset: int) -> pa.Buffer:
        data = self._system.cat_file(self._path, start=offset, end=offset + nbytes)
        self.check()
        return pa.py_buffer(data)

    def check(self) -> None:
        """Raise ``OtherVersionError`` unless the object still is the version that was opened."""
        if self._now() != (self.size, self.version):
            raise OtherVersionError

    def _now(self) -> tuple[int, str]:
        self._system.invalidate_cache()
        info = self._system.info(self._path)
        if info.get("size") is None:
            raise ValueError("the store does not report the size of the object, so it cannot be read by position")
        return int(info["size"]), version_of(info)


class HttpHandle(FsspecHandle):
    """A file of a web server. An answer says of which version it is; if it does not, the server is asked after it."""

    def __init__(self, system: Any, url: str, least_speed: int) -> None:
        """``least_speed`` is the bytes a second below which a read is given up; 0 if the options have a time limit."""
        super().__init__(system, url)
        self._least_speed = least_speed

    def read_at(self, nbytes: int, offset: int) -> pa.Buffer:
        from fsspec.asyn import sync

        data, version = sync(self._system.loop, self._get, nbytes, offset)
        if version is None:
            self.check()
        elif version != self.version:
            raise OtherVersionError
        return pa.py_buffer(data)

    async def _get(self, nbytes: int, offset: int) -> tuple[bytes, str | None]:
        """The bytes, and the version of the file as far as the answer says it."""
        from aiohttp import ClientTimeout

        session, options = await self._system.set_session(), dict(self._system.kwargs)
        if self._least_speed:
            options["timeout"] = ClientTimeout(HTTP_SECONDS + nbytes / self._least_speed)
        headers = {**options.pop("headers", {}), "Accept-Encoding": "identity"}
        place = f"{offset}-{offset + nbytes - 1}"
        if (offset, nbytes) != (0, self.size):  # not every web server knows ranges, and a whole file needs none
            headers["Range"] = f"bytes={place}"
        if self.version.startswith('"'):  # a weak etag never matches
            headers["If-Match"] = self.version
        async with session.get(self._system.encode_url(self._path), headers=headers, **options) as answer:
            if answer.status == CHANGED:
                raise OtherVersionError
            answer.raise_for_status()
            data = await answer.read()
        if answer.status != PARTIAL:
            if "Range" in headers:
                log_once(
                    f"{origin_of(self._path)} sends whole files where parts are asked for, so each block that is read "
                    "costs a download of its file. Copy the files to this machine, or use a server that knows ranges."
                )
            data = data[offset : offset + nbytes]
        elif answer.headers.get("Content-Range") not in (f"bytes {place}/{self.size}", f"bytes {place}/*"):
            raise OtherVersionError
        return data, answer.headers.get("Last-Modified" if DATE.match(self.version) else "ETag")


def version_of(info: Mapping[str, Any]) -> str:
    """A text that differs between versions of an object, as far as its entry has one."""
    entry = {name.lower(): value for name, value in info.items()}
    return next((str(entry[name]) for name in (*VERSIONS, *TIMES) if entry.get(name)), "")


def change_number(info: Mapping[str, Any]) -> int:
    """A number that changes with the object: its time of change, or a digest of what else its entry has."""
    entry = {name.lower(): value for name, value in info.items()}
    time = next((entry[name] for name in TIMES if entry.get(name)), None)
    if isinstance(time, int | float):
        return int(time * 1e9)
    if isinstance(time, datetime):
        return int(time.timestamp() * 1e6) * 1000
    text = str(time or version_of(info))
    return int.from_bytes(digest(text.encode(), size=7), "little") if text else 0


def _with_time_outs(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an HTTP client, which waits for five minutes by default."""
    from aiohttp import ClientTimeout

    limits = ClientTimeout(total=None, sock_connect=HTTP_CONNECT_SECONDS, sock_read=HTTP_SECONDS)
    return {**options, "client_kwargs": {"timeout": limits, **options.get("client_kwargs", {})}}


def headers_of(options: Mapping[str, Any]) -> dict[str, str]:
    """The headers in the options of an HTTP client: for the session, and for each request."""
    inner = options.get("client_kwargs", {})
    return {str(name): str(value) for name, value in {**inner.get("headers", {}), **options.get("headers", {})}.items()}


def only_for_origin(names: Iterable[str]) -> list[str]:
    """Those of the headers that other hosts must not get, and that clients would send to them."""
    return [name for name in names if name.lower() not in HARMLESS | STRIPPED]


class AllowedRedirects:
    """The origins to which the servers of URLs in rows may redirect."""

    OPTION = "redirects_to"
    """The option of a store that holds it. Only clients of fsspec know it."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origins)

    def check(self, url: Any, target: str | None) -> None:
        """Raise if the answer of a server under a URL leads to another origin than these."""
        if target not in self._origins:
            raise NotAllowedError(
                f"A row names the URL {url}, which redirects to {target or 'nowhere'}. If that is trusted too, add it "
                "to allow_urls."
            )


def origin_of(url: str) -> str:
    """The scheme and the host of a URL, in lower case."""
    parts = urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}"


def _with_checked_redirects(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an HTTP client, which follows only the redirects that ``AllowedRedirects`` allows.

    On the way to another host it drops the headers: they often hold keys.
    """
    allowed: AllowedRedirects | None = options.get(AllowedRedirects.OPTION)
    others = {name: value for name, value in options.items() if name != AllowedRedirects.OPTION}
    names = only_for_origin(headers_of(options))
    if allowed is None and not names:
        return others
    from aiohttp import TraceConfig

    async def on_redirect(_: Any, __: Any, redirect: Any) -> None:
        target = _origin_of_target(redirect.url, redirect.response.headers)
        if allowed is not None:
            allowed.check(redirect.url, target)
        if target != origin_of(str(redirect.url)):
            for name in names:
                redirect.headers.popall(name, None)

    traces, inner = TraceConfig(), options.get("client_kwargs", {})
    traces.on_request_redirect.append(on_redirect)
    return {**others, "client_kwargs": {**inner, "trace_configs": [*inner.get("trace_configs", ()), traces]}}


def _origin_of_target(url: Any, headers: Mapping[str, str]) -> str | None:
    """The origin of the URL to which a redirect leads, as the client understands it."""
    from yarl import URL

    try:
        return origin_of(str(url.join(URL(headers.get("Location") or headers.get("URI") or ""))))
    except ValueError:
        return None
