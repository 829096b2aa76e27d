"""Loopback servers that speak what midepoch asks of Azure Blob Storage and of Google Cloud Storage."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from http_store import HttpStore, http_store

MONDAY = "Mon, 05 Jan 2026 10:00:00 GMT"
KEY = "c2VjcmV0LWtleS1vZi10aGUtbG9vcGJhY2s="


class Cloud:
    """A bucket or container named "data" behind a web server. ``put`` stores the version of a number."""

    def __init__(self, server: HttpStore, scheme: str, options: dict[str, Any], prefix: str) -> None:
        self.server, self.scheme, self.options, self._prefix = server, scheme, options, prefix
        self.versions: dict[str, int] = {}

    def put(self, name: str, content: bytes, version: int = 1) -> str:
        """Store an object; its URL."""
        headers = {"ETag": f'"0x{version}"', "Last_Modified": MONDAY, "x_goog_generation": str(version)}
        if self.scheme != "gs":
            headers |= {"x_ms_blob_type": "BlockBlob", "x_ms_version": "2023-11-03"}
            del headers["x_goog_generation"]
        self.server.put(f"{self._prefix}{name}", content, **headers)
        self.versions[name] = version
        return f"{self.scheme}://data/{name}"

    def content(self, name: str) -> bytes:
        return self.server.objects[f"/{self._prefix}{name}"][0]

    def is_read(self, method: str, path: str) -> bool:
        """True for a request of obstore for bytes of an object."""
        return method == "GET" and unquote(path).startswith(f"/{self._prefix}") and "?" not in path

    def below(self, prefix: str, *, deep: bool) -> tuple[list[str], list[str]]:
        """The names of objects and of folders that begin with a prefix."""
        names = sorted(name for name in self.versions if name.startswith(prefix))
        if deep:
            return names, []
        folders = {prefix + name[len(prefix) :].partition("/")[0] + "/" for name in names if "/" in name[len(prefix) :]}
        return [name for name in names if "/" not in name[len(prefix) :]], sorted(folders)


def _azure_page(cloud: Cloud) -> Callable[[str], bytes | None]:
    def page(path: str) -> bytes | None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
        if query.get("comp") != "list":
            return None
        names, folders = cloud.below(query.get("prefix", ""), deep="delimiter" not in query)
        blobs = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{MONDAY}</Last-Modified>"
            f"<Etag>0x{cloud.versions[name]}</Etag><Content-Length>{len(cloud.content(name))}</Content-Length>"
            "<Content-Type>application/octet-stream</Content-Type><BlobType>BlockBlob</BlobType></Properties></Blob>"
            for name in names
        ) + "".join(f"<BlobPrefix><Name>{escape(folder)}</Name></BlobPrefix>" for folder in folders)
        text = f"<EnumerationResults><Prefix></Prefix><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>"
        return b'<?xml version="1.0" encoding="utf-8"?>' + text.encode()

    return page


def _gcs_page(cloud: Cloud) -> Callable[[str], bytes | None]:
    def page(path: str) -> bytes | None:
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path != "/data" or query.get("list-type") != "2":
            return None
        names, folders = cloud.below(query.get("prefix", ""), deep="delimiter" not in query)
        objects = "".join(
            f"<Contents><Key>{escape(name)}</Key><Generation>{cloud.versions[name]}</Generation>"
            f"<LastModified>2026-01-05T10:00:00.000Z</LastModified><ETag>&quot;0x{cloud.versions[name]}&quot;</ETag>"
            f"<Size>{len(cloud.content(name))}</Size></Contents>"
            for name in names
        )
        objects += "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders)
        text = f"<ListBucketResult><Name>data</Name><IsTruncated>false</IsTruncated>{objects}</ListBucketResult>"
        return b"<?xml version='1.0' encoding='UTF-8'?>" + text.encode()

    return page


@contextlib.contextmanager
def azure_store() -> Iterator[Cloud]:
    """A container of an account on loopback."""
    with http_store() as server:
        options = {"account_name": "me", "account_key": KEY, "endpoint": server.url("me")}
        cloud = Cloud(server, "abfs", options, "me/data/")
        server.page = _azure_page(cloud)
        yield cloud


@contextlib.contextmanager
def gcs_store() -> Iterator[Cloud]:
    """A bucket on loopback."""
    with http_store() as server:
        options = {"token": "token-of-the-loopback", "endpoint": server.url("").rstrip("/")}
        cloud = Cloud(server, "gs", options, "data/")
        server.page = _gcs_page(cloud)
        yield cloud
