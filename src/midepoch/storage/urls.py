"""URLs as text: telling them from paths, refusing secrets in them, matching globs. Nothing here sends a request."""

import os
import re
from collections.abc import Sequence
from itertools import takewhile
from urllib.parse import unquote, urlsplit

from midepoch.errors import needs

WILDCARDS = re.compile(r"[*?\[]")
SECRET = re.compile(
    r"[?&#;]([^=&;]*(sig|token|secret|passw|passp|passc|credential|key|jwt|hmac|auth|bearer|sess|cookie|ticket)[^=&;]*"
    r"|pwd|pw|pass|code|st|sas|sid|creds?|otp|pin|login|access)=",
    re.IGNORECASE,
)
BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{},]*(?:,[^{},]*)+))\}")
MOST_EXPANDED = 1 << 20
IPV6 = re.compile(r"\[[0-9A-Fa-f:.]+\]")
ACCOUNTS = ("abfs", "abfss", "az", "adl", "wasb", "wasbs", "hdfs", "ssh", "sftp")
"""The schemes in which a name before the host is no secret, but a container or a user."""


def is_url(source: str) -> bool:
    """True if a source is a URL, not a path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:(//|:)", source) is not None


def expanded(source: str) -> list[str]:
    """The paths that braces stand for, as in a shell: "{000..127}" and "{a,b}". A path that exists is itself."""
    found = BRACES.search(source)
    if found is None or os.path.exists(source):
        return [source]
    first, last, words = found.groups()
    if words is None:
        low, high = int(first), int(last)
        is_padded = any(len(end) > 1 and end.startswith("0") for end in (first, last))
        digits = max(len(first), len(last)) if is_padded else 0
        if abs(high - low) >= MOST_EXPANDED:
            raise ValueError(f"{source} stands for more than {MOST_EXPANDED:,} files. Pass a folder or a glob.")
        numbers = range(low, high + 1) if low <= high else range(low, high - 1, -1)
    parts = words.split(",") if words is not None else [f"{number:0{digits}}" for number in numbers]
    before, after = source[: found.start()], source[found.end() :]
    return [path for part in parts for path in expanded(before + part + after)]


def folder_prefix(root: str) -> str:
    """What comes before the names of files in a folder. Names in a store may begin with a slash."""
    return f"{root}/" if is_url(root) else os.path.join(root, "")


def local_path(url: str) -> str | None:
    """The path of a file:// URL; None for any other URL."""
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme.lower() == "file" and parts.netloc in ("", "localhost") else None


def check_plain(url: str) -> None:
    """Raise if a URL chains file systems or holds credentials. The message does not repeat them."""
    scheme, separator, rest = IPV6.sub("", url).partition("://")
    if not separator or "::" in rest or "::" in scheme:
        raise ValueError(f"{scheme.split('::')[0]}:: chains file systems, which is not supported. Pass a plain URL.")
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    is_keyed = scheme.lower() in ("s3", "gs") and ":" in host  # key:secret@bucket, and a secret may have slashes
    user, at, _ = (rest if is_keyed else host).rpartition("@")
    # A port that is no number is a password with a slash, or with a quoted "@" after it.
    is_odd = scheme.lower() != "memory" and not host.startswith("arn:") and re.search(r":\d*\D", host) is not None
    if is_odd or (at and (":" in user or scheme.lower() not in ACCOUNTS)) or SECRET.search(f"{rest} {unquote(rest)}"):
        raise ValueError(
            f"A {scheme}:// URL holds credentials, and URLs appear in messages and indexes. "
            "Pass credentials in storage_options."
        )


def split_glob(url: str) -> tuple[str, re.Pattern[str], bool]:
    """The folder above the first wildcard, the pattern of names below it, and whether a match can lie in a subfolder.

    As in a shell, a star matches neither a slash nor a hidden name; two stars match any number of folders.
    """
    with needs("fsspec", "remote", f"Reading {url}"):
        from fsspec.utils import glob_translate
    parts = url.split("/")
    fixed = next(number for number, part in enumerate(parts) if WILDCARDS.search(part))
    below = "/".join(parts[fixed:])
    without_hidden = "" if "/." in f"/{below}" else r"(?!(?:.*/)?\.)"
    return "/".join(parts[:fixed]), re.compile(without_hidden + glob_translate(below)), "/" in below or below == "**"


def common_folder(urls: Sequence[str]) -> str:
    """The deepest folder that all of these are, or lie in."""
    parts = [url.split("/") for url in urls]
    shared = takewhile(lambda column: len({*column}) == 1, zip(*parts, strict=False))
    return "/".join(column[0] for column in shared)
