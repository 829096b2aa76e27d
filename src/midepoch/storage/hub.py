"""hf:// URLs: the branch that they name, or do not name, is found out once, so that a run reads one revision."""

import logging
import re
from collections.abc import Mapping
from typing import Any

from midepoch.errors import MissingExtraError, NoDataError, StoreError

log = logging.getLogger("midepoch")
REPOSITORY = re.compile(
    r"(?P<kind>datasets/|spaces/|models/)?(?P<name>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?(?P<path>/.*)?"
)
TYPES = {"datasets/": "dataset", "spaces/": "space"}
COMMIT = re.compile(r"[0-9a-f]{40}")
PULL_REQUEST = re.compile(r"@(refs/(?:pr/\d+|convert/\w+))")
"""The only revisions with slashes that the hub has. In a URL their slashes are written as %2F."""


def pinned(url: str, options: Mapping[str, Any]) -> str:
    """The same URL with the commit that its branch is at now. Another URL than hf:// is returned unchanged."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() != "hf" or rest.startswith("buckets/"):
        return url
    rest = PULL_REQUEST.sub(lambda match: "@" + match[1].replace("/", "%2F"), rest)
    match = REPOSITORY.fullmatch(rest)
    if match is None:
        raise ValueError(f"{url} names no repository; write hf://datasets/owner/name/folder/*.parquet.")
    kind, revision = match["kind"] or "", match["revision"]
    if revision is not None and COMMIT.fullmatch(revision):
        return url
    commit = _commit(url, match["name"], TYPES.get(kind, "model"), revision, options)
    log.info("%s is read at the commit %s.", url, commit)
    return f"hf://{kind}{match['name']}@{commit}{match['path'] or ''}"


def _commit(url: str, name: str, kind: str, revision: str | None, options: Mapping[str, Any]) -> str:
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise MissingExtraError("huggingface_hub", "huggingface", "Reading hf:// URLs") from None
    api = HfApi(endpoint=options.get("endpoint"), token=options.get("token"))
    wanted = None if revision is None else revision.replace("%2F", "/")
    try:
        commit = api.repo_info(name, repo_type=kind, revision=wanted).sha
    except HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403, 404):
            raise NoDataError(
                f"{url} does not exist on the hub, or needs a token: {status}. Check the name and the revision "
                f"{wanted or 'main'!r}, or pass storage_options={{'token': ...}}."
            ) from None
        raise StoreError(f"The hub does not answer for {url}: {status}. Try again later.") from None
    except Exception as error:  # of its HTTP client, which is another one in each release
        raise StoreError(
            f"The hub cannot be reached for {url}: {type(error).__name__}. Is this machine online, and is "
            "HF_HUB_OFFLINE not set?"
        ) from None
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise StoreError(f"The hub names no commit for {url}. Pass one: hf://datasets/{name}@<commit>/...")
    return commit
