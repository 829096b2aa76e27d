"""Accounts of Azure Blob Storage: which one a URL and the options name, where it answers, and what opens it.

The options have the names of adlfs, fsspec's client, and so have the variables of the environment.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from midepoch._common.world import azure_settings
from midepoch.errors import StoreError

AZURE = ("abfs", "abfss", "az")
KNOWN = frozenset(("account_name", "account_key", "account_host", "sas_token", "connection_string", "anon"))
ACCOUNT_HOST = re.compile(r"([^.@/]+)\.(?:dfs|blob)\.core\.windows\.net")


@dataclass(frozen=True, kw_only=True)
class Account:
    """An account that options describe. Without a ``name``, the URL has to have it."""

    name: str
    endpoint: str
    credential: Mapping[str, Any] | None = field(repr=False)
    """A key or a signature as obstore takes it; None for anonymous requests."""

    def at(self, url: str) -> "Account":
        """The account of a URL: this one, and the URL may not name another."""
        named = ACCOUNT_HOST.fullmatch(container_and_host(url)[1])
        name = named[1] if named else ""
        if name and self.name and name != self.name:
            raise StoreError(
                f"{url} names the account {name!r}, and the options or the environment name {self.name!r}. Leave one "
                "of them out."
            )
        if not (name or self.name):
            scheme = url.partition("://")[0]
            raise StoreError(
                f"Neither {url} nor storage_options name an account. Pass account_name in storage_options, or write "
                f"{scheme}://container@account.dfs.core.windows.net/…"
            )
        endpoint = self.endpoint or f"https://{name or self.name}.blob.core.windows.net"
        return Account(name=name or self.name, endpoint=endpoint, credential=self.credential)


def container_and_host(url: str) -> tuple[str, str]:
    """The container of a URL, and the host of the account, if there is one."""
    container, _, host = url.split("/")[2].partition("@")
    return container, host


def account_of(options: Mapping[str, Any]) -> tuple[Account | None, str]:
    """The account that options and environment describe; None and why, if only adlfs can make it out."""
    if unknown := {*options} - KNOWN:
        return None, f"only adlfs knows the options {', '.join(sorted(map(str, unknown)))}"
    settings = {**azure_settings(), **{name: value for name, value in options.items() if value}}
    if "connection_string" in settings:
        return _connected(str(settings["connection_string"]))
    name, host = str(settings.get("account_name", "")), settings.get("account_host")
    endpoint = f"https://{host}" if host else ""
    if "account_key" in settings:
        return Account(name=name, endpoint=endpoint, credential=_key(settings["account_key"])), ""
    if "sas_token" in settings:
        return Account(name=name, endpoint=endpoint, credential=_signature(settings["sas_token"])), ""
    if _is_anonymous(options.get("anon"), settings):
        return Account(name=name, endpoint=endpoint, credential=None), ""
    return None, "no account_key, sas_token or connection_string is in storage_options or in the environment"


def _is_anonymous(wish: Any, settings: Mapping[str, Any]) -> bool:
    if wish is not None:
        return bool(wish)
    return str(settings.get("anon", "false")).lower() not in ("false", "0", "f")


def _connected(text: str) -> tuple[Account | None, str]:
    """The account of a connection string."""
    parts = {name.strip().lower(): value for name, _, value in (one.partition("=") for one in text.split(";"))}
    name, suffix = parts.get("accountname", ""), parts.get("endpointsuffix") or "core.windows.net"
    endpoint = parts.get("blobendpoint") or f"{parts.get('defaultendpointsprotocol') or 'https'}://{name}.blob.{suffix}"
    name = name or (urlsplit(endpoint).hostname or "").partition(".")[0]
    if not name or not (parts.get("accountkey") or parts.get("sharedaccesssignature")):
        return None, "connection_string has no account, or neither AccountKey nor SharedAccessSignature"
    is_keyed = bool(parts.get("accountkey"))
    credential = _key(parts["accountkey"]) if is_keyed else _signature(parts["sharedaccesssignature"])
    return Account(name=name, endpoint=endpoint.rstrip("/"), credential=credential), ""


def _key(key: Any) -> dict[str, Any]:
    return {"access_key": str(key), "expires_at": None}


def _signature(token: Any) -> dict[str, Any]:
    return {"sas_token": str(token).removeprefix("?"), "expires_at": None}
