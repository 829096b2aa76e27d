"""Stores of obstore: when it can be used for a URL, and how options, which have other names there, open one."""

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

from midepoch._common.world import aws_endpoint, aws_keys, aws_region
from midepoch.storage.azure import AZURE, account_of, container_and_host
from midepoch.storage.clients import HTTP, HTTP_CONNECT_SECONDS, HTTP_SECONDS
from midepoch.storage.redirects import headers_of, only_for_origin

T = TypeVar("T")
OpenStore = Callable[[str, float, int], Any]
"""A store for the host or bucket of a URL, from the seconds that a request may take and how often it is retried."""
PLAIN = {"s3": "pyarrow", "gs": "pyarrow", **dict.fromkeys((*HTTP, *AZURE), "fsspec")}
"""The schemes that obstore reads, with the name of the client that reads them otherwise."""
ONLY_PLAIN = ("role_arn", "external_id", "proxy_options", "target_service_account")
"""Options of S3 and GCS that obstore has no equal of."""
GCS = "https://storage.googleapis.com"
LONG_SECONDS = 86_400.0
ADDRESS = re.compile(r" https?://\S+ in \S+ - ")

_is_forked = False


def _note_fork() -> None:
    global _is_forked
    _is_forked = _is_forked or "obstore" in sys.modules


os.register_at_fork(after_in_child=_note_fork)  # the threads of obstore stay behind, and it would wait for them


def opener(scheme: str, bucket: str, options: Mapping[str, Any]) -> tuple[OpenStore | None, str]:
    """How stores of obstore are opened, or None and why it cannot be used."""
    if importlib.util.find_spec("obstore") is None:
        return None, "it is not installed: pip install 'midepoch[remote]'"
    if _is_forked:
        return None, (
            "this process was forked from one that had it loaded, and its threads do not survive a fork (start workers "
            "with multiprocessing_context='forkserver')"
        )
    if unknown := [name for name in ONLY_PLAIN if PLAIN[scheme] == "pyarrow" and options.get(name)]:
        return None, f"only pyarrow knows the options {', '.join(unknown)}"
    if scheme == "s3":
        return _s3_opener(bucket, options)
    if scheme == "gs":
        return _gs_opener(bucket, options)
    return _azure_opener(options) if scheme in AZURE else _http_opener(options)


def _http_opener(options: Mapping[str, Any]) -> tuple[OpenStore | None, str]:
    inner = options.get("client_kwargs", {})
    others = ({*options} - {"headers", "client_kwargs"}) | ({*inner} - {"headers"})
    if others:
        return None, f"only fsspec knows the options {', '.join(sorted(map(str, others)))}"
    headers = headers_of(options)
    if private := only_for_origin(headers):
        return None, f"it would send the headers {', '.join(sorted(private))} to hosts that a server redirects to"

    def open_store(url: str, seconds: float, retries: int) -> Any:
        from obstore.store import HTTPStore

        parts = urlsplit(url)
        limits: Any = {"default_headers": headers, **_limits(seconds, is_plain=parts.scheme.lower() == "http")}
        origin = f"{parts.scheme}://{parts.netloc}"
        return HTTPStore(origin, client_options=limits, retry_config={"max_retries": retries})

    return open_store, ""


def _s3_opener(bucket: str, options: Mapping[str, Any]) -> tuple[OpenStore | None, str]:
    endpoint = options.get("endpoint_override")
    if endpoint is None and aws_endpoint(even_if_ignored=True) is not None:
        return None, "it would use the endpoint of the environment, which is to be ignored"
    credentials = None if options.get("anonymous") else _s3_credentials(options)
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

    def open_store(_: str, seconds: float, retries: int) -> Any:
        from obstore.store import S3Store

        limits = _limits(seconds, is_plain=config.get("endpoint", "").startswith("http://"), options=options)
        more: Any = {} if credentials is None else {"credential_provider": credentials}
        return S3Store(bucket, config=config, client_options=limits, retry_config={"max_retries": retries}, **more)

    return open_store, ""


def _region(bucket: str) -> str:
    from pyarrow import fs

    return str(fs.resolve_s3_region(bucket))


def _s3_credentials(options: Mapping[str, Any]) -> Callable[[], Any] | None:
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


def _gs_opener(bucket: str, options: Mapping[str, Any]) -> tuple[OpenStore | None, str]:
    token, until = options.get("access_token"), options.get("credential_token_expiration")
    if token is None and not options.get("anonymous"):
        return None, "no token is in storage_options, and it does not ask for anonymous=True; pyarrow finds other keys"
    endpoint = options.get("endpoint_override") or GCS
    config: Any = {
        "base_url": (endpoint if "://" in endpoint else f"https://{endpoint}").rstrip("/"),
        "skip_signature": token is None,
    }

    def open_store(_: str, seconds: float, retries: int) -> Any:
        from obstore.store import GCSStore

        limits = _limits(seconds, is_plain=config["base_url"].startswith("http://"))
        more: Any = {} if token is None else {"credential_provider": lambda: {"token": token, "expires_at": until}}
        return GCSStore(bucket, config=config, client_options=limits, retry_config={"max_retries": retries}, **more)

    return open_store, ""


def _azure_opener(options: Mapping[str, Any]) -> tuple[OpenStore | None, str]:
    described, reason = account_of(options)
    if described is None:
        return None, reason

    def open_store(url: str, seconds: float, retries: int) -> Any:
        from obstore.store import AzureStore

        account = described.at(url)
        # All of these, because obstore would look for what is missing in the environment.
        config: Any = {
            "account_name": account.name,
            "endpoint": account.endpoint,
            "skip_signature": account.credential is None,
            "use_emulator": False,
            "use_fabric_endpoint": False,
        }
        more: Any = {} if account.credential is None else {"credential_provider": lambda: account.credential}
        limits = _limits(seconds, is_plain=account.endpoint.startswith("http://"))
        container = container_and_host(url)[0]
        return AzureStore(
            container, config=config, client_options=limits, retry_config={"max_retries": retries}, **more
        )

    return open_store, ""


def _limits(seconds: float, *, is_plain: bool, options: Mapping[str, Any] = {}) -> Any:
    """Time limits as obstore takes them. If the user sets one, it is on silence, and slow answers are not given up."""
    silence = options.get("request_timeout")
    return {
        "allow_http": is_plain,
        "connect_timeout": timedelta(seconds=options.get("connect_timeout") or HTTP_CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=silence or HTTP_SECONDS),
        "timeout": timedelta(seconds=LONG_SECONDS if silence else seconds),
    }


def shortly(action: Callable[[], T]) -> T:
    """Do something. Addresses, and the inner values that end the messages of obstore, are left out of its errors."""
    from obstore.exceptions import BaseError

    try:
        return action()
    except (BaseError, FileNotFoundError) as error:
        raise type(error)(ADDRESS.sub(": ", str(error).partition("\n\nDebug source:")[0])) from None
