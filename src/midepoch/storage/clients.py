"""Clients of object stores: pyarrow's for s3:// and gs://, fsspec's for every other URL, all asked in the same way."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa

from midepoch._common.hashing import digest
from midepoch._common.world import aws_region
from midepoch.errors import MissingExtraError

BUCKETS = ("s3", "gs")
"""The schemes that pyarrow reads, whose URLs begin with a bucket."""

# What users call an option, by what pyarrow calls it.
NAMES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
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
        "request_timeout": ("request_timeout",),
    },
    "gs": {
        "access_token": ("token", "access_token"),
        "credential_token_expiration": ("token_expires", "credential_token_expiration"),
        "target_service_account": ("service_account", "target_service_account"),
        "endpoint_override": ("endpoint", "endpoint_url", "endpoint_override"),
        "project_id": ("project", "project_id"),
        "anonymous": ("anonymous", "anon"),
    },
}
GCS_SECONDS = 10  # what pyarrow itself waits out; its own default is a quarter of an hour
NEVER = datetime(2200, 1, 1, tzinfo=UTC)
VERSIONS = ("etag", "generation", "md5hash", "content_md5", "md5", "sha256", "checksum", "versionid", "uid")
TIMES = ("mtime", "lastmodified", "last_modified", "updated", "modified", "created")


class ObjectInfo(NamedTuple):
    """What a store says of a URL: a kind of None says that there is nothing."""

    url: str
    kind: Literal["file", "folder"] | None
    size: int = 0
    mtime_ns: int = 0


class Handle(Protocol):
    """An object that is open: reading by position, from many threads at once."""

    @property
    def size(self) -> int:
        """Its bytes."""

    @property
    def version(self) -> str:
        """What tells it from what was or will be under the same name."""

    def read_at(self, nbytes: int, offset: int) -> pa.Buffer:
        """Bytes of it, in one request."""


class Client(Protocol):
    """A connection to a store, for the process that made it."""

    def stat(self, urls: Sequence[str]) -> list[ObjectInfo]:
        """What is under these URLs."""

    def list_objects(self, folder: str, *, deep: bool) -> list[ObjectInfo]:
        """The objects in a folder, or ``deep`` below it."""

    def open(self, url: str) -> Handle:
        """An object as it is now: one request, which reads nothing of it."""


def known_options(scheme: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options under the client's own names. Of fsspec's many clients nobody knows all names."""
    if scheme not in NAMES:
        return dict(options)
    names = {alias: name for name, aliases in NAMES[scheme].items() for alias in aliases}
    found: dict[str, Any] = {}
    for alias, value in options.items():
        name = names.get(alias)
        if name is None:
            raise TypeError(
                f"storage_options has {alias!r}, which {scheme}:// does not know. It knows: "
                f"{', '.join(aliases[0] for aliases in NAMES[scheme].values())}."
            )
        if name in found:
            raise TypeError(f"storage_options gives {' and '.join(NAMES[scheme][name])} for one thing. Pass one.")
        if name == "anonymous" and not isinstance(value, bool):
            raise TypeError(f"{alias} in storage_options must be True or False, not a {type(value).__name__}.")
        if value is not None:
            found[name] = value
    if ("access_key" in found) != ("secret_key" in found):
        raise TypeError("storage_options needs both key and secret, or neither.")
    return found


def connect(scheme: str, bucket: str, options: Mapping[str, Any]) -> Client:
    """A client for the URLs of a scheme. It is imported here, because most data sets need none."""
    if scheme == "s3":
        return ArrowClient(scheme, *_s3(bucket, dict(options)))
    if scheme == "gs":
        return ArrowClient(scheme, _gs(dict(options)))
    try:
        import fsspec
    except ImportError:
        raise MissingExtraError("fsspec", "remote", f"Reading {scheme}:// URLs") from None
    # A client that others hold, or one of before a fork, would be found in fsspec's own list of them.
    return FsspecClient(fsspec.filesystem(scheme, skip_instance_cache=True, **options))


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
    # Reads are tried again by us, without the long waits of the SDK. Of a listing, only the SDK can repeat one page.
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
    """A ``pyarrow.fs`` file system, and perhaps another one to list with."""

    def __init__(self, scheme: str, system: Any, listing: Any = None) -> None:
        self._above, self._system, self._listing = f"{scheme}://", system, listing or system

    def stat(self, urls: Sequence[str]) -> list[ObjectInfo]:
        """What is under these URLs, asked side by side."""
        infos = self._system.get_file_info([url.removeprefix(self._above) for url in urls])
        return [self._object_info(info) for info in infos]

    def list_objects(self, folder: str, *, deep: bool) -> list[ObjectInfo]:
        """The objects in a folder, or ``deep`` below it."""
        from pyarrow import fs

        selector = fs.FileSelector(folder.removeprefix(self._above), recursive=deep)
        found = map(self._object_info, self._listing.get_file_info(selector))
        return [one for one in found if one.kind == "file"]

    def open(self, url: str) -> "ArrowHandle":
        """The object: its head is asked for."""
        return ArrowHandle(self._system.open_input_file(url.removeprefix(self._above)))

    def _object_info(self, info: Any) -> ObjectInfo:
        url = self._above + info.path
        if info.type.name == "File":
            return ObjectInfo(url, "file", int(info.size), int(info.mtime_ns or 0))
        return ObjectInfo(url, "folder" if info.type.name == "Directory" else None)


class ArrowHandle:
    """An object that pyarrow has open."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self.size = int(file.size())
        told = {_text(name).lower(): _text(value) for name, value in (file.metadata() or {}).items()}
        self.version = next((told[name] for name in (*VERSIONS, "last-modified") if told.get(name)), "")

    def read_at(self, nbytes: int, offset: int) -> pa.Buffer:
        """Bytes of it, in one request."""
        return pa.py_buffer(self._file.read_at(nbytes, offset))


class FsspecClient:
    """An fsspec file system."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def stat(self, urls: Sequence[str]) -> list[ObjectInfo]:
        """What is under these URLs, one after the other."""
        self._system.invalidate_cache()
        return [self._stat(url) for url in urls]

    def list_objects(self, folder: str, *, deep: bool) -> list[ObjectInfo]:
        """The objects in a folder, or ``deep`` below it."""
        self._system.invalidate_cache()
        path = self._system._strip_protocol(folder)
        found = self._system.find(path, maxdepth=None if deep else 1, detail=True)
        return [self._object_info(one, info) for one, info in found.items() if info.get("type", "file") == "file"]

    def open(self, url: str) -> "FsspecHandle":
        """The object: its entry is looked up."""
        self._system.invalidate_cache()
        path = self._system._strip_protocol(url)
        info = self._system.info(path)
        if info.get("size") is None:
            raise ValueError("the store does not tell the size of the object, so it cannot be read by position")
        return FsspecHandle(self._system, path, int(info["size"]), _version(info))

    def _stat(self, url: str) -> ObjectInfo:
        path = self._system._strip_protocol(url)
        try:
            info = self._system.info(path)
        except FileNotFoundError:
            return ObjectInfo(url, None)
        if info.get("type") == "directory":
            return ObjectInfo(self._system.unstrip_protocol(path), "folder")
        return self._object_info(path, info)

    def _object_info(self, path: str, info: Mapping[str, Any]) -> ObjectInfo:
        return ObjectInfo(self._system.unstrip_protocol(path), "file", int(info.get("size") or 0), _moment(info))


class FsspecHandle:
    """An object that fsspec reads by ranges."""

    def __init__(self, system: Any, path: str, size: int, version: str) -> None:
        self._system, self._path, self.size, self.version = system, path, size, version

    def read_at(self, nbytes: int, offset: int) -> pa.Buffer:
        """Bytes of it, in one request."""
        return pa.py_buffer(self._system.cat_file(self._path, start=offset, end=offset + nbytes))


def _version(info: Mapping[str, Any]) -> str:
    """What tells one version of an object from another, as far as its entry says."""
    told = {name.lower(): value for name, value in info.items()}
    return next((str(told[name]) for name in (*VERSIONS, *TIMES) if told.get(name)), "")


def _moment(info: Mapping[str, Any]) -> int:
    """A number that changes when the object does: its time of change, or made of what else its entry says."""
    told = {name.lower(): value for name, value in info.items()}
    time = next((told[name] for name in TIMES if told.get(name)), None)
    if isinstance(time, int | float):
        return int(time * 1e9)
    if isinstance(time, datetime):
        return int(time.timestamp() * 1e6) * 1000
    text = str(time or _version(info))
    return int.from_bytes(digest(text.encode(), size=7), "little") if text else 0


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
