"""The client of s3, gs, az and https: obstore, one request a range, and every answer says of which version it is.

An object that is replaced and restored between two requests is noticed, and so are answers that are too short. Answers
that come too slowly are given up. Keys, roles and profiles come from the options, from boto3 or google-auth where they
are installed, or else from obstore, which looks in the environment and asks the machine.
"""

import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

import pyarrow as pa

from midepoch._common.world import aws_endpoint, aws_keys, aws_region, azure_settings
from midepoch.errors import MissingExtraError, StoreError
from midepoch.storage.fsspec import (
    HTTP_CONNECT_SECONDS,
    HTTP_SECONDS,
    LEAST_BYTES_A_SECOND,
    FsspecClient,
    FsspecHandle,
    headers_of,
    only_for_origin,
)
from midepoch.storage.retry import OtherVersionError, error_kind
from midepoch.storage.store import Handle, ObjectInfo

T = TypeVar("T")
OpenStore = Callable[..., Any]
"""A store of obstore for the bucket or host of a URL. Its named arguments are time limits and retries."""
LEAST_CLASS, CLASS_FACTOR = 1 << 20, 8
"""Requests of up to 1 MiB, 8 MiB, 64 MiB and so on have a time limit each, because obstore has one for a connection."""
LONG_SECONDS = 86_400.0
PAGE_RETRIES = 2
"""How often obstore tries one page of a listing again. We retry all other requests ourselves."""
UNKNOWN = datetime.fromtimestamp(0, UTC)
"""The time of change of an object whose answer has none."""
WHOLE_NAME = re.compile(r"(?!.*(?:^|/)\.{0,2}(?:/|$))[^\x00-\x1f\x7f]+")
"""The names that obstore takes as they are: no part is empty, or one or two dots."""
AWS, GCS = "https://s3.amazonaws.com", "https://storage.googleapis.com"
GCS_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
ACCOUNT_HOST = re.compile(r"([^.@/]+)\.(?:dfs|blob)\.core\.windows\.net")
NO_LENGTH = "Content-Length Header missing"
UNQUOTED = "/!$&'()*+,;=:@|[]^\\"
ADDRESS = re.compile(r" https?://\S+ in \S+ - ")

_is_forked = False


def _note_fork() -> None:
    global _is_forked
    _is_forked = _is_forked or "obstore" in sys.modules


os.register_at_fork(after_in_child=_note_fork)  # the threads of obstore stay behind, and it would wait for them


def check_usable(scheme: str) -> None:
    """Raise if obstore is not installed, or does not work in this process."""
    if importlib.util.find_spec("obstore") is None:
        raise MissingExtraError("obstore", "remote", f"Reading {scheme}:// URLs")
    if _is_forked:
        raise StoreError(
            f"{scheme}:// URLs cannot be read in this process: it was forked from one that had read from a store, and "
            "the threads of the client do not survive a fork. Start workers with multiprocessing_context='forkserver'."
        )


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
        check_usable(scheme)
        openers = {"s3": _s3, "gs": _gs}
        open_store = openers.get(scheme, _azure)(bucket, options)
        self._stores = Stores(open_store, options)

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

    def open(self, url: str) -> Handle:
        import obstore

        name = _name(url)
        meta = shortly(lambda: obstore.head(self._stores.at(url), name))
        version = meta["e_tag"] or format_datetime(meta["last_modified"])
        return ObstoreHandle(lambda nbytes: self._stores.at(url, nbytes), name, meta["size"], version)


class HttpClient(FsspecClient):
    """Files of web servers, which fsspec finds and lists, and obstore reads. Not every server answers HEAD."""

    def __init__(self, scheme: str, options: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        super().__init__(scheme, options)
        check_usable(scheme)
        self._stores = Stores(_http, {"headers": headers})

    def open(self, url: str) -> Handle:
        plain, name = FsspecHandle(self._system, url, self._least_speed), _http_name(url)
        if name is None:
            return plain
        return ObstoreHandle(lambda nbytes: self._stores.at(url, nbytes), name, plain.size, plain.version, plain)


def http_client(scheme: str, options: Mapping[str, Any]) -> FsspecClient:
    """A client of web servers: fsspec alone for options that obstore has not, and for headers that may be private.

    obstore would send those to hosts that a server redirects to.
    """
    headers, inner = headers_of(options), options.get("client_kwargs", {})
    others = ({*options} - {"headers", "client_kwargs"}) | ({*inner} - {"headers"})
    if others or only_for_origin(headers):
        return FsspecClient(scheme, options)
    return HttpClient(scheme, options, headers)


class ObstoreHandle:
    """An object of which each read is of the version that was opened, because its answer says so."""

    def __init__(
        self, store: Callable[[int], Any], name: str, size: int, version: str, plain: FsspecHandle | None = None
    ) -> None:
        """An object by its etag or time of change. ``plain`` is asked if answers do not say their length or version."""
        self._store, self._name, self._plain = store, name, plain
        self.size, self.version = size, version

    def read_at(self, nbytes: int, offset: int) -> pa.Buffer:
        import obstore
        from obstore.exceptions import GenericError, PreconditionError

        # Not every web server knows ranges, and a whole file needs none.
        options: dict[str, Any] = {} if (offset, nbytes) == (0, self.size) else {"range": (offset, offset + nbytes)}
        if self.version.startswith('"'):  # a weak etag never matches
            options["if_match"] = self.version
        try:
            answer = shortly(lambda: obstore.get(self._store(nbytes), self._name, options=options))  # type: ignore[arg-type]
        except PreconditionError:
            raise OtherVersionError from None
        except GenericError as error:
            if self._plain is None or NO_LENGTH not in str(error):
                raise
            return self._plain.read_at(nbytes, offset)
        is_same = is_of_version(self.version, answer.meta["e_tag"], answer.meta["last_modified"])
        # Of a part, the answer says how large the whole is; a whole one that is too short may have been cut off.
        if is_same is False or ("range" in options and answer.meta["size"] != self.size):
            raise OtherVersionError
        data = pa.py_buffer(shortly(answer.bytes))
        if is_same is None and self._plain is not None:
            self._plain.check()
        return data


def is_of_version(version: str, etag: str | None, changed: datetime) -> bool | None:
    """Whether an answer is of a version, which is an etag or a time of change; None if it does not say so."""
    if version.startswith(('"', "W/")):
        return None if etag is None else etag == version
    try:
        then = parsedate_to_datetime(version)
    except ValueError:
        return None if etag is None or not version else etag == version
    return None if changed == UNKNOWN else format_datetime(then) == format_datetime(changed)


def _s3(bucket: str, options: Mapping[str, Any]) -> OpenStore:
    from obstore.store import S3Store

    endpoint, is_virtual = options.get("endpoint"), bool(options.get("force_virtual_addressing"))
    provider = None if options.get("anonymous") else _s3_credentials(options)
    region = options.get("region") or aws_region() or getattr(provider, "config", {}).get("region")
    region = region or ("us-east-1" if endpoint else _region(bucket))
    if endpoint is None and aws_endpoint(even_if_ignored=True) is not None:  # obstore would use the ignored one
        endpoint = f"https://s3.{region}.amazonaws.com"
    config: Any = {
        "region": region,
        "virtual_hosted_style_request": is_virtual,
        "skip_signature": bool(options.get("anonymous")),
    }
    if endpoint is not None:
        scheme, _, host = with_scheme(endpoint).partition("://")
        endpoint = f"{scheme}://{bucket}.{host}" if is_virtual else f"{scheme}://{host}"
        # The second name goes before the first, and would come from the environment.
        config |= {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint}
    return lambda _, **limits: S3Store(bucket, config=config, credential_provider=provider, **limits)


def _region(bucket: str) -> str:
    """The region of a bucket of AWS. Every answer names it, a refusal too."""
    try:
        with urlopen(Request(f"{AWS}/{quote(bucket)}", method="HEAD"), timeout=HTTP_CONNECT_SECONDS) as answer:
            headers = answer.headers
    except HTTPError as error:
        headers = error.headers
    return headers.get("x-amz-bucket-region") or "us-east-1"


def _s3_credentials(options: Mapping[str, Any]) -> Any:
    """What gives the keys, and renews them; None if obstore is to find them."""
    key, secret, token = (options.get(name) for name in ("key", "secret", "token"))
    if "role_arn" in options:
        if importlib.util.find_spec("boto3") is None:
            raise MissingExtraError("boto3", "remote", "role_arn in storage_options")
        import boto3
        from obstore.auth.boto3 import StsCredentialProvider

        session = boto3.Session(aws_access_key_id=key, aws_secret_access_key=secret, aws_session_token=token)
        external = {"ExternalId": options["external_id"]} if "external_id" in options else {}
        return StsCredentialProvider(session, RoleArn=options["role_arn"], RoleSessionName="midepoch", **external)
    if key is not None:
        return lambda: {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}
    if aws_keys() is not None or importlib.util.find_spec("boto3") is None:
        return None
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider()
    except ValueError:  # it finds none
        return None


def _gs(bucket: str, options: Mapping[str, Any]) -> OpenStore:
    from obstore.store import GCSStore

    config: Any = {
        "base_url": with_scheme(options.get("endpoint") or GCS),
        "skip_signature": bool(options.get("anonymous")),
    }
    provider = None if options.get("anonymous") else _gs_credentials(options)
    return lambda _, **limits: GCSStore(bucket, config=config, credential_provider=provider, **limits)


def _gs_credentials(options: Mapping[str, Any]) -> Any:
    """What gives the token, and renews it; None if obstore is to find it."""
    token, until = options.get("token"), options.get("token_expires")
    if token is not None:
        return lambda: {"token": token, "expires_at": until}
    try:
        from google import auth
        from obstore.auth.google import GoogleCredentialProvider
    except ImportError:
        return None
    try:
        return GoogleCredentialProvider(auth.default(scopes=[GCS_SCOPE])[0])
    except auth.exceptions.DefaultCredentialsError:
        return None


def _azure(_: str, options: Mapping[str, Any]) -> OpenStore:
    from obstore.store import AzureStore

    config: Any = {name: options[name] for name in ("tenant_id", "client_id", "client_secret") if name in options}
    config["skip_signature"] = bool(options.get("anonymous"))
    if "endpoint" in options:
        config["endpoint"] = with_scheme(options["endpoint"])
    given = options.get("account_name") or azure_settings().get("account_name")
    # A key of the environment does not go before these.
    keys = {"access_key": options.get("account_key"), "sas_token": options.get("sas_token")}
    credential = next(({name: key, "expires_at": None} for name, key in keys.items() if key), None)
    provider: Any = None if credential is None else lambda: credential

    def open_store(url: str, **limits: Any) -> Any:
        container, _, host = url.split("/")[2].partition("@")
        account: Any = {**config, "account_name": _account(url, host, given)}
        return AzureStore(container, config=account, credential_provider=provider, **limits)

    return open_store


def _account(url: str, host: str, given: str | None) -> str:
    """The account of a URL of Azure, which the URL or the options name."""
    match = ACCOUNT_HOST.fullmatch(host)
    named = match[1] if match else given
    if not named:
        scheme = url.partition("://")[0]
        raise StoreError(
            f"Neither {url} nor storage_options name an account. Pass account_name in storage_options, or write "
            f"{scheme}://container@account.dfs.core.windows.net/…"
        )
    if given and named != given:
        raise StoreError(
            f"{url} names the account {named!r}, and the options or the environment name {given!r}. Leave one of them "
            "out."
        )
    return named


def _http(url: str, **limits: Any) -> Any:
    from obstore.store import HTTPStore

    parts = urlsplit(url)
    return HTTPStore(f"{parts.scheme}://{parts.netloc}", **limits)


def with_scheme(endpoint: str) -> str:
    """The URL of a server that may have been named by its host alone."""
    return (endpoint if "://" in endpoint else f"https://{endpoint}").rstrip("/")


def _client_options(seconds: float, options: Mapping[str, Any]) -> dict[str, Any]:
    """Time limits and the like as obstore takes them.

    If the user sets a limit, it is on silence, and slow answers are not given up.
    """
    silence = options.get("request_timeout")
    chosen = {"proxy_url": options.get("proxy"), "default_headers": options.get("headers")}
    return {
        "connect_timeout": timedelta(seconds=options.get("connect_timeout") or HTTP_CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=silence or HTTP_SECONDS),
        "timeout": timedelta(seconds=LONG_SECONDS if silence else seconds),
        **{name: value for name, value in chosen.items() if value},
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


def _http_name(url: str) -> str | None:
    """The name of which obstore makes this URL; None if it would make another one."""
    parts = urlsplit(url)
    path = parts.path.removeprefix("/")
    name = unquote(path)
    is_same = not parts.query and not parts.fragment and "?" not in url and path in (quote(name, UNQUOTED), name)
    return name if is_same and "%" not in name and WHOLE_NAME.fullmatch(name) else None


def _object_info(url: str, meta: Mapping[str, Any]) -> ObjectInfo:
    """An entry of an object beside or below a URL."""
    changed = int(meta["last_modified"].timestamp() * 1e6) * 1000
    return ObjectInfo(
        f"{'/'.join(url.split('/')[:3])}/{meta['path']}", "file", meta["size"], changed, meta["e_tag"] or ""
    )


def shortly(action: Callable[[], T]) -> T:
    """Do something. Addresses, and the inner values that end the messages of obstore, are left out of its errors."""
    from obstore.exceptions import BaseError

    try:
        return action()
    except (BaseError, FileNotFoundError) as error:
        raise type(error)(ADDRESS.sub(": ", str(error).partition("\n\nDebug source:")[0])) from None
