"""URLs: telling them from paths, refusing secrets in them, matching globs in them. No store is asked."""

import re
from collections.abc import Sequence
from itertools import takewhile
from urllib.parse import unquote, urlsplit

WILDCARDS = re.compile(r"[*?\[]")
SECRET = re.compile(r"[?&][^=&]*(sig|token|secret|passw|credential|key)[^=&]*=", re.IGNORECASE)


def is_url(source: str) -> bool:
    """Whether a source is a URL rather than a path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:(//|:)", source) is not None


def local_path(url: str) -> str | None:
    """The path that a file:// URL stands for; None of any other."""
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme.lower() == "file" and parts.netloc in ("", "localhost") else None


def check_plain(url: str) -> None:
    """Raise if a URL chains file systems, or holds what must not be shown. The message does not hold it either."""
    scheme, separator, rest = url.partition("://")
    if not separator or "::" in url:
        raise ValueError(f"{scheme.split('::')[0]}:: chains file systems, which is not supported. Pass a plain URL.")
    host, at, _ = rest.partition("/")[0].rpartition("@")
    if (at and (":" in host or scheme in ("s3", "gs"))) or SECRET.search(rest):
        raise ValueError(
            f"A {scheme}:// URL holds credentials, and URLs are shown in messages and kept in indexes. "
            "Pass them in storage_options."
        )


def split_glob(url: str) -> tuple[str, re.Pattern[str], bool]:
    """The folder above the first part with a sign, what names below it must match, and whether those may have folders.

    As in a shell, a star matches neither a slash nor a hidden name; two stars match any number of folders.
    """
    parts = url.split("/")
    fixed = next(number for number, part in enumerate(parts) if WILDCARDS.search(part))
    below = parts[fixed:]
    told = "".join(_part(part, last=number == len(below) - 1) for number, part in enumerate(below))
    return "/".join(parts[:fixed]), re.compile(told), len(below) > 1 or below[0] == "**"


def common_folder(urls: Sequence[str]) -> str:
    """The folder that all of these folders are, or lie in."""
    parts = [url.split("/") for url in urls]
    alike = takewhile(lambda column: len({*column}) == 1, zip(*parts, strict=False))
    return "/".join(column[0] for column in alike)


def _part(part: str, *, last: bool) -> str:
    if part == "**":
        return r"(?:[^./][^/]*/)*" + (r"[^./][^/]*" if last else "")
    told = r"(?!\.)" if part[:1] in ("*", "?", "[") else ""
    at = 0
    while at < len(part):
        sign, end = part[at], part.find("]", at + 2)
        if sign == "[" and end > 0:
            inside = part[at + 1 : end].replace("\\", r"\\")
            told += f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
            at = end
        else:
            told += {"*": "[^/]*", "?": "[^/]"}.get(sign, re.escape(sign))
        at += 1
    return told + ("" if last else "/")
