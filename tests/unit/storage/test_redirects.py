"""Redirects: another host gets none of the user's headers, and the same host gets them all."""

import pytest

import midepoch as me
from http_store import http_store
from midepoch.storage.redirects import headers_of, only_for_origin
from objects import numbered
from worlds import ids

SECRETS = {"Authorization": "Bearer hush", "Cookie": "a=hush", "X-Api-Key": "hush", "PRIVATE-TOKEN": "hush"}


@pytest.mark.parametrize("names", [SECRETS, ["Authorization", "Cookie"], ["X-Api-Key"]], ids=str)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("client", [None, "fsspec"])
def test_a_host_that_is_redirected_to_gets_no_secrets(names, nested, client):
    headers = {name: SECRETS[name] for name in names}
    options = {"client_kwargs": {"headers": headers}} if nested else {"headers": headers}
    if client is not None:
        options["client"] = client
    with http_store() as first, http_store() as other:
        other.put("x.parquet", numbered(0, 50), ETag='"a"')
        first.moved = lambda path: other.url(path[1:])
        assert ids(me.read(first.url("x.parquet"), storage_options=options)) == list(range(50))
        assert first.requests > 0
        assert all(
            headers.items() <= {name: one.get(name.lower()) for name in headers}.items() for one in first.headers
        )
        assert other.requests > 0
        assert not any("hush" in value for one in other.headers for value in one.values())


@pytest.mark.parametrize("target", ["/y.parquet", "http://127.0.0.1:{port}/y.parquet"])
def test_the_same_host_gets_them(target):
    with http_store() as server:
        server.put("y.parquet", numbered(0, 50), ETag='"a"')
        server.moved = lambda path: target.format(port=server.port) if path == "/x.parquet" else None
        options = {"headers": {"X-Api-Key": "hush"}}
        assert ids(me.read(server.url("x.parquet"), storage_options=options)) == list(range(50))
        assert all(one["x-api-key"] == "hush" for one in server.headers)


def test_which_headers_clients_would_send_on():
    options = {"headers": {"A": 1, "User-Agent": "me"}, "client_kwargs": {"headers": {"authorization": "b", "A": 2}}}
    assert headers_of(options) == {"A": "1", "User-Agent": "me", "authorization": "b"}
    assert only_for_origin(headers_of(options)) == ["A"]
