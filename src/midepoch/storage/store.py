"""An object store and the options that reach it: requests with retries, errors without secrets."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock, local
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from midepoch._common.hashing import digest
from midepoch._common.jobs import REQUESTS
from midepoch._common.world import azure_settings
from midepoch.errors import MidepochError, NoDataError, StoreError
from midepoch.storage.options import AZURE, BUCKETS, OPTIONS, known_options
from midepoch.storage.retry import ErrorKind, OtherVersionError, RetryPolicy, ShortReadError, redacted, with_retries

T = TypeVar("T")
A = TypeVar("A")
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

    def open(self, url: str, size: int | None = None) -> Handle:
        """The present version of an object: one request, which reads no content.

        A file that cannot change needs none if its ``size`` is known.
        """


def connect(scheme: str, bucket: str, options: Mapping[str, Any]) -> Client:
    """A client for the URLs of a scheme. Its library is imported here, because most datasets need none."""
    from midepoch.storage.fsspec import FsspecClient
    from midepoch.storage.obstore import ObstoreClient

    return ObstoreClient(scheme, bucket, options) if scheme in OPTIONS else FsspecClient(scheme, options)


class Store:
    """A store and its options. It can be pickled; it never shows its options in a message or a repr."""

    __slots__ = ("_clients", "_locks", "_options", "_policy", "_waiting", "bucket", "retries", "scheme")

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
        self._waiting = local()
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

    def open(self, url: str, size: int | None = None) -> Handle:
        """The present version of an object, of which a listing may have said the size."""
        return self.request(lambda client: client.open(url, size), url)

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
                getattr(self._waiting, "stop", None),
                self._note_retry,
            )

    def _note_retry(self) -> None:
        self.retries += 1

    def stop_with(self, stop: Event | None) -> None:
        """Let requests of the calling thread, and those that it sends side by side, not be retried after ``stop``."""
        self._waiting.stop = stop

    def redact(self, text: str) -> str:
        """A client's text, without the values of the options and other secrets."""
        return redacted(text, self._options)

    def side_by_side(self, action: Callable[[A], T], arguments: Sequence[A]) -> list[T]:
        """The results of an action that sends requests, for each of these arguments, in their order."""
        if len(arguments) < 2:
            return [action(argument) for argument in arguments]
        stop = getattr(self._waiting, "stop", None)
        with REQUESTS.running(), ThreadPoolExecutor(SIDE_BY_SIDE, "midepoch-requests", self.stop_with, (stop,)) as pool:
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
