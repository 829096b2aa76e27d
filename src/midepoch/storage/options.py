"""storage_options: which names stores know, and how obstore opens a bucket or an account with their values.

Keys, roles and profiles come from the options, from boto3 or google-auth where they are installed, or else from
obstore, which looks in the environment and asks the machine.
"""

import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from midepoch._common.world import aws_endpoint, aws_keys, aws_region, azure_settings
from midepoch.errors import MissingExtraError, StoreError

OpenStore = Callable[..., Any]
"""A store of obstore for the bucket or host of a URL. Its named arguments are time limits and retries."""
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
GCSFS_TOKEN = re.compile(r"^(anon|google_default|cache|cloud|browser)$|\.json$|^\{")
"""What fsspec's client of GCS takes as a token, and ours would send as one."""
AWS, GCS = "https://s3.amazonaws.com", "https://storage.googleapis.com"
GCS_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
ACCOUNT_HOST = re.compile(r"([^.@/]+)\.(?:dfs|blob)\.core\.windows\.net")
REGION_SECONDS = 10.0


_process: int | None = None
"""The process that uses obstore. Threads of obstore stay behind at a fork, and a child would wait for them."""


def check_usable(scheme: str) -> None:
    """Raise if obstore is not installed, or was used before this process was forked."""
    global _process
    if importlib.util.find_spec("obstore") is None:
        raise MissingExtraError("obstore", "remote", f"Reading {scheme}:// URLs")
    if _process not in (None, os.getpid()):
        raise StoreError(
            f"{scheme}:// URLs cannot be read in this process: it was forked from one that had read from a store, and "
            "the threads of the client do not survive a fork. Start workers with multiprocessing_context='forkserver'."
        )
    _process = os.getpid()


def known_options(scheme: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a store that obstore reads under their first names. Those of fsspec's clients pass unchecked."""
    if scheme not in OPTIONS:
        return dict(options)
    name_of = {alias: name for name, aliases in OPTIONS[scheme].items() for alias in (name, *aliases)}
    known: dict[str, Any] = {}
    for alias, value in _flattened(options):
        name = name_of.get(alias)
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
    if ("key" in known) != ("secret" in known):
        raise TypeError("storage_options needs both key and secret, or neither.")
    if scheme == "gs" and GCSFS_TOKEN.search(str(known.get("token", ""))):
        raise TypeError(
            "token in storage_options is no access token. For gs:// pass one, or anonymous=True. To use keys in a "
            "file, name it in the environment: GOOGLE_APPLICATION_CREDENTIALS. Others are found without options."
        )


def opener(scheme: str, bucket: str, options: Mapping[str, Any]) -> OpenStore:
    """How the stores of a scheme are opened with these options."""
    check_usable(scheme)
    return {"s3": _s3, "gs": _gs}.get(scheme, _azure)(bucket, options)


def _s3(bucket: str, options: Mapping[str, Any]) -> OpenStore:
    from obstore.store import S3Store

    endpoint, is_virtual = options.get("endpoint"), bool(options.get("force_virtual_addressing"))
    provider = None if options.get("anonymous") else _s3_credentials(options)
    region = options.get("region") or aws_region() or getattr(provider, "config", {}).get("region")
    region = region or ("us-east-1" if endpoint else _region(bucket, options.get("proxy")))
    if endpoint is None and aws_endpoint(even_if_ignored=True) is not None:  # obstore would use the ignored one
        endpoint = f"https://s3.{region}.amazonaws.com"
    config: Any = {
        "region": region,
        "virtual_hosted_style_request": is_virtual,
        "skip_signature": bool(options.get("anonymous")),
    }
    if endpoint is not None:
        scheme, _, host = _with_scheme(endpoint).partition("://")
        endpoint = f"{scheme}://{bucket}.{host}" if is_virtual else f"{scheme}://{host}"
        # The second name goes before the first, and would come from the environment.
        config |= {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint}
    return lambda _, **limits: S3Store(bucket, config=config, credential_provider=provider, **limits)


def _region(bucket: str, proxy: str | None) -> str:
    """The region of a bucket of AWS. Every answer names it, a refusal too."""
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, Request, build_opener  # loads modules that few need

    proxies = None if proxy is None else {"http": proxy, "https": proxy}  # None: those of the environment
    request = Request(f"{AWS}/{quote(bucket)}", method="HEAD")
    try:
        with build_opener(ProxyHandler(proxies)).open(request, timeout=REGION_SECONDS) as answer:
            headers = answer.headers
    except HTTPError as error:
        headers = error.headers
    return headers.get("x-amz-bucket-region") or "us-east-1"


def _s3_credentials(options: Mapping[str, Any]) -> Any:
    """What gives the keys, and renews them; None if obstore is to find them."""
    key, secret, token = (options.get(name) for name in ("key", "secret", "token"))
    if key is not None:
        return lambda: {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}
    if aws_keys() is not None or importlib.util.find_spec("boto3") is None:
        return None
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider()
    except ValueError:
        raise StoreError(
            "No keys for s3:// were found in storage_options, in the environment, in a profile or on this machine. "
            "Pass key and secret in storage_options, name a profile in AWS_PROFILE, or pass anonymous=True for public "
            "data."
        ) from None


def _gs(bucket: str, options: Mapping[str, Any]) -> OpenStore:
    from obstore.store import GCSStore

    config: Any = {
        "base_url": _with_scheme(options.get("endpoint") or GCS),
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
        config["endpoint"] = _with_scheme(options["endpoint"])
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


def _with_scheme(endpoint: str) -> str:
    """The URL of a server that may have been named by its host alone."""
    return (endpoint if "://" in endpoint else f"https://{endpoint}").rstrip("/")
