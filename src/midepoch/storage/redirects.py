"""Redirects of web servers: another host gets none of the user's headers, which often hold keys.

Where rows name URLs, redirects may lead only to hosts that rows may name.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

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


class AllowedRedirects:
    """The origins to which servers may redirect, and the last one to which that was refused."""

    OPTION = "redirects_to"
    """The option of a store that holds it. Only clients of fsspec know it."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origins)
        self.refused: str | None = None

    def check(self, url: Any, headers: Mapping[str, str]) -> None:
        """Raise if the answer of a server under a URL leads elsewhere."""
        target = _target(url, headers)
        if target is None or origin_of(target) not in self._origins:
            self.refused = "nowhere" if target is None else origin_of(target)
            raise PermissionError(f"{url} redirects to {self.refused}")


def origin_of(url: str) -> str:
    """The scheme and the host of a URL, in lower case."""
    parts = urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}"


def with_allowed_redirects(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an HTTP client of fsspec, which follows only the redirects that ``AllowedRedirects`` allows."""
    allowed: AllowedRedirects | None = options.get(AllowedRedirects.OPTION)
    others = {name: value for name, value in options.items() if name != AllowedRedirects.OPTION}
    if allowed is None:
        return others

    async def check(_: Any, __: Any, redirect: Any) -> None:
        allowed.check(redirect.url, redirect.response.headers)

    return _with_trace(others, check)


def with_private_headers(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an HTTP client of fsspec, which drops the headers on the way to another host."""
    names = only_for_origin(headers_of(options))
    if not names:
        return dict(options)

    async def drop(_: Any, __: Any, redirect: Any) -> None:
        if not _stays(redirect.url, redirect.response.headers):
            for name in names:
                redirect.headers.popall(name, None)

    return _with_trace(options, drop)


def _with_trace(options: Mapping[str, Any], on_redirect: Any) -> dict[str, Any]:
    from aiohttp import TraceConfig

    traces = TraceConfig()
    traces.on_request_redirect.append(on_redirect)
    inner = options.get("client_kwargs", {})
    return {**options, "client_kwargs": {**inner, "trace_configs": [*inner.get("trace_configs", ()), traces]}}


def _stays(url: Any, headers: Mapping[str, str]) -> bool:
    """Whether a redirect leads to the host that sent it."""
    target = _target(url, headers)
    return target is not None and origin_of(target) == origin_of(str(url))


def _target(url: Any, headers: Mapping[str, str]) -> str | None:
    """The URL to which a redirect leads, as the client understands it."""
    from yarl import URL

    try:
        return str(url.join(URL(headers.get("Location") or headers.get("URI") or "")))
    except ValueError:
        return None
