"""Asking again: what may pass is tried again with back-off, what will not is told at once."""

import logging
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from midepoch.errors import MidepochError

log = logging.getLogger("midepoch")

T = TypeVar("T")
ErrorKind = Literal["gone", "denied", "passing", "wrong"]

GONE = re.compile(r"NO_SUCH_(BUCKET|KEY)|RESOURCE_NOT_FOUND|NoSuchBucket|NoSuchKey")
DENIED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN|AccessDenied"
    r"|UNRECOGNIZED_CLIENT|INVALID_SIGNATURE|MISSING_AUTHENTICATION_TOKEN|PERMISSION_DENIED|UNAUTHENTICATED"
)
PASSING = re.compile(
    r"SLOW_DOWN|THROTTLING|REQUEST_TIMEOUT|NETWORK_CONNECTION|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|curlCode"
    r"|REQUEST_EXPIRED|UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED"
)
STATUS = re.compile(r"HTTP (?:status|response code:?) ?(\d{3})", re.IGNORECASE)
PASSING_STATUS = (408, 425, 429)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often a store is asked, and how long is waited in between: twice as long each time, more or less."""

    attempts: int = 8
    first: float = 0.1
    most: float = 5.0

    def wait(self, attempt: int) -> float:
        """The seconds before an attempt, counted from 1 for the second one."""
        return min(self.most, self.first * float(2 ** (attempt - 1))) * (0.5 + random.random() / 2)


class ShortReadError(Exception):
    """Fewer bytes came than there are: the connection was dropped."""


def error_kind(error: Exception) -> ErrorKind:
    """What an error of a client means: it differs by library, and often only the text or a status tells."""
    if isinstance(error, FileNotFoundError):
        return "gone"
    if isinstance(error, PermissionError):
        return "denied"
    text, status = str(error), _status(error)
    # 416 says that an object has become shorter than it was.
    if status in (404, 416) or GONE.search(text):
        return "gone"
    if status in (401, 403) or DENIED.search(text):
        return "denied"
    if status is not None:
        return "passing" if status >= 500 or status in PASSING_STATUS else "wrong"
    known = isinstance(error, OSError | ShortReadError | TimeoutError) or type(error).__module__.startswith("aiohttp")
    return "passing" if PASSING.search(text) or known else "wrong"


def with_retries(
    action: Callable[[], T],
    told: Callable[[ErrorKind, str], MidepochError],
    redact: Callable[[str], str],
    policy: RetryPolicy,
) -> T:
    """Do something that asks a store, and again while that may help.

    The error that is raised in the end is made of a verdict and a text with nothing in it that must be hidden. It has
    no cause: those of the client may hold anything.
    """
    kind: ErrorKind = "wrong"
    text = ""
    for attempt in range(policy.attempts):
        if attempt:
            log.info("A store is asked again (%s of %s): %s", attempt + 1, policy.attempts, text)
            time.sleep(policy.wait(attempt))
        try:
            return action()
        except MidepochError:
            raise
        except Exception as error:
            kind, text = error_kind(error), redact(f"{type(error).__name__}: {error}")
        if kind != "passing":
            break
    else:
        text = f"{text} (asked {policy.attempts} times)"
    raise told(kind, text)


def _status(error: Exception) -> int | None:
    """The HTTP status that an error carries, or tells in its text."""
    found = STATUS.search(str(error))
    if found:
        return int(found[1])
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    for name in ("status", "status_code", "code"):
        status = getattr(error, name, None)
        if isinstance(status, int) and 100 <= status < 600:
            return status
    return None
