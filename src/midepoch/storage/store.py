"""An object store and the options that reach it: requests with retries, errors without secrets."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock, local
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from midepoch._common.hashing import digest
from midepoch._common.once import log_once
from midepoch._common.thread_clock import REQUESTS
from midepoch._common.world import aws_endpoint, azure_settings
from midepoch.errors import MidepochError, NoDataError, StoreError
from midepoch.storage.retry import ErrorKind, OtherVersionError, RetryPolicy, ShortReadError, redacted, with_retries

T = TypeVar("T")
A = TypeVar("A")
BUCKETS = ("s3", "gs")
"""The schemes whose URLs begin with a bucket."""
AZURE = ("abfs", "abfss", "az")
HTTP = ("http", "https")

COMMON: Mapping[str, tuple[str, ...]] = {
    "endpoint": ("endpoint_url", "endpoint_override"),
    "anonymous": ("anon",),
    "proxy": (),
    "connect_timeout": (),
    "request_timeout": ("read_timeout",),
}
S3: Mapping[str, tuple[str, ...]] = {
    "key": ("access_key", "aws_access_key_id"),
    "secret": ("secret_key", "aws_secret_access_key"),
    "token": ("session_token", "aws_session_token"),
    "region": ("region_name",),
    "role_arn": (),
    "external_id": (),
    "force_virtual_addressing": (),
    **COMMON,
}
GS = {"token": ("access_token",), "token_expires": ("credential_token_expiration",), **COMMON}
AZ: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("account_name", "account_key", "sas_token", "tenant_id", "client_id", "client_secret"), ()),
    **COMMON,
    "endpoint": (*COMMON["endpoint"], "account_host"),
}
OPTIONS = {"s3": S3, "gs": GS, **dict.fromkeys(AZURE, AZ)}
"""The options of the stores that obstore reads, by scheme, each with the other names that users may write."""
NESTED = ("client_kwargs", "config_kwargs")
"""The dicts in which fsspec's client of S3 takes some options."""
CACHES = re.compile(r"cache|listings_expiry_time|max_paths|default_block_size")
"""Options of fsspec's clients of S3 and GCS that say what these cache, and change no byte that is read."""
GCSFS_TOKEN = re.compile(r"^(anon|google_default|cache|cloud|browser)$|\.json$|^\{")
"""What fsspec's client of GCS takes as a token, and ours would send as one."""
PLACES = re.compile(
    r"^(account|account_name|account_host|host|hostname|port|user|username|drive|repo|org|zone)$|endpoint|url$",
    re.IGNORECASE,
)
"""The names under which clients take the address of a store, or the account in it."""
SIDE_BY_SIDE = 4
"""How many requests one fetch sends at a time. Several threads fetch."""


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

    def read_at(self, nbytes: int, offset: int) -> pa.Buffer:
        """``nbytes`` bytes from an offset on; ``OtherVersionError`` unless they are of this version."""


class Client(Protocol):
    """A connection to a store, for the process that opened it."""

    def stat(self, url: str) -> ObjectInfo:
        """What is at a URL."""

    def list_objects(self, folder: str, *, deep: bool) -> list[ObjectInfo]:
        """The objects in a folder, or ``deep`` below it."""

    def open(self, url: str) -> Handle:
        """The present version of an object: one request, which reads no content."""


def connect(scheme: str, bucket: str, options: Mapping[str, Any]) -> Client:
    """A client for the URLs of a scheme. Its library is imported here, because most datasets need none."""
    from midepoch.storage.fsspec import FsspecClient
    from midepoch.storage.obstore import ObstoreClient, http_client

    if scheme in OPTIONS:
        return ObstoreClient(scheme, bucket, options)
    return http_client(scheme, options) if scheme in HTTP else FsspecClient(scheme, options)


def known_options(scheme: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a store that obstore reads under their first names. Those of fsspec's clients pass unchecked."""
    if scheme not in OPTIONS:
        return dict(options)
    name_of = {alias: name for name, aliases in OPTIONS[scheme].items() for alias in (name, *aliases)}
    known: dict[str, Any] = {}
    for alias, value in _flattened(options):
        name = name_of.get(alias)
        if name is None and CACHES.search(alias):
            log_once(
                f"{alias} in storage_options has no effect: it is for the caches of fsspec's clients, and midepoch "
                f"reads {scheme}:// with its own. To keep blocks on a local disk, pass cache_dir."
            )
            continue
        if name is None:
            raise TypeError(
                f"storage_options has {alias!r}, which {scheme}:// does not know. It knows: "
                f"{', '.join(OPTIONS[scheme])}."
            )
        if name in known:
            names = ", ".join((name, *OPTIONS[scheme][name]))
            raise TypeError(f"storage_options has several of {names}, which mean the same. Pass one.")
        if value is not None:
            known[name] = value
    _check_values(scheme, known)
    if scheme == "s3" and "endpoint" not in known and (endpoint := aws_endpoint()) is not None:
        known["endpoint"] = endpoint
    return known


def _flattened(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The options, also those in the dicts in which fsspec's client of S3 takes some of them."""
    for name, value in options.items():
        yield from value.items() if name in NESTED and isinstance(value, Mapping) else [(name, value)]


def _check_values(scheme: str, known: Mapping[str, Any]) -> None:
    """Raise if options have values that no client takes."""
    for name in ("anonymous", "force_virtual_addressing"):
        if not isinstance(known.get(name, False), bool):
            kind = type(known[name]).__name__
            raise TypeError(f"{name} in storage_options must be True or False, not a {kind}.")
    if not isinstance(known.get("proxy", ""), str):
        raise TypeError("proxy in storage_options must be a URL, such as 'http://host:port'.")
    if ("key" in known) != ("secret" in known):
        raise TypeError("storage_options needs both key and secret, or neither.")
    if scheme == "gs" and GCSFS_TOKEN.search(str(known.get("token", ""))):
        raise TypeError(
            "token in storage_options is no access token. For gs:// pass one, or anonymous=True. To use keys in a "
            "file, name it in the environment: GOOGLE_APPLICATION_CREDENTIALS. Others are found without options."
        )


class Store:
    """A store and its options. It can be pickled; it never shows its options in a message or a repr."""

    __slots__ = ("_clients", "_helpers", "_locks", "_options", "_policy", "bucket", "retries", "scheme")

    def __init__(self, url: str, options: Mapping[str, Any] | None = None, policy: RetryPolicy | None = None) -> None:
        """The store that a URL lies in."""
        scheme, _, rest = url.partition("://")
        self.scheme = scheme.lower()
        self.bucket = rest.split("/")[0] if self.scheme in BUCKETS else ""
        if self.scheme in BUCKETS and not self.bucket:
            raise ValueError(f"{url} names no bucket; write {self.scheme}://bucket/folder.")
        if not isinstance(options, Mapping | None):
            raise TypeError(f"storage_options must be a dict, not a {type(options).__name__}.")
        self._options = known_options(self.scheme, options or {})
        self._policy = policy or RetryPolicy()
        self._clients: dict[int, Client] = {}
        self._locks: dict[int, Lock] = {}
        self._helpers = local()
        self.retries = 0
        """How many requests were tried again, in this process."""

    def __repr__(self) -> str:
        return f"Store({self.scheme}://{self.bucket})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (f"{self.scheme}://{self.bucket}", self._options, self._policy)

    @property
    def survives_fork(self) -> bool:
        """True for a store in memory: a forked process has its objects, a spawned one would not."""
        return self.scheme == "memory"

    @property
    def identity(self) -> str:
        """A digest that differs between stores with the same URLs: it covers endpoints and accounts, but no secrets."""
        options = {**azure_settings(), **self._options} if self.scheme in AZURE else self._options
        place = "\n".join(f"{name}={value}" for name, value in sorted(_places(options)))
        return digest(f"{self.scheme}\n{place}".encode()).hex()

    def stat(self, urls: Sequence[str]) -> list[ObjectInfo]:
        """What is under these URLs. If a request fails, only that one is tried again, and an error names its URL."""
        return self.side_by_side(lambda url: self.request(lambda client: client.stat(url), url), urls)

    def list_objects(self, folder: str, *, deep: bool = True) -> list[ObjectInfo]:
        """The objects in a folder, or ``deep`` below it."""
        return self.request(lambda client: client.list_objects(folder, deep=deep), folder)

    def open(self, url: str) -> Handle:
        """The present version of an object."""
        return self.request(lambda client: client.open(url), url)

    def read(self, url: str, check_size: Callable[[int], None]) -> bytes:
        """All bytes of an object, of one version. ``check_size`` raises if its size is too much, before it is read."""

        def whole(client: Client) -> bytes:
            handle = client.open(url)
            check_size(handle.size)
            try:
                return bytes(read_exactly(handle, handle.size, 0))
            except OtherVersionError:
                raise ShortReadError("the object was changed meanwhile") from None

        return self.request(whole, url)

    def request(self, action: Callable[[Client], T], url: str) -> T:
        """Run a request of the client, with retries; an error names the URL."""
        with REQUESTS.running():
            return with_retries(
                lambda: action(self._client()),
                lambda kind, text: _error(url, kind, text),
                self.redact,
                self._policy,
                getattr(self._helpers, "stop", None),
                self._note_retry,
            )

    def _note_retry(self) -> None:
        self.retries += 1

    def stop_with(self, stop: Event | None) -> None:
        """Let requests of the calling thread, and those that it sends side by side, not be retried after ``stop``."""
        self._helpers.stop = stop

    def redact(self, text: str) -> str:
        """A client's text, without the values of the options and other secrets."""
        return redacted(text, self._options)

    def side_by_side(self, action: Callable[[A], T], arguments: Sequence[A]) -> list[T]:
        """The results of an action that sends requests, for each of these arguments, in their order.

        Every thread that calls this has helpers of its own, so it never waits for the requests of another.
        """
        if len(arguments) < 2:
            return [action(argument) for argument in arguments]
        process, pool = getattr(self._helpers, "of_process", (0, None))
        if pool is None or process != os.getpid():  # threads do not survive a fork
            stop = getattr(self._helpers, "stop", None)
            pool = ThreadPoolExecutor(SIDE_BY_SIDE, "midepoch-requests", self.stop_with, (stop,))
            self._helpers.of_process = os.getpid(), pool
        with REQUESTS.running():
            return list(pool.map(action, arguments))

    def _client(self) -> Client:
        """This process's client. One from before a fork is kept but not used, because closing it here could hang.

        Each process has a lock of its own: one from before a fork may be held by a thread that does not exist here.
        """
        process = os.getpid()
        client = self._clients.get(process)
        if client is None:
            with self._locks.setdefault(process, Lock()):
                client = self._clients.get(process)
                if client is None:
                    client = self._clients[process] = connect(self.scheme, self.bucket, self._options)
        return client


def read_exactly(handle: Handle, nbytes: int, offset: int) -> pa.Buffer:
    """``nbytes`` bytes of an open object from an offset on. Raises if fewer come."""
    data = handle.read_at(nbytes, offset) if nbytes else pa.py_buffer(b"")
    if data.size != nbytes:
        raise ShortReadError(f"got {data.size:,} of {nbytes:,} bytes")
    return data


def _places(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The options that say where a store is or whose it is. fsspec's clients take some of them in a dict."""
    for name, value in options.items():
        if isinstance(value, Mapping) and name.endswith("_kwargs"):
            yield from _places(value)
        elif PLACES.search(name) and isinstance(value, str | int):
            yield name, str(value)


def _error(url: str, kind: ErrorKind, text: str) -> MidepochError:
    if kind == "gone":
        return NoDataError(f"{url} does not exist in the store. Check the bucket and the name ({text}).")
    if kind == "denied":
        return StoreError(
            f"The store refuses access to {url}. Check storage_options and the permissions of the key ({text})."
        )
    if kind == "temporary":
        return StoreError(
            f"The store does not answer for {url}: {text}. Check the endpoint and the network, and start again: from a "
            "checkpoint, if there is one."
        )
    return StoreError(f"{url} cannot be read from the store: {text}.")
