"""Retries: a temporary error is retried with back-off, any other is raised at once."""

import logging
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Literal, TypeVar

from midepoch._common.checks import count
from midepoch.errors import MidepochError

log = logging.getLogger("midepoch")

T = TypeVar("T")
ErrorKind = Literal["gone", "denied", "temporary", "wrong"]

GONE = re.compile(r"NO_SUCH_(BUCKET|KEY)|RESOURCE_NOT_FOUND|NoSuchBucket|NoSuchKey")
DENIED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN|AccessDenied"
    r"|UNRECOGNIZED_CLIENT|INVALID_SIGNATURE|MISSING_AUTHENTICATION_TOKEN|PERMISSION_DENIED|UNAUTHENTICATED"
)
TEMPORARY = re.compile(
    r"SLOW_DOWN|THROTTLING|REQUEST_TIMEOUT|NETWORK_CONNECTION|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|curlCode"
    r"|REQUEST_EXPIRED|UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|HTTP error: "
)
STATUS = re.compile(r"(?:HTTP (?:status|response code:?)|status code:) ?(\d{3})", re.IGNORECASE)
TEMPORARY_STATUS = (408, 425, 429)
MOST_ASKED_SECONDS = 60.0
"""A server that asks for a longer wait is asked again after this time."""
QUIET_SECONDS = 2.0
"""A request that is tried again after this time is worth a warning."""


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
    text, status = str(error), _status(error)
    # 416 means that the object is shorter than it was.
    if status in (404, 410, 416) or GONE.search(text):
        return "gone"
    if status in (401, 403) or DENIED.search(text):
        return "denied"
    if status is not None:
        return "temporary" if status >= 500 or status in TEMPORARY_STATUS else "wrong"
    known = isinstance(error, ShortReadError) or _is_of_network(error)
    return "temporary" if TEMPORARY.search(text) or known else "wrong"


def _what_happened(error: Exception) -> Exception:
    """The error of a request. fsspec says that an object is not found whatever its request ended with."""
    cause = error.__cause__
    is_hidden = isinstance(error, FileNotFoundError) and isinstance(cause, Exception) and _is_of_network(cause)
    return cause if is_hidden and isinstance(cause, Exception) else error


def _is_of_network(error: Exception) -> bool:
    """True for errors of connections and requests, as far as their types say so."""
    return isinstance(error, OSError | TimeoutError) or type(error).__module__.startswith("aiohttp")


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
        except MidepochError:
            raise
        except Exception as error:
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
    """The HTTP status of an error, from its attributes or its text."""
    match = STATUS.search(str(error))
    if match:
        return int(match[1])
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    for name in ("status", "status_code", "code"):
        status = getattr(error, name, None)
        if isinstance(status, int) and 100 <= status < 600:
            return status
    return None
