"""An S3 server on loopback, and a proxy in front of it that counts, delays and spoils what goes through."""

import contextlib
import http.client
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

KEY, SECRET = "AKIA-loopback-key", "secret-of-the-loopback"
SIGNED = {"Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20240101/us-east-1/s3/aws4_request, Signature=0"}
HOP = ("connection", "transfer-encoding", "keep-alive")
ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
CODES = {403: "AccessDenied", 404: "NoSuchKey", 429: "TooManyRequests", 500: "InternalError", 503: "SlowDown"}


@dataclass(frozen=True)
class Request:
    """One request as the proxy saw it. ``key`` is the path after the bucket."""

    method: str
    key: str
    query: str
    range: str
    number: int

    @property
    def is_read(self) -> bool:
        """Whether it reads bytes of an object."""
        return self.method == "GET" and bool(self.key)


Spoil = Callable[[Request], "int | str | None"]
"""What to do with a request: an HTTP status to answer, "drop" (close the connection), "cut" (in the middle of the
body), "short" (half of the body, as if that were all), "drip" (a byte now and then), or None to pass it on."""


@dataclass
class Proxy:
    """A proxy. ``spoil`` says what goes wrong; ``latency`` is added to every answer."""

    target: int
    spoil: Spoil | None = None
    latency: float = 0.0
    unforwarded: tuple[str, ...] = ()
    """Names of headers that the server does not see."""
    requests: list[Request] = field(default_factory=list)
    body_bytes: int = 0
    busy: int = 0
    most_busy: int = 0
    lock: Any = field(default_factory=threading.Lock)
    server: Any = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    @property
    def options(self) -> dict[str, Any]:
        """Options to read through the proxy."""
        return {"key": KEY, "secret": SECRET, "endpoint": self.endpoint, "region": "us-east-1"}

    def reads(self) -> list[Request]:
        """The requests that read objects' bytes."""
        return [one for one in self.requests if one.is_read]

    def reset(self) -> None:
        """Forget what was seen, and spoil nothing."""
        with self.lock:
            self.requests, self.body_bytes, self.spoil, self.latency, self.most_busy = [], 0, None, 0.0, 0


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: Any) -> None:
            pass

        def _pass(self) -> None:
            path, _, query = self.path.partition("?")
            _, _, key = path.lstrip("/").partition("/")
            with proxy.lock:
                request = Request(self.command, unquote(key), query, self.headers.get("Range", ""), len(proxy.requests))
                proxy.requests.append(request)
                proxy.busy += 1
                proxy.most_busy = max(proxy.most_busy, proxy.busy)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                if proxy.latency:
                    time.sleep(proxy.latency)
                what = proxy.spoil(request) if proxy.spoil is not None else None
                if isinstance(what, int):
                    self._refuse(what)
                elif what == "drop":
                    self.close_connection = True
                    with contextlib.suppress(OSError):
                        self.connection.shutdown(socket.SHUT_RDWR)
                else:
                    self._forward(body, what)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            finally:
                with proxy.lock:
                    proxy.busy -= 1

        def _refuse(self, status: int) -> None:
            content = ERROR.format(code=CODES.get(status, "Other")).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def _forward(self, body: bytes, what: str | None) -> None:
            upstream = http.client.HTTPConnection("127.0.0.1", proxy.target)
            headers = {name: value for name, value in self.headers.items() if name not in proxy.unforwarded}
            try:
                upstream.request(self.command, self.path, body, headers)
                answer = upstream.getresponse()
                content = answer.read()
            finally:
                upstream.close()
            self.send_response(answer.status)
            length = str(len(content))
            for name, value in answer.getheaders():
                if name.lower() == "content-length":
                    length = value
                elif name.lower() not in HOP and name.lower() not in ("date", "server"):
                    self.send_header(name, value)
            if what == "short":
                content = content[: len(content) // 2]
                length = str(len(content))
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command == "HEAD":
                return
            if what == "drip":
                for number in range(len(content)):  # until the other side gives up
                    self.wfile.write(content[number : number + 1])
                    time.sleep(0.02)
            if what == "cut":
                self.wfile.write(content[: len(content) // 2])
                self.wfile.flush()
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
                return
            with proxy.lock:  # before the client can go on, and have the count reset
                proxy.body_bytes += len(content)
            self.wfile.write(content)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass  # noqa: N815

    return Handler


@contextlib.contextmanager
def serving() -> Iterator[int]:
    """A moto server in a process of its own; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env={**os.environ, "AWS_ACCESS_KEY_ID": KEY}, **quiet)
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None:
                raise RuntimeError("the S3 server did not start")
            time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def proxying(port: int) -> Iterator[Proxy]:
    """A proxy in front of a server."""
    proxy = Proxy(port)
    proxy.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(proxy))
    proxy.server.daemon_threads = True
    thread = threading.Thread(target=proxy.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.server.shutdown()
        thread.join()
        proxy.server.server_close()


def call(port: int, method: str, path: str, body: bytes = b"") -> bytes:
    """A plain request to the server, which does not look at signatures."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request(method, path, body, SIGNED)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    if answer.status >= 300:
        raise RuntimeError(f"{method} {path}: {answer.status} {re.sub(rb'<[^>]*>', b' ', content)[:200]!r}")
    return content


def now_and_then(what: Sequence[int | str], share: float = 0.25) -> Spoil:
    """Spoil a share of the requests, but none of them so often that it is given up."""
    chance, spoiled = random.Random(7), Counter[Any]()

    def spoil(request: Request) -> int | str | None:
        same = (request.method, request.key, request.query, request.range)
        if chance.random() > (share if request.key else share / 3) or spoiled[same] > 1:
            return None
        spoiled[same] += 1
        return chance.choice(what)

    return spoil


def put_folder(port: int, bucket: str, folder: Path, under: str = "d") -> str:
    """Put the files of a folder into a bucket; the URL of the folder there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    put_all(port, bucket, {f"{under}/{path.relative_to(folder)}": path.read_bytes() for path in files})
    return f"s3://{bucket}/{under}"


def put_all(port: int, bucket: str, objects: Mapping[str, bytes]) -> None:
    """Make a bucket, if it is not there, and put objects into it, over one connection."""
    call(port, "PUT", f"/{bucket}")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        for key, content in objects.items():
            connection.request("PUT", f"/{bucket}/{key}", content, SIGNED)
            answer = connection.getresponse()
            answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"PUT {bucket}/{key}: {answer.status}")
    finally:
        connection.close()
