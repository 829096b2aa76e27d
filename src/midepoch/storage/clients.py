"""Clients of object stores behind one protocol: pyarrow for s3:// and gs://, fsspec for every other URL."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa

from midepoch._common.checks import log_once
from midepoch._common.hashing import digest
from midepoch._common.world import aws_endpoint, aws_region
from midepoch.errors import MissingExtraError
from midepoch.storage.redirects import with_allowed_redirects, with_private_headers
from midepoch.storage.retry import ShortReadError, error_kind

BUCKETS = ("s3", "gs")
"""The schemes that pyarrow reads. Their URLs begin with a bucket."""

OPTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "s3": {
        "access_key": ("key", "access_key", "aws_access_key_id"),
        "secret_key": ("secret", "secret_key", "aws_secret_access_key"),
        "session_token": ("token", "session_token", "aws_session_token"),
        "endpoint_override": ("endpoint", "endpoint_url", "endpoint_override"),
        "region": ("region", "region_name"),
        "anonymous": ("anonymous", "anon"),
        "role_arn": ("role_arn",),
        "external_id": ("external_id",),
        "force_virtual_addressing": ("force_virtual_addressing",),
        "proxy_options": ("proxy", "proxy_options"),
        "connect_timeout": ("connect_timeout",),
        "request_timeout": ("request_timeout", "read_timeout"),
        "client": ("client",),
    },
    "gs": {
        "access_token": ("token", "access_token"),
        "credential_token_expiration": ("token_expires", "credential_token_expiration"),
        "target_service_account": ("service_account", "target_service_account"),
        "endpoint_override": ("endpoint", "endpoint_url", "endpoint_override"),
        "project_id": ("project", "project_id"),
        "anonymous": ("anonymous", "anon"),
        "client": ("client",),
    },
}
"""The names that users may write for an option, by scheme and by pyarrow's name for it."""
GCSFS_TOKEN = re.compile(r"^(anon|google_default|cache|cloud|browser)$|\.json$|^\{")
"""What fsspec's client of GCS takes as a token, and pyarrow's would send as one."""
NESTED = ("client_kwargs", "config_kwargs")
FSSPEC_CACHES = (
    "skip_instance_cache",
    "use_listings_cache",
    "listings_expiry_time",
    "max_paths",
    "cache_regions",
    "cache_timeout",
    "default_block_size",
    "default_cache_type",
    "default_fill_cache",
)
"""Options of fsspec's clients of S3 and GCS that say what these cache, and change no byte that is read."""
HTTP = ("http", "https")
HTTP_SECONDS, HTTP_CONNECT_SECONDS = 30.0, 10.0
"""How long a server may send nothing, and how long a connection may take."""
LEAST_BYTES_A_SECOND = 64 << 10
"""An answer that comes more slowly is given up and asked for again, unless storage_options has a timeout."""
GCS_SECONDS = 10  # pyarrow's own limit on retries is 15 minutes
UNREAD = b"\xa5\x5a"
NEVER = datetime(2200, 1, 1, tzinfo=UTC)
VERSIONS = ("etag", "generation", "md5hash", "content_md5", "md5", "sha256", "checksum", "versionid", "uid")
TIMES = ("mtime", "lastmodified", "last_modified", "last-modified", "updated", "modified", "created")


class ObjectInfo(NamedTuple):
    """What a store reports of a URL; ``kind`` is None if nothing is there."""

    url: str
    kind: Literal["file", "folder"] | None
    size: int = 0
    mtime_ns: int = 0
    version: str = ""
    """The etag or the like, if the client reports one."""


class Handle(Protocol):
    """An open object that many threads read by position at once."""

    @property
    def size(self) -> int:
        """The number of its bytes."""

    @property
    def version(self) -> str:
        """A text that differs between versions of the object, such as its etag."""

    @property
    def verifies(self) -> bool:
        """True if each read raises ``OtherVersionError`` unless its bytes are of this version."""

    def read_at(self, nbytes: int, offset: int) -> pa.Buffer:
        """``nbytes`` bytes from an offset on, in one request."""


class Client(Protocol):
    """A connection to a store, for the process that opened it."""

    def stat(self, urls: Sequence[str]) -> list[ObjectInfo]:
        """What is at each of these URLs."""

    def list_objects(self, folder: str, *, deep: bool) -> list[ObjectInfo]:
        """The objects in a folder, or ``deep`` below it."""

    def open(self, url: str) -> Handle:
        """The present version of an object: one request, which reads no content."""


def known_options(scheme: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options under the client's own names. Options of fsspec's clients pass unchecked."""
    if scheme not in OPTIONS:
        return dict(options)
    options = _flattened(options)
    name_of = {alias: name for name, aliases in OPTIONS[scheme].items() for alias in aliases}
    known: dict[str, Any] = {}
    for alias, value in options.items():
        name = name_of.get(alias)
        if name is None and alias in FSSPEC_CACHES:
            log_once(
                f"{alias} in storage_options has no effect: it is for the caches of fsspec's clients, and midepoch "
                f"reads {scheme}:// with its own. To keep blocks on a local disk, pass cache_dir."
            )
            continue
        if name is None:
            raise TypeError(
                f"storage_options has {alias!r}, which {scheme}:// does not know. It knows: "
                f"{', '.join(aliases[0] for aliases in OPTIONS[scheme].values())}."
            )
        if name in known:
            names = ", ".join(OPTIONS[scheme][name])
            raise TypeError(f"storage_options has several of {names}, which mean the same. Pass one.")
        if name == "anonymous" and not isinstance(value, bool):
            raise TypeError(f"{alias} in storage_options must be True or False, not a {type(value).__name__}.")
        if name == "access_token" and value is not None and GCSFS_TOKEN.search(str(value)):
            raise TypeError(
                f"{alias} in storage_options is no access token. For gs:// pass one, or anonymous=True. To use keys in "
                "a file, name it in the environment: GOOGLE_APPLICATION_CREDENTIALS. Others are found without options."
            )
        if value is not None:
            known[name] = value
    if ("access_key" in known) != ("secret_key" in known):
        raise TypeError("storage_options needs both key and secret, or neither.")
    if scheme == "s3" and "endpoint_override" not in known and (endpoint := aws_endpoint()) is not None:
        known["endpoint_override"] = endpoint  # pyarrow does not look for it
    return known


def _flattened(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without the two dicts in which fsspec's client of S3 takes some of them."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        inner = value if name in NESTED and isinstance(value, Mapping) else {name: value}
        for alias, one in inner.items():
            if alias in flat:
                raise TypeError(f"storage_options has {alias!r} twice, also inside of {' or '.join(NESTED)}. Pass one.")
            flat[alias] = one
    return flat


def connect(scheme: str, bucket: str, options: Mapping[str, Any]) -> Client:
    """A client for the URLs of a scheme. Its library is imported here, because most datasets need none."""
    if scheme == "s3":
        return ArrowClient(scheme, *_s3(bucket, dict(options)))
    if scheme == "gs":
        return ArrowClient(scheme, _gs(dict(options)))
    try:
        import fsspec
    except ImportError:
        raise MissingExtraError("fsspec", "remote", f"Reading {scheme}:// URLs") from None
    least_speed = None
    if scheme in HTTP:
        options = with_allowed_redirects(with_private_headers(options))
    if scheme in HTTP and "timeout" not in options and "timeout" not in options.get("client_kwargs", {}):
        options, least_speed = _with_time_outs(options), LEAST_BYTES_A_SECOND
    # fsspec's own cache could return a client that others hold, or one from before a fork.
    return FsspecClient(fsspec.filesystem(scheme, skip_instance_cache=True, **options), least_speed)


def _with_time_outs(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an HTTP client, which waits for five minutes by default."""
    from aiohttp import ClientTimeout

    limits = ClientTimeout(total=None, sock_connect=HTTP_CONNECT_SECONDS, sock_read=HTTP_SECONDS)
    return {**options, "client_kwargs": {"timeout": limits, **options.get("client_kwargs", {})}}


def _s3(bucket: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """A file system to read with, and one to list with."""
    from pyarrow import fs

    endpoint = options.pop("endpoint_override", None)
    if endpoint is not None:
        scheme, separator, host = endpoint.partition("://")
        options |= {"endpoint_override": host, "scheme": scheme} if separator else {"endpoint_override": endpoint}
        options["endpoint_override"] = options["endpoint_override"].rstrip("/")
    elif not (options.get("region") or aws_region()):
        options["region"] = fs.resolve_s3_region(bucket)
    # We retry reads ourselves, without the long waits of the SDK. Only the SDK can retry one page of a listing.
    return (
        fs.S3FileSystem(retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1), **options),
        fs.S3FileSystem(retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=3), **options),
    )


def _gs(options: dict[str, Any]) -> Any:
    from pyarrow import fs

    endpoint = options.pop("endpoint_override", None)
    if endpoint is not None:
        scheme, separator, host = endpoint.partition("://")
        options |= {"endpoint_override": host, "scheme": scheme} if separator else {"endpoint_override": endpoint}
    options["retry_time_limit"] = timedelta(seconds=GCS_SECONDS)
    if "access_token" in options:
        options.setdefault("credential_token_expiration", NEVER)
    return fs.GcsFileSystem(**options)


class ArrowClient:
    """A client of a ``pyarrow.fs`` file system, with another one for listings if that needs one."""

    def __init__(self, scheme: str, system: Any, listing: Any = None) -> None:
        self._prefix, self._system, self._listing = f"{scheme}://", system, listing or system

    def stat(self, urls: Sequence[str]) -> list[ObjectInfo]:
        infos = self._system.get_file_info([url.removeprefix(self._prefix) for url in urls])
        return [self._object_info(info) for info in infos]

    def list_objects(self, folder: str, *, deep: bool) -> list[ObjectInfo]:
        from pyarrow import fs

        selector = fs.FileSelector(folder.removeprefix(self._prefix), recursive=deep)
        infos = map(self._object_info, self._listing.get_file_info(selector))
        return [info for info in infos if info.kind == "file"]

    def open(self, url: str) -> "ArrowHandle":
        file = self._system.open_input_file(url.removeprefix(self._prefix))
        # GCS has two interfaces, whose etags differ. The number of a version is the same in both.
        return ArrowHandle(file, ("generation", *VERSIONS) if self._prefix == "gs://" else VERSIONS)

    def _object_info(self, info: Any) -> ObjectInfo:
        url = self._prefix + info.path
        if info.type.name == "File":
            return ObjectInfo(url, "file", int(info.size), int(info.mtime_ns or 0))
        return ObjectInfo(url, "folder" if info.type.name == "Directory" else None)


class ArrowHandle:
    """An object that pyarrow has open."""

    verifies = False

    def __init__(self, file: pa.NativeFile, versions: Sequence[str]) -> None:
        self._file = file
        self.size = int(file.size())
        metadata = {_text(name).lower(): _text(value) for name, value in (file.metadata() or {}).items()}
        self.version = next((metadata[name] for name in (*versions, "last-modified") if metadata.get(name)), "")

    def read_at(self, nbytes: int, offset: int) -> pa.Buffer:
        """Bytes of a buffer of our own, because pyarrow does not say how many an answer of S3 had.

        An answer that is too short leaves the end of the buffer as it was. A last byte that is as it was may also have
        come so, but not twice, after it was two different ones.
        """
        data = pa.allocate_buffer(nbytes)
        if not nbytes:
            return data
        view = memoryview(data).cast("B")
        for unread in UNREAD:
            view[-1] = unread
            if (got := self._file.get_stream(offset, nbytes).readinto(data)) < nbytes:
                return data.slice(0, got)
            if view[-1] != unread:
                return data
        raise ShortReadError(f"got fewer than {nbytes:,} bytes")


class FsspecClient:
    """A client of an fsspec file system."""

    def __init__(self, system: Any, least_speed: int | None = None) -> None:
        """``least_speed`` is the bytes a second below which a read is given up, for clients that can be told so."""
        self._system, self._least_speed = system, least_speed

    def stat(self, urls: Sequence[str]) -> list[ObjectInfo]:
        self._system.invalidate_cache()
        return [self._stat(url) for url in urls]

    def list_objects(self, folder: str, *, deep: bool) -> list[ObjectInfo]:
        self._system.invalidate_cache()
        path = self._system._strip_protocol(folder)
        entries = self._system.find(path, maxdepth=None if deep else 1, detail=True)
        return [self._object_info(name, info) for name, info in entries.items() if info.get("type", "file") == "file"]

    def open(self, url: str) -> "FsspecHandle":
        self._system.invalidate_cache()
        path = self._system._strip_protocol(url)
        info = self._system.info(path)
        if info.get("size") is None:
            raise ValueError("the store does not report the size of the object, so it cannot be read by position")
        return FsspecHandle(self._system, path, int(info["size"]), _version(info), self._least_speed)

    def _stat(self, url: str) -> ObjectInfo:
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

    def _object_info(self, path: str, info: Mapping[str, Any]) -> ObjectInfo:
        size, url = int(info.get("size") or 0), self._system.unstrip_protocol(path)
        return ObjectInfo(url, "file", size, _change_number(info), _version(info))


class FsspecHandle:
    """An object that fsspec reads by ranges."""

    verifies = False

    def __init__(self, system: Any, path: str, size: int, version: str, least_speed: int | None = None) -> None:
        self._system, self._path, self.size, self.version = system, path, size, version
        self._least_speed = least_speed

    def read_at(self, nbytes: int, offset: int) -> pa.Buffer:
        options = {} if self._least_speed is None else {"timeout": HTTP_SECONDS + nbytes / self._least_speed}
        return pa.py_buffer(self._system.cat_file(self._path, start=offset, end=offset + nbytes, **options))


def _version(info: Mapping[str, Any]) -> str:
    """A text that differs between versions of an object, as far as its entry has one."""
    entry = {name.lower(): value for name, value in info.items()}
    return next((str(entry[name]) for name in (*VERSIONS, *TIMES) if entry.get(name)), "")


def _change_number(info: Mapping[str, Any]) -> int:
    """A number that changes with the object: its time of change, or a digest of what else its entry has."""
    entry = {name.lower(): value for name, value in info.items()}
    time = next((entry[name] for name in TIMES if entry.get(name)), None)
    if isinstance(time, int | float):
        return int(time * 1e9)
    if isinstance(time, datetime):
        return int(time.timestamp() * 1e6) * 1000
    text = str(time or _version(info))
    return int.from_bytes(digest(text.encode(), size=7), "little") if text else 0


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
