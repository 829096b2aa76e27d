"""A Hugging Face hub on loopback: repositories with commits, listings in pages, and files behind redirects to a CDN.

It answers what huggingface_hub and `datasets` ask, and can be slow, busy or private.
"""

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 4
"""The entries of a page of a listing."""
SIGNATURE = "signature-of-the-cdn"
Answer = tuple[int, dict[str, str], bytes]


@dataclass(frozen=True)
class Asked:
    """One request. ``place`` is "hub" or "cdn"."""

    place: str
    method: str
    path: str
    query: str
    headers: dict[str, str]

    @property
    def kind(self) -> str:
        """What was asked for: "info", "tree", "resolve" or "cdn"."""
        if self.place == "cdn":
            return "cdn"
        return next((kind for kind in ("tree", "resolve", "paths-info") if f"/{kind}/" in self.path), "info")


@dataclass
class Hub:
    """Datasets by name, each with branches and the files of each commit."""

    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    files: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    token: str | None = None
    """What a request must bear, if the datasets are private."""
    latency: float = 0.0
    spoil: Callable[[Asked], tuple[int, dict[str, str]] | None] = lambda _: None
    """The status and headers of a wrong answer to a request, or None."""
    asked: list[Asked] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports['hub']}"

    @property
    def options(self) -> dict[str, Any]:
        """The ``storage_options`` of this hub."""
        return {"endpoint": self.endpoint, "token": self.token or False}

    def push(self, name: str, files: dict[str, bytes], branch: str = "main") -> str:
        """A commit with these files, to which the branch moves; its name."""
        facts = json.dumps([name, sorted((path, hashlib.sha1(one).hexdigest()) for path, one in files.items())])
        commit = hashlib.sha1(facts.encode()).hexdigest()
        self.branches.setdefault(name, {})[branch] = commit
        self.files[name, commit] = dict(files)
        return commit

    def counts(self) -> dict[str, int]:
        """How many requests of each kind there were."""
        kinds = [one.kind for one in self.asked]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}

    def answer(self, asked: Asked) -> Answer:
        if (spoiled := self.spoil(asked)) is not None:
            return spoiled[0], spoiled[1], b""
        if asked.place == "cdn":
            return self._of_cdn(asked)
        if self.token is not None and asked.headers.get("authorization") != f"Bearer {self.token}":
            return 401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b""
        parts = unquote(asked.path).strip("/").split("/")
        if parts[:2] == ["api", "datasets"]:
            name, rest = "/".join(parts[2:4]), parts[4:]
            kind, revision = (rest[0], rest[1]) if len(rest) > 1 else ("revision", "main")
            commit = self._commit(name, revision)
            if commit is None:
                return 404, {"X-Error-Code": "RevisionNotFound" if name in self.branches else "RepoNotFound"}, b""
            if kind == "tree":
                return self._tree(asked, name, commit, "/".join(rest[2:]))
            siblings = [{"rfilename": path} for path in self.files[name, commit]]
            fact = {"id": name, "sha": commit, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
            return 200, {"Content-Type": "application/json"}, json.dumps(fact).encode()
        if parts[0] == "datasets" and parts[3:4] == ["resolve"]:
            name, path = "/".join(parts[1:3]), "/".join(parts[5:])
            commit = self._commit(name, parts[4])
            content = self.files.get((name, commit or ""), {}).get(path)
            if content is None:
                return 404, {"X-Error-Code": "EntryNotFound"}, b""
            target = f"http://127.0.0.1:{self.ports['cdn']}/{name}/{commit}/{path}?Signature={SIGNATURE}"
            linked = {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
            return 302, {"Location": target, "X-Repo-Commit": commit or "", **linked}, b""
        return 404, {}, b""

    def _commit(self, name: str, revision: str) -> str | None:
        return revision if (name, revision) in self.files else self.branches.get(name, {}).get(revision)

    def _tree(self, asked: Asked, name: str, commit: str, below: str) -> Answer:
        query = parse_qs(asked.query)
        is_deep = query.get("recursive", ["false"])[0].lower() in ("true", "1")
        prefix = f"{below}/" if below else ""
        entries: dict[str, dict[str, Any]] = {}
        for path, content in sorted(self.files[name, commit].items()):
            if not path.startswith(prefix):
                continue
            inner = path[len(prefix) :].split("/")
            for depth in range(1, len(inner) if is_deep else min(2, len(inner))):
                folder = prefix + "/".join(inner[:depth])
                entries[folder] = {"type": "directory", "path": folder, "oid": "0" * 40, "size": 0}
            if is_deep or len(inner) == 1:
                oid = hashlib.sha1(content).hexdigest()
                entries[path] = {"type": "file", "path": path, "oid": oid, "size": len(content)}
        if not entries:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        first = int(query.get("cursor", ["0"])[0])
        page, headers = list(entries.values())[first : first + PAGE], {"Content-Type": "application/json"}
        if first + PAGE < len(entries):
            deep = "true" if is_deep else "false"
            url = f"{self.endpoint}{asked.path}?recursive={deep}&cursor={first + PAGE}"
            headers["Link"] = f'<{url}>; rel="next"'
        return 200, headers, json.dumps(page).encode()

    def _of_cdn(self, asked: Asked) -> Answer:
        if asked.query != f"Signature={SIGNATURE}":
            return 403, {}, b""
        owner, name, commit, path = unquote(asked.path).strip("/").split("/", 3)
        content = self.files[f"{owner}/{name}", commit][path]
        wanted = asked.headers.get("range")
        if wanted is None:
            return 200, {"Accept-Ranges": "bytes"}, content
        begin, _, end = wanted.removeprefix("bytes=").partition("-")
        part = content[int(begin) : int(end) + 1 if end else None]
        return 206, {"Content-Range": f"bytes {begin}-{int(begin) + len(part) - 1}/{len(content)}"}, part


def _handler(hub: Hub, place: str) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: Any) -> None:
            pass

        def respond(self) -> None:
            parts = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(place, self.command, parts.path, parts.query, headers)
            self.rfile.read(int(headers.get("content-length", 0)))
            with lock:
                hub.asked.append(asked)
            if hub.latency:
                time.sleep(hub.latency)
            status, answered, content = hub.answer(asked)
            self.send_response(status)
            for name, value in {**answered, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = respond  # noqa: N815

    return Handler


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    """A hub and its CDN, which run until the block ends."""
    hub = Hub()
    servers = {place: ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub, place)) for place in ("hub", "cdn")}
    threads = [threading.Thread(target=one.serve_forever, args=(0.02,), daemon=True) for one in servers.values()]
    for place, server in servers.items():
        server.daemon_threads = True
        hub.ports[place] = server.server_address[1]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server in servers.values():
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()
