"""Reads that are verified: each answer of S3 or of a web server says which version its bytes are of, and how many.

pyarrow and fsspec return the bytes alone. obstore returns what the answer says of itself too, so an object that is
replaced and restored between two requests is noticed, and so is an answer that is too short. It also gives up answers
that come too slowly. It is used where it is installed and can be; the plain clients find and list objects.
"""

import importlib.util
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa

from midepoch._common.lazy import cached_property
from midepoch._common.world import aws_endpoint, aws_keys, aws_region
from midepoch.errors import StoreError
from midepoch.storage import clients
from midepoch.storage.clients import (
    HTTP,
    HTTP_CONNECT_SECONDS,
    HTTP_SECONDS,
    LEAST_BYTES_A_SECOND,
    Client,
    Handle,
    ObjectInfo,
)
from midepoch.storage.retry import OtherVersionError

log = logging.getLogger("midepoch")

T = TypeVar("T")
PLAIN = {"s3": "pyarrow", "http": "fsspec", "https": "fsspec"}
"""The schemes that obstore reads, with the name of the client that reads them otherwise."""
ONLY_PLAIN = ("role_arn", "external_id", "proxy_options")
"""Options of S3 that obstore has no equal of."""
LEAST_CLASS, CLASS_FACTOR = 1 << 20, 8
"""Requests of up to 1 MiB, 8 MiB, 64 MiB and so on have a time limit each, because obstore has one for a connection."""
LONG_SECONDS = 86_400.0
UNKNOWN = datetime.fromtimestamp(0, UTC)
"""The time of change of an object whose answer has none."""
WHOLE_NAME = re.compile(r"(?!.*(?:^|/)\.{0,2}(?:/|$))[^\x00-\x1f\x7f]+")
"""The names that obstore takes as they are: no part is empty, or one or two dots."""
ADDRESS = re.compile(r" https?://\S+ in \S+ - ")
UNQUOTED = "/!$&'()*+,;=:@|[]^\\"

_is_forked = False


def _note_fork() -> None:
    global _is_forked
    _is_forked = _is_forked or "obstore" in sys.modules


os.register_at_fork(after_in_child=_note_fork)  # the threads of obstore stay behind, and it would wait for them


def connect(scheme: str, bucket: str, options: Mapping[str, Any]) -> Client:
    """A client for the URLs of a scheme, which verifies reads if it can."""
    if scheme not in PLAIN:
        return clients.connect(scheme, bucket, options)
    options = dict(options)
    wanted = options.pop("client", None)
    if wanted not in (None, "obstore", PLAIN[scheme]):
        raise StoreError(f"client in storage_options must be 'obstore' or {PLAIN[scheme]!r} for {scheme}:// URLs.")
    opener, reason = None, "another client was asked for"
    if wanted in (None, "obstore"):
        opener, reason = _opener(scheme, bucket, options)
    if opener is None and wanted == "obstore":
        raise StoreError(f"obstore cannot be used for {scheme}:// URLs here, because {reason}.")
    if opener is None:
        log.debug("obstore does not verify reads of %s://, because %s.", scheme, reason)
        return clients.connect(scheme, bucket, options)
    return VerifiedClient(scheme, bucket, options, opener)


OpenStore = Callable[[str, float], Any]
"""A store of obstore for the host or bucket of a URL, which gives up a request after so many seconds."""


def _opener(scheme: str, bucket: str, options: Mapping[str, Any]) -> tuple[OpenStore | None, str]:
    """How stores of obstore are opened, or None and why it cannot be used."""
    if importlib.util.find_spec("obstore") is None:
        return None, "it is not installed: pip install 'midepoch[remote]'"
    if _is_forked:
        return None, "this process was forked from one that had it loaded, and its threads do not survive a fork"
    return _s3_opener(bucket, options) if scheme == "s3" else _http_opener(options)


def _http_opener(options: Mapping[str, Any]) -> tuple[OpenStore | None, str]:
    inner = options.get("client_kwargs", {})
    others = ({*options} - {"headers", "client_kwargs"}) | ({*inner} - {"headers"})
    if others:
        return None, f"only fsspec knows the options {', '.join(sorted(map(str, others)))}"
    headers = {
        str(name): str(value) for name, value in {**inner.get("headers", {}), **options.get("headers", {})}.items()
    }

    def open_store(url: str, seconds: float) -> Any:
        from obstore.store import HTTPStore

        parts = urlsplit(url)
        limits: Any = {"default_headers": headers, **_limits(seconds, is_plain=parts.scheme.lower() == "http")}
        origin = f"{parts.scheme}://{parts.netloc}"
        return HTTPStore(origin, client_options=limits, retry_config={"max_retries": 0})

    return open_store, ""


def _s3_opener(bucket: str, options: Mapping[str, Any]) -> tuple[OpenStore | None, str]:
    if unknown := [name for name in ONLY_PLAIN if options.get(name)]:
        return None, f"only pyarrow knows the options {', '.join(unknown)}"
    endpoint = options.get("endpoint_override")
    if endpoint is None and aws_endpoint(even_if_ignored=True) is not None:
        return None, "it would use the endpoint of the environment, which is to be ignored"
    credentials = None if options.get("anonymous") else _credentials(options)
    if credentials is None and not options.get("anonymous"):
        return None, "no keys are in storage_options or in the environment, and boto3 finds none"
    config: Any = {
        "region": options.get("region") or aws_region() or ("us-east-1" if endpoint else _region(bucket)),
        "virtual_hosted_style_request": bool(options.get("force_virtual_addressing")),
        "skip_signature": credentials is None,
    }
    if endpoint is not None:
        config["endpoint"] = (endpoint if "://" in endpoint else f"https://{endpoint}").rstrip("/")
    if endpoint is not None and options.get("force_virtual_addressing"):
        scheme, _, host = config["endpoint"].partition("://")
        config["endpoint"] = f"{scheme}://{bucket}.{host}"

    def open_store(_: str, seconds: float) -> Any:
        from obstore.store import S3Store

        limits = _limits(seconds, is_plain=config.get("endpoint", "").startswith("http://"), options=options)
        more: Any = {} if credentials is None else {"credential_provider": credentials}
        return S3Store(bucket, config=config, client_options=limits, retry_config={"max_retries": 0}, **more)

    return open_store, ""


def _region(bucket: str) -> str:
    from pyarrow import fs

    return str(fs.resolve_s3_region(bucket))


def _credentials(options: Mapping[str, Any]) -> Callable[[], Any] | None:
    """What gives the keys: those of the options, of the environment, or those that boto3 finds, and renews."""
    keys = (
        (options["access_key"], options["secret_key"], options.get("session_token"))
        if "access_key" in options
        else aws_keys()
    )
    if keys is not None:
        key, secret, token = keys
        return lambda: {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}
    if importlib.util.find_spec("boto3") is None:
        return None
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider()
    except (
        Exception
    ):  # there are none, or a profile or a file is wrong: pyarrow looks for itself, and its errors are known
        return None


def _limits(seconds: float, *, is_plain: bool, options: Mapping[str, Any] = {}) -> Any:
    """Time limits as obstore takes them. If the user sets one, it is on silence, and slow answers are not given up."""
    silence = options.get("request_timeout")
    return {
        "allow_http": is_plain,
        "connect_timeout": timedelta(seconds=options.get("connect_timeout") or HTTP_CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=silence or HTTP_SECONDS),
        "timeout": timedelta(seconds=LONG_SECONDS if silence else seconds),
    }


class VerifiedClient:
    """A client whose handles verify what they read. What obstore cannot name is left to the plain client."""

    def __init__(self, scheme: str, bucket: str, options: Mapping[str, Any], open_store: OpenStore) -> None:
        self._at, self._open_store = (scheme, bucket, options), open_store
        self._stores: dict[tuple[str, int], Any] = {}

    @cached_property
    def _plain(self) -> Client:
        return clients.connect(*self._at)

    def stat(self, urls: Sequence[str]) -> list[ObjectInfo]:
        return self._plain.stat(urls)

    def list_objects(self, folder: str, *, deep: bool) -> list[ObjectInfo]:
        return self._plain.list_objects(folder, deep=deep)

    def open(self, url: str) -> Handle:
        scheme, bucket, _ = self._at
        name = _http_name(url) if scheme in HTTP else url.removeprefix(f"{scheme}://{bucket}/")
        if name is None or not WHOLE_NAME.fullmatch(name):
            return self._plain.open(url)
        if scheme in HTTP:  # not every server answers HEAD, and fsspec knows what to do then
            plain = self._plain.open(url)
            return VerifiedHandle(lambda nbytes: self._store(url, nbytes), name, plain.size, plain.version)
        import obstore

        meta = _shortly(lambda: obstore.head(self._store(url, 0), name))
        return VerifiedHandle(lambda nbytes: self._store(url, nbytes), name, meta["size"], meta["e_tag"] or "")

    def _store(self, url: str, nbytes: int) -> Any:
        """The store for requests of about this size. Threads may open one twice, and then one of the two is dropped."""
        origin, most = url.split("/")[2], LEAST_CLASS
        while most < nbytes:
            most *= CLASS_FACTOR
        store = self._stores.get((origin, most))
        if store is None:
            opened = self._open_store(url, HTTP_SECONDS + most / LEAST_BYTES_A_SECOND)
            store = self._stores.setdefault((origin, most), opened)
        return store


class VerifiedHandle:
    """An object of which each read is of the version that was opened, as far as answers say what they are of."""

    def __init__(self, store: Callable[[int], Any], name: str, size: int, version: str) -> None:
        self._store, self._name, self.size, self.version = store, name, size, version
        self.verifies = True
        """False from the first answer on that does not say which version it is of."""

    def read_at(self, nbytes: int, offset: int) -> pa.Buffer:
        import obstore
        from obstore.exceptions import PreconditionError

        # Not every web server knows ranges, and a whole file needs none.
        options: dict[str, Any] = {} if (offset, nbytes) == (0, self.size) else {"range": (offset, offset + nbytes)}
        if self.version.startswith('"'):  # a weak one never matches
            options["if_match"] = self.version
        try:
            answer = _shortly(lambda: obstore.get(self._store(nbytes), self._name, options=options))  # type: ignore[arg-type]
        except PreconditionError:
            raise OtherVersionError from None
        verified = is_of_version(self.version, answer.meta["e_tag"], answer.meta["last_modified"])
        # Of a part, the answer says how large the whole is; a whole one that is too short may have been cut off.
        if verified is False or ("range" in options and answer.meta["size"] != self.size):
            raise OtherVersionError
        if verified is None:
            self.verifies = False
        return pa.py_buffer(_shortly(answer.bytes))


def is_of_version(version: str, etag: str | None, changed: datetime) -> bool | None:
    """Whether an answer is of a version, which is an etag or a time of change; None if it does not say so."""
    if version.startswith(('"', "W/")):
        return None if etag is None else etag == version
    try:
        then = parsedate_to_datetime(version)
    except ValueError:
        return None if etag is None or not version else etag == version
    return None if changed == UNKNOWN else format_datetime(then) == format_datetime(changed)


def _http_name(url: str) -> str | None:
    """The name of which obstore makes this URL; None if it would make another one."""
    parts = urlsplit(url)
    path = parts.path.removeprefix("/")
    name = unquote(path)
    is_same = not parts.query and not parts.fragment and "?" not in url and path in (quote(name, UNQUOTED), name)
    return name if is_same and "%" not in name else None


def _shortly(action: Callable[[], T]) -> T:
    """Do something. Addresses, and the inner values that end the messages of obstore, are left out of its errors."""
    from obstore.exceptions import BaseError

    try:
        return action()
    except (BaseError, FileNotFoundError) as error:
        raise type(error)(ADDRESS.sub(": ", str(error).partition("\n\nDebug source:")[0])) from None
