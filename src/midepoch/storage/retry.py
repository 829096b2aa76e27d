"""Errors of clients: temporary ones are retried with back-off, others raised at once, and no text shows a secret."""

import html
import json
import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Any, Literal, TypeVar
from urllib.parse import quote, quote_plus, unquote

from midepoch._common.checks import count
from midepoch._common.world import store_secrets
from midepoch.errors import MidepochError

log = logging.getLogger("midepoch")

T = TypeVar("T")
ErrorKind = Literal["gone", "denied", "temporary", "wrong"]

TEMPORARY = "HTTP error: "
"""What obstore says of connections that failed."""
STATUS = re.compile(r"status code: ?(\d{3})", re.IGNORECASE)
TEMPORARY_STATUS = (408, 425, 429)
MOST_ASKED_SECONDS = 60.0
"""A server that asks for a longer wait is asked again after this time."""
QUIET_SECONDS = 2.0
"""A request that is tried again after this time is worth a warning."""
REDACTED = "***"
ADDRESSES = ("region", "region_name")
"""Options that say where a store is, as endpoints do. They are no secrets, and whoever reads an error needs them."""
SECRET_PART = re.compile(
    r"(?:^|[?&;])([^=?&;]*(?:sig|key|token|secret|passw|signature)[^=?&;]*)=([^?&;]+)", re.IGNORECASE
)
"""A part of a connection string or of a query that is a secret."""
ECHOED = re.compile(r"(<(AWSAccessKeyId|Token-\d+|SignatureProvided|StringToSign|CanonicalRequest)>)[^<]*")
"""What answers of S3 repeat of a request, whoever has found the keys."""
QUERY = re.compile(r"""(https?://[^\s?'"<>]+\?)[^\s'"<>]+""")
"""The query of an address: those that servers redirect to are signed."""
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
LEAST_LENGTH = 4


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often a request is tried, and how long to wait in between: about twice as long each time."""

    attempts: int = 8
    first: float = 0.1
    """Seconds before the second attempt, at most."""
    most: float = 5.0
    """Seconds before any attempt, at most."""

    def wait(self, retry: int) -> float:
        """The seconds to wait before a retry, counted from 1. Half of them are random, so that clients spread out."""
        return min(self.most, self.first * float(2 ** (retry - 1))) * (0.5 + random.random() / 2)


class OtherVersionError(Exception):
    """A read found another version of the object than the one that was opened."""


class ShortReadError(Exception):
    """A read returned fewer bytes than the object has: the connection was dropped."""


def error_kind(error: Exception) -> ErrorKind:
    """What kind of error a client raised: by its type, its HTTP status or its text, which differ by library."""
    error = _what_happened(error)
    if isinstance(error, FileNotFoundError):
        return "gone"
    if isinstance(error, PermissionError):
        return "denied"
    status = _status(error)
    # 416 means that the object is shorter than it was.
    if status in (404, 410, 416):
        return "gone"
    if status in (401, 403):
        return "denied"
    if status is not None:
        return "temporary" if status >= 500 or status in TEMPORARY_STATUS else "wrong"
    known = isinstance(error, ShortReadError) or _is_of_network(error)
    return "temporary" if known or TEMPORARY in str(error) else "wrong"


def _own_error(error: BaseException | None) -> MidepochError | None:
    """The error of ours that a client has wrapped, or this one; None if there is none."""
    return error if error is None or isinstance(error, MidepochError) else _own_error(error.__cause__)


def _what_happened(error: Exception) -> Exception:
    """The error of a request. fsspec says that an object is not found whatever its request ended with."""
    cause = error.__cause__
    is_hidden = isinstance(error, FileNotFoundError) and isinstance(cause, Exception) and _is_of_network(cause)
    return cause if is_hidden and isinstance(cause, Exception) else error


def _is_of_network(error: Exception) -> bool:
    """True for errors of connections and requests, as far as their types say so."""
    if type(error).__name__ == "OfflineModeIsEnabled":  # of the hub, a ConnectionError that lasts
        return False
    return isinstance(error, OSError | TimeoutError) or type(error).__module__.startswith(("aiohttp", "httpx"))


def with_retries(
    action: Callable[[], T],
    make_error: Callable[[ErrorKind, str], MidepochError],
    redact: Callable[[str], str],
    policy: RetryPolicy,
    stop: Event | None = None,
    note_retry: Callable[[], None] = lambda: None,
) -> T:
    """Run an action that sends a request, and retry it while the error is temporary and ``stop`` is not set.

    The final error is made from its kind and its redacted text. It has no cause, because an error of the client can
    hold secrets. ``note_retry`` is called before each retry. Each is logged; the first after two seconds is a warning.
    """
    kind: ErrorKind = "wrong"
    text, asked, begun, has_warned = "", 0.0, time.monotonic(), False
    for attempt in range(policy.attempts):
        if attempt:
            note_retry()
            is_late = time.monotonic() - begun >= QUIET_SECONDS and not has_warned
            has_warned = has_warned or is_late
            level = logging.WARNING if is_late else logging.INFO
            log.log(level, "A request is tried again (%s of %s): %s", attempt + 1, policy.attempts, text)
            seconds = max(asked, policy.wait(attempt))
            time.sleep(seconds) if stop is None else stop.wait(seconds)
        if stop is not None and stop.is_set():
            kind, text = "temporary", text or "nobody waits for it any more"
            break
        try:
            return action()
        except Exception as error:
            if (own := _own_error(error)) is not None:
                raise own from None
            kind, happened = error_kind(error), _what_happened(error)
            text, asked = redact(f"{type(happened).__name__}: {happened}"), _seconds_asked_for(happened)
        if kind != "temporary":
            break
    else:
        text = f"{text} (tried {count('time', policy.attempts)})"
    raise make_error(kind, text)


def _seconds_asked_for(error: Exception) -> float:
    """How long an answer asks to wait (Retry-After), up to a limit; 0 if it does not, or the client does not say."""
    headers = getattr(error, "headers", None) or getattr(getattr(error, "response", None), "headers", None)
    wish = headers.get("Retry-After") if isinstance(headers, Mapping) else None
    return min(float(wish), MOST_ASKED_SECONDS) if isinstance(wish, str) and wish.isdecimal() else 0.0


def _status(error: Exception) -> int | None:
    """The HTTP status of an error, from its text or its attributes."""
    if match := STATUS.search(str(error)):
        return int(match[1])
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    found = (getattr(one, name, None) for one in (error, response) for name in ("status", "status_code", "code"))
    return next((status for status in found if isinstance(status, int) and 100 <= status < 600), None)


def redacted(text: str, options: Mapping[str, Any]) -> str:
    """A text without the strings in the options and in the environment that could be secrets."""
    for value in sorted({*_leaves(options), *_leaves(store_secrets())}, key=len, reverse=True):
        text = text.replace(value, REDACTED)
    return QUERY.sub(rf"\1{REDACTED}", ECHOED.sub(rf"\1{REDACTED}", text))


def _leaves(options: Any) -> Iterator[str]:
    """All strings in the options that are long enough to be a secret, in each of their forms."""
    if isinstance(options, Mapping):
        for name, value in options.items():
            is_address = name in ADDRESSES or "endpoint" in str(name).lower()
            if not is_address or re.search("[@?]", str(value)):
                yield from _leaves(value)
    elif isinstance(options, list | tuple | set | frozenset):
        for value in options:
            yield from _leaves(value)
    elif isinstance(options, bytes):
        yield from _leaves(options.decode(errors="replace"))
        yield repr(options)[2:-1]
    elif isinstance(options, str) and len(options) >= LEAST_LENGTH:
        yield from _forms(options)
        yield from _leaves(ADDRESS.sub("", options) if ADDRESS.match(options) else "")
        for part in SECRET_PART.finditer(options):
            yield from (*_forms(part[2]), *_forms(unquote(part[2])))
        scheme, _, credential = options.partition(" ")  # as in "Bearer …"
        if scheme.isalpha() and len(credential) >= LEAST_LENGTH:
            yield from _forms(credential)


def _forms(value: str) -> Iterator[str]:
    """A string as it may be written in an address, in JSON, in XML or in Python."""
    quoted = {quote(value, safe=""), quote(value), quote_plus(value)}
    yield from quoted
    yield from (re.sub("%..", lambda code: code[0].lower(), one) for one in quoted)
    yield from (value, repr(value)[1:-1], json.dumps(value)[1:-1], html.escape(value))
