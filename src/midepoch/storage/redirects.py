"""Redirects of web servers: another host gets none of the user's headers, which often hold keys."""

from collections.abc import Iterable, Mapping
from typing import Any

HARMLESS = frozenset(("accept", "accept-language", "referer", "user-agent"))
STRIPPED = frozenset(("authorization", "cookie", "proxy-authorization"))
"""The headers that every client keeps from other hosts."""


def headers_of(options: Mapping[str, Any]) -> dict[str, str]:
    """The headers in the options of an HTTP client: for the session, and for each request."""
    inner = options.get("client_kwargs", {})
    return {str(name): str(value) for name, value in {**inner.get("headers", {}), **options.get("headers", {})}.items()}


def only_for_origin(names: Iterable[str]) -> list[str]:
    """Those of the headers that other hosts must not get, and that clients would send to them."""
    return [name for name in names if name.lower() not in HARMLESS | STRIPPED]


def with_private_headers(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an HTTP client of fsspec, which drops the headers on the way to another host."""
    names = only_for_origin(headers_of(options))
    if not names:
        return dict(options)
    from aiohttp import TraceConfig

    async def drop(_: Any, __: Any, redirect: Any) -> None:
        if not _stays(redirect.url, redirect.response.headers):
            for name in names:
                redirect.headers.popall(name, None)

    traces = TraceConfig()
    traces.on_request_redirect.append(drop)
    inner = options.get("client_kwargs", {})
    return {**options, "client_kwargs": {**inner, "trace_configs": [*inner.get("trace_configs", ()), traces]}}


def _stays(url: Any, headers: Mapping[str, str]) -> bool:
    """Whether a redirect leads to the host that sent it."""
    from yarl import URL

    try:
        target = URL(headers.get("Location") or headers.get("URI") or "")
        return bool(url.join(target).origin() == url.origin())
    except ValueError:
        return False
