"""hf:// URLs: the commit of a branch, and files at a commit, which never change and are read by plain requests."""

import logging
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa

from midepoch.errors import StoreError, needs
from midepoch.storage.store import Store

log = logging.getLogger("midepoch")

SECONDS = 30.0
"""How long a server may send nothing."""
EXPIRED = (400, 401, 403, 404, 410)
"""What a CDN answers when the address that the hub has given is no longer valid."""
PARTIAL = 206
REPOSITORY = re.compile(
    r"(?P<kind>datasets/|spaces/|models/)?(?P<name>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?(?P<path>/.*)?"
)
TYPES = {"datasets/": "dataset", "spaces/": "space"}
COMMIT = re.compile(r"[0-9a-f]{40}")
PINNED = re.compile(rf"hf://[^@]+@{COMMIT.pattern}(?:/|$)")
PULL_REQUEST = re.compile(r"@(refs/(?:pr/\d+|convert/\w+))")
"""The only revisions with slashes that the hub has. In a URL their slashes are written as %2F."""


class HubFile(NamedTuple):
    """What an hf:// URL names. ``kind`` is "datasets/", "spaces/", "models/" or nothing, which means a model."""

    kind: str
    name: str
    revision: str | None
    path: str

    @classmethod
    def of(cls, url: str) -> "HubFile":
        """The parts of a URL."""
        rest = PULL_REQUEST.sub(lambda match: "@" + match[1].replace("/", "%2F"), url.partition("://")[2])
        match = REPOSITORY.fullmatch(rest)
        if match is None:
            raise ValueError(f"{url} names no repository; write hf://datasets/owner/name/folder/*.parquet.")
        return cls(match["kind"] or "", match["name"], match["revision"], match["path"] or "")

    @property
    def type(self) -> str:
        """The kind, as huggingface_hub names it."""
        return TYPES.get(self.kind, "model")


class HubHandle:
    """A file at a commit, of the size that a listing says. Each range is one request.

    The hub redirects to a CDN. That address is used again until it expires, so the hub is asked once a file.
    """

    version = ""

    def __init__(self, url: str, size: int, options: Mapping[str, Any]) -> None:
        from huggingface_hub import hf_hub_url

        self.size, self._token, file = size, options.get("token"), HubFile.of(url)
        self._url = hf_hub_url(
            file.name,
            file.path.lstrip("/"),
            repo_type=file.type,
            revision=file.revision,
            endpoint=options.get("endpoint"),
        )
        self._direct: str | None = None

    def read_at(self, nbytes: int, offset: int) -> pa.Buffer:
        from huggingface_hub import get_session, hf_raise_for_status
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        wanted, direct, answer = {"Range": f"bytes={offset}-{offset + nbytes - 1}"}, self._direct, None
        if direct is not None:
            answer = get_session().get(direct, headers=wanted, timeout=SECONDS)
        if answer is None or answer.status_code in EXPIRED:
            headers = {**build_hf_headers(token=self._token), **wanted}
            answer = get_session().get(self._url, headers=headers, timeout=SECONDS)  # the token stays with the hub
        hf_raise_for_status(answer)
        found = str(answer.url)
        self._direct = found if urlsplit(found).netloc != urlsplit(self._url).netloc else None
        content = answer.content
        return pa.py_buffer(content if answer.status_code == PARTIAL else content[offset : offset + nbytes])


def pinned(url: str, options: Mapping[str, Any]) -> str:
    """The same URL with the commit that its branch is at now. Another URL than hf:// is returned unchanged."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() != "hf" or rest.startswith("buckets/"):
        return url
    file = HubFile.of(url)
    if file.revision is not None and COMMIT.fullmatch(file.revision):
        return url
    with needs("huggingface_hub", "huggingface", "Reading hf:// URLs"):
        from huggingface_hub import HfApi
    api = HfApi(endpoint=options.get("endpoint"), token=options.get("token"))
    wanted = None if file.revision is None else file.revision.replace("%2F", "/")
    commit = Store(url, options).request(
        lambda _: api.repo_info(file.name, repo_type=file.type, revision=wanted).sha, url
    )
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise StoreError(f"The hub names no commit for {url}. Pass one: hf://datasets/{file.name}@<commit>/...")
    log.info("%s is read at the commit %s.", url, commit)
    return f"hf://{file.kind}{file.name}@{commit}{file.path}"
