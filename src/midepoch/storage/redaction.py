"""Secrets in texts of clients: the values of options, in each form in which a message may have them, are replaced."""

import html
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from midepoch._common.world import store_secrets

REDACTED = "***"
ADDRESSES = ("endpoint_override", "endpoint_url", "region", "region_name", "client")
"""Options that say where a store is, and what reads it. They are no secrets, and whoever reads an error needs them."""
SECRET_PART = re.compile(
    r"(?:^|[?&;])([^=?&;]*(?:sig|key|token|secret|passw|signature)[^=?&;]*)=([^?&;]+)", re.IGNORECASE
)
"""A part of a connection string or of a query that is a secret."""
ECHOED = re.compile(r"(<(AWSAccessKeyId|Token-\d+|SignatureProvided|StringToSign|CanonicalRequest)>)[^<]*")
"""What answers of S3 repeat of a request, whoever has found the keys."""
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
LEAST_LENGTH = 4


def redacted(text: str, options: Mapping[str, Any]) -> str:
    """A text without the strings in the options and in the environment that could be secrets."""
    for value in sorted({*_leaves(options), *_leaves(store_secrets())}, key=len, reverse=True):
        text = text.replace(value, REDACTED)
    return ECHOED.sub(rf"\1{REDACTED}", text)


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
