"""An HTTP server on loopback that serves bytes by range, and can fail."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


@dataclass
class HttpStore:
    """Objects by their path. ``spoil`` gives the status of a wrong answer to the request of a number, or None."""

    objects: dict[str, tuple[bytes, dict[str, str]]] = field(default_factory=dict)
    spoil: Callable[[int], int | None] = lambda _: None
    before: Callable[[str, str], None] = lambda *_: None
    """Called with the method and the path of a request before it is answered."""
    page: Callable[[str], bytes | None] = lambda _: None
    """What is at a path with a query that is no object, such as the listing of a folder."""
    knows_ranges: bool = True
    shortens: Callable[[int], bool] = lambda _: False
    """Whether the answer to the request of a number has half of its bytes, as if these were all."""
    moved: Callable[[str], str | None] = lambda _: None
    """The URL that a path redirects to."""
    skew: int = 0
    """How many bytes before those that were asked for an answer begins."""
    is_chunked: bool = False
    """Whether answers to GET do not say how long they are."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """The headers of each request, with small letters in their names."""
    requests: int = 0
    port: int = 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def put(self, path: str, content: bytes, **headers: str) -> str:
        """Store an object with more headers, such as Last_Modified; its URL."""
        self.objects[f"/{path}"] = content, {name.replace("_", "-"): value for name, value in headers.items()}
        return self.url(path)


def _handler(store: HttpStore) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def answer(self) -> None:
            with lock:
                number, store.requests = store.requests, store.requests + 1
                store.headers.append({name.lower(): value for name, value in self.headers.items()})
            store.before(self.command, self.path)
            status, path = store.spoil(number), self.path if self.path in store.objects else unquote(self.path)
            if status is None and (page := store.page(self.path)) is not None:
                store.objects[path] = page, {"Content-Type": "application/xml"}
            if (target := store.moved(self.path)) is not None:
                self.send_response(302)
                self.send_header("Location", target)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if status is None and path not in store.objects:
                status = 404
            if status is not None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            content, headers = store.objects[path]
            wanted = self.headers.get("Range")
            if wanted and store.knows_ranges:
                begin, end = (int(one) - store.skew for one in wanted.removeprefix("bytes=").split("-"))
                part = content[begin : end + 1]
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {begin}-{begin + len(part) - 1}/{len(content)}")
            else:
                part = content
                self.send_response(200)
            if store.shortens(number) and self.command == "GET":
                part = part[: len(part) // 2]
            is_chunked = store.is_chunked and self.command == "GET"
            length = {"Transfer-Encoding": "chunked"} if is_chunked else {"Content-Length": str(len(part))}
            for name, value in {**length, "Accept-Ranges": "bytes", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(part), part) if is_chunked else part)

        do_GET = do_HEAD = answer  # noqa: N815

    return Handler


@contextlib.contextmanager
def http_store() -> Iterator[HttpStore]:
    """A server that runs until the block ends."""
    store = HttpStore()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(store))
    server.daemon_threads = True
    store.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
