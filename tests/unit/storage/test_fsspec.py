"""The client of fsspec: its stores read like folders, each read is checked, and headers stay with their host."""

import json
import re
from datetime import UTC, datetime
from threading import Event

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import midepoch as me
from http_store import http_store
from midepoch.errors import MissingExtraError, StoreError
from midepoch.storage import fsspec as fsspec_client
from midepoch.storage.fsspec import (
    FsspecHandle,
    change_number,
    version_of,
)
from midepoch.storage.hub import pinned
from midepoch.storage.retry import OtherVersionError
from midepoch.storage.store import connect
from objects import numbered, put, put_rows
from worlds import FORMATS, TEXTS, ids, write_files


@pytest.mark.parametrize("kinds", [FORMATS, TEXTS, ("orc",)])
def test_memory_reads_like_a_folder(tmp_path, kinds):
    folder = write_files(tmp_path / "data", [35, 1, 50, 20], kinds)
    for path in folder.iterdir():
        put(f"/data/{path.name}", path.read_bytes())
    for name in (".hidden.parquet", "_SUCCESS", "_tmp/a.parquet", "x/.y/a.parquet"):
        put(f"/data/{name}", b"no data")
    local, remote = me.read(folder), me.read("memory://data")
    assert remote.schema == local.schema
    assert list(remote) == list(local)
    assert list(me.read("memory://data").shuffle(3)) == list(me.read(folder).shuffle(3))


def test_a_folder_through_fsspec(tmp_path):
    write_files(tmp_path / "data", [30, 20])
    dataset = me.read(f"local://{tmp_path}/data")
    assert dataset._plan.pipeline.source.index.store is not None
    assert ids(dataset) == list(range(50))
    assert ids(me.read(f"local://{tmp_path}/data/*1*")) == list(range(30, 50))
    # A state does not know where files lie.
    fresh = me.read(f"local://{tmp_path}/data").state_dict()
    assert fresh == me.read(tmp_path / "data").state_dict()


def test_an_unknown_scheme_is_an_error_that_names_the_url():
    with pytest.raises(
        StoreError, match="nosuchthing://x/y cannot be read from the store: ValueError: Protocol not known"
    ):
        me.read("nosuchthing://x/y")


def test_without_fsspec_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'midepoch[remote]'")):
        me.read("memory://x")


def test_options_reach_the_client_of_another_store(tmp_path):
    seen = []

    class Locked(MemoryFileSystem):
        protocol = "locked"

        def __init__(self, password=None, **others):
            super().__init__(**others)
            seen.append(password)
            if password != "open-sesame":
                raise PermissionError(f"{password} is wrong")

        @classmethod
        def _strip_protocol(cls, path):
            return MemoryFileSystem._strip_protocol(path.replace("locked://", "memory://"))

    fsspec.register_implementation("locked", Locked, clobber=True)
    put_rows()
    assert ids(me.read("locked://data", storage_options={"password": "open-sesame"})) == list(range(120))
    with pytest.raises(StoreError, match=r"refuses access to locked://data.*\*\*\* is wrong"):
        me.read("locked://data", storage_options={"password": "let-me-in"})
    assert set(seen) == {"open-sesame", "let-me-in"}


def test_entries_of_all_kinds_yield_a_version_and_achange_number():
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    assert change_number({"mtime": 1.5}) == 1_500_000_000
    assert change_number({"LastModified": moment}) == int(moment.timestamp() * 1e9)
    assert change_number({"ETag": "a"}) != change_number({"ETag": "b"})
    assert change_number({}) == 0
    assert version_of({"ETag": "a", "mtime": 3}) == "a"
    assert version_of({"Last-Modified": "Mon, 05 Jan 2026 10:00:00 GMT"}) == "Mon, 05 Jan 2026 10:00:00 GMT"
    assert change_number({"Last-Modified": "a"}) != change_number({"Last-Modified": "b"})
    assert version_of({"size": 3}) == ""


def test_a_web_server_whose_answers_do_not_say_their_version_is_asked_for_it_after_each_read():
    with http_store() as server:
        url = server.put("x", b"0123456789", ETag='"a"')
        handle = connect("http", "", {}).open(url)
        for etag in ('"a"', '"b"'):
            headers = {"HEAD": {"ETag": etag}, "GET": {}}
            server.before = lambda method, _, headers=headers: server.put("x", b"0123456789", **headers[method])
            if etag == '"a"':
                assert handle.read_at(3, 2).to_pybytes() == b"234"
            else:
                with pytest.raises(OtherVersionError):
                    handle.read_at(3, 2)


@pytest.mark.parametrize("etag", ['"a"', None])
def test_a_web_server_is_read_in_one_request_which_asks_for_the_version(etag):
    with http_store() as server:
        facts = {"ETag": etag} if etag else {"Last_Modified": "Mon, 05 Jan 2026 10:00:00 GMT"}
        url = server.put("x", b"0123456789", **facts)
        handle = connect("http", "", {"headers": {"X-Api-Key": "b"}}).open(url)
        server.headers.clear()
        assert handle.read_at(3, 2).to_pybytes() == b"234"
        (asked,) = server.headers
        assert (asked["range"], asked.get("if-match"), asked["x-api-key"]) == ("bytes=2-4", etag, "b")
        server.spoil = lambda _: 412
        with pytest.raises(OtherVersionError):
            handle.read_at(3, 2)


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_the_bytes_of_a_web_server_are_those_of_the_range(knows_ranges, caplog):
    with http_store() as server:
        server.knows_ranges = knows_ranges
        handle = connect("http", "", {}).open(server.put("x", b"0123456789"))
        assert handle.read_at(3, 2).to_pybytes() == b"234"
        assert handle.read_at(10, 0).to_pybytes() == b"0123456789"
        assert (f"{server.url('').rstrip('/')} sends whole files where parts" in caplog.text) is not knows_ranges
        server.skew = 1
        if knows_ranges:
            with pytest.raises(OtherVersionError):
                handle.read_at(3, 2)


def test_an_answer_of_a_web_server_that_comes_too_slowly_is_given_up(monkeypatch):
    monkeypatch.setattr(fsspec_client, "HTTP_SECONDS", 0.05)
    with http_store() as server:
        url = server.put("x", bytes(10))
        quick, slow = connect("http", "", {}).open(url), Event()
        server.before = lambda method, _: method == "GET" and slow.wait(10)
        with pytest.raises(TimeoutError):
            quick.read_at(3, 2)
        slow.set()


SECRETS = {"Authorization": "Bearer hush", "Cookie": "a=hush", "X-Api-Key": "hush", "PRIVATE-TOKEN": "hush"}


@pytest.mark.parametrize("names", [SECRETS, ["Authorization", "Cookie"], ["X-Api-Key"]], ids=str)
@pytest.mark.parametrize("nested", [False, True])
def test_a_host_that_is_redirected_to_gets_no_secrets(names, nested):
    headers = {name: SECRETS[name] for name in names}
    options = {"client_kwargs": {"headers": headers}} if nested else {"headers": headers}
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


OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with http_store() as server:
        yield server


def answer(hub, revision, commit, name="org/name", kind="datasets"):
    content = json.dumps({"id": name, "sha": commit}).encode()
    at = f"/revision/{revision}" if revision else ""
    hub.put(f"api/{kind}/{name}{at}", content, Content_Type="application/json")


def options(hub):
    return {"endpoint": hub.url("").rstrip("/"), "token": False}


def test_a_branch_becomes_a_commit(hub):
    answer(hub, None, NEW)
    answer(hub, "v1", OLD)
    answer(hub, None, OLD, "org/model", "models")
    answer(hub, "refs%2Fpr%2F3", OLD)
    for url, expected in (
        ("hf://datasets/org/name/data/*.parquet", f"hf://datasets/org/name@{NEW}/data/*.parquet"),
        ("hf://datasets/org/name", f"hf://datasets/org/name@{NEW}"),
        ("hf://datasets/org/name@v1/a.parquet", f"hf://datasets/org/name@{OLD}/a.parquet"),
        ("hf://datasets/org/name@refs/pr/3/a.parquet", f"hf://datasets/org/name@{OLD}/a.parquet"),
        ("hf://org/model/a.parquet", f"hf://org/model@{OLD}/a.parquet"),
    ):
        assert pinned(url, options(hub)) == expected


def test_what_needs_no_request(hub):
    for url in (f"hf://datasets/org/name@{OLD}/a", "s3://bucket/a", "hf://buckets/org/name/a"):
        assert pinned(url, options(hub)) == url
    assert hub.requests == 0


def test_what_is_not_there(hub, monkeypatch):
    with pytest.raises(me.NoDataError, match=r"hf://datasets/org/name@v9/a does not exist in the store.*404"):
        pinned("hf://datasets/org/name@v9/a", options(hub))
    with pytest.raises(ValueError, match="names no repository; write hf://datasets/owner/name"):
        pinned("hf://datasets", options(hub))
    answer(hub, None, "main")
    with pytest.raises(me.StoreError, match="The hub names no commit"):
        pinned("hf://datasets/org/name", options(hub))
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(me.StoreError, match="The store does not answer for hf://datasets/org/name"):
        pinned("hf://datasets/org/name", {"endpoint": "http://127.0.0.1:1", "token": False})


class System:
    """A file system of one object, which may be replaced."""

    def __init__(self):
        self.etag, self.asked = "a", []

    def _strip_protocol(self, url):
        return url

    def invalidate_cache(self):
        pass

    def info(self, path):
        self.asked.append("info")
        return {"size": 1 << 30, "ETag": self.etag}

    def cat_file(self, path, start, end, **options):
        self.asked.append(options)
        return bytes(end - start)


def test_each_read_is_followed_by_a_look_at_the_version():
    system = System()
    handle = FsspecHandle(system, "x://y")
    assert handle.read_at(10, 0).size == 10
    assert system.asked == ["info", {}, "info"]
    system.etag = "b"
    with pytest.raises(OtherVersionError):
        handle.read_at(1, 0)
