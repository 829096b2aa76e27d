"""Rows name files. Only what the user has allowed is opened."""

import os
import pickle

import pytest

from http_store import http_store
from midepoch.errors import NoDataError, NotAllowedError
from midepoch.storage import named_files
from midepoch.storage.fsspec import AllowedRedirects
from midepoch.storage.named_files import NamedFiles
from objects import put


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "x").write_bytes(b"in")
    (tmp_path / "in" / "deep" / "x").write_bytes(b"deep")
    (tmp_path / "out").write_bytes(b"out")
    (tmp_path / "in-too").write_bytes(b"a name that begins as the folder does")
    return tmp_path / "in"


def test_files_in_the_folder(folder):
    for given in (folder, f"{folder}/", f"file://{folder}"):
        files = NamedFiles(given)
        assert files.read("x") == files.read(folder / "x") == files.read(f"file://{folder}/x") == b"in"
        assert files.read("deep/x") == files.read("deep/../deep/x") == b"deep"
    with pytest.raises(NoDataError, match="cannot be read: No such file"):
        files.read("gone")
    assert NamedFiles("/").read(folder / "x") == b"in"


@pytest.mark.parametrize(
    "name", ["../out", "deep/../../out", "{above}/out", "file://{above}/out", "../in-too", "/etc/hostname"]
)
def test_files_outside_of_the_folder(folder, name):
    with pytest.raises(NotAllowedError, match=r"outside of data_folder .* pass a data_folder= that contains it"):
        NamedFiles(folder).read(name.format(above=folder.parent))


def test_links_are_resolved_before_the_folder_is_compared(folder, tmp_path):
    (folder / "good").symlink_to(folder / "x")
    (folder / "bad").symlink_to(tmp_path / "out")
    (tmp_path / "link").symlink_to(folder)
    assert NamedFiles(folder).read("good") == NamedFiles(tmp_path / "link").read("x") == b"in"
    with pytest.raises(NotAllowedError, match="outside of data_folder"):
        NamedFiles(folder).read("bad")


def test_a_tilde_in_a_row_is_a_name(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    assert NamedFiles("~").read("x") == b"in"
    with pytest.raises(NoDataError, match="No such file"):
        NamedFiles("~").read("~/x")


def test_folders_devices_and_pipes_are_not_read(folder):
    os.mkfifo(folder / "pipe")
    with pytest.raises(NotAllowedError, match="pipe, which is a folder, a device or a pipe"):
        NamedFiles(folder).read("pipe")
    with pytest.raises(NotAllowedError, match="deep, which is a folder"):
        NamedFiles(folder).read("deep")
    with pytest.raises(NotAllowedError, match="/dev/zero, which is a folder, a device"):
        NamedFiles("/dev").read("zero")


def test_without_a_folder_no_file_is_read(folder):
    with pytest.raises(NotAllowedError, match="none was given"):
        NamedFiles().read(folder / "x")


def test_a_file_has_a_limited_size(folder):
    put("/a/x", b"there")
    assert NamedFiles(folder, max_file_bytes=2).read("x") == b"in"
    with pytest.raises(NotAllowedError, match=r"deep/x has 4 bytes, more than max_file_bytes \(3\)"):
        NamedFiles(folder, max_file_bytes=3).read("deep/x")
    with pytest.raises(NotAllowedError, match=r"memory://a/x has 5 bytes, more than max_file_bytes \(4\)"):
        NamedFiles("memory://a", max_file_bytes="4b").read("x")
    with pytest.raises(ValueError, match="max_file_bytes is 0"):
        NamedFiles(folder, max_file_bytes=0)


def test_a_folder_of_a_store():
    put("/a/b/x", b"there")
    put("/a/y", b"above")
    put("/a/b/empty", b"")
    files = NamedFiles("memory://a/b/")
    assert files.read("x") == files.read("memory://a/b/x") == b"there"
    assert files.read("empty") == b""
    with pytest.raises(NoDataError, match="memory://a/b/y does not exist in the store"):
        files.read("y")
    for name in ("../y", "c/../../y", "%2e%2e/y", "/y", "memory://a/b/../y", "..\\y", "file:///etc/hostname"):
        with pytest.raises(NotAllowedError, match="not below data_folder"):
            files.read(name)
    with pytest.raises(NotAllowedError, match=r"pass allow_urls=\['memory://a'\]"):
        files.read("memory://a/y")
    assert NamedFiles("memory://a/b", allow_urls=["memory://a"]).read("memory://a/y") == b"above"
    assert pickle.loads(pickle.dumps(files)).read("x") == b"there"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/x",
        "https://evil.example/x",
        "https://good.example.evil.example/x",
        "https://good.example:8443/x",
        "http://good.example/x",
        "local:///etc/hostname",
        "file://host/etc/hostname",
    ],
)
def test_urls_of_other_origins(url):
    with pytest.raises(NotAllowedError, match="allow_urls"):
        NamedFiles(allow_urls=["https://good.example"]).read(url)


@pytest.mark.parametrize("url", ["https://good.example@evil.example/x", "https://good.example\\@evil.example/x"])
def test_a_host_that_looks_like_an_allowed_one(url):
    with pytest.raises(ValueError, match="holds credentials"):
        NamedFiles(allow_urls=["https://good.example"]).read(url)


@pytest.fixture
def stores(monkeypatch):
    """The options that each store gets, by its first URL."""
    made = {}

    class Store:
        def __init__(self, url, options):
            made[url] = options

        def read(self, url, check_size):
            return b""

    monkeypatch.setattr(named_files, "Store", Store)
    return made


def test_options_go_only_to_the_origins_they_were_given_for(stores):
    options = {"headers": {"authorization": "hush"}}
    files = NamedFiles(
        "s3://folder/x",
        allow_urls=(url for url in ["https://OTHER.example/", "s3://source", "s3://folder"]),
        storage_options=options,
        options_for=["s3://source/chats.jsonl", "chats.jsonl"],
    )
    for name in ("a", "s3://folder/b", "s3://source/c", "https://other.example/d"):
        files.read(name)
    assert list(stores.pop("https://other.example/d")) == [AllowedRedirects.OPTION]
    assert stores == {"s3://folder/x/a": options, "s3://source/c": options}
    assert "hush" not in repr(files)


@pytest.mark.parametrize("url", ["example.com", "https://", "https://example.com/images", 3])
def test_what_is_no_origin_is_refused(url):
    with pytest.raises(ValueError, match="must be a scheme and a host or bucket"):
        NamedFiles(allow_urls=[url])


@pytest.mark.parametrize("name", ["x\0", "file://{folder}/x%00y", "x\ud800"])
def test_a_name_that_no_file_has(folder, name):
    with pytest.raises(NotAllowedError, match="which no file can be named"):
        NamedFiles(folder).read(name.format(folder=folder))


def test_a_folder_that_becomes_a_link_after_it_was_checked_is_not_followed(folder, tmp_path, monkeypatch):
    inner, outside = folder / "inner", tmp_path / "outside"
    for place, content in ((inner, b"inside"), (outside, b"secret")):
        place.mkdir()
        (place / "x").write_bytes(content)
    files = NamedFiles(folder)
    assert files.read("inner/x") == b"inside"
    opened = os.open

    def swapped(path, *arguments):
        if not inner.is_symlink():
            inner.rename(folder / "moved")
            inner.symlink_to(outside)
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(NotAllowedError, match=r"which became .*outside/x while it was opened"):
        files.read("inner/x")


def test_a_file_that_becomes_a_link_after_it_was_checked_is_not_followed(folder, tmp_path, monkeypatch):
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "x").write_bytes(b"inside")
    opened = os.open

    def swapped(path, *arguments):
        (folder / "x").unlink()
        (folder / "x").symlink_to(tmp_path / "secret")
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(NoDataError, match="cannot be read"):
        NamedFiles(folder).read("x")


@pytest.mark.parametrize("hops", [1, 2])
def test_redirects_lead_only_to_allowed_origins(hops):
    with http_store() as first, http_store() as other:
        for server, content in ((first, b"fine"), (other, b"secret")):
            server.put("x", content)
            server.put("z", content)
        targets = {"/x": other.url("x") if hops == 1 else "/y", "/y": other.url("x")}
        first.moved = targets.get
        origins = [server.url("x").removesuffix("/x") for server in (first, other)]
        files = NamedFiles(allow_urls=origins[:1])
        for _ in range(2):
            with pytest.raises(NotAllowedError, match=rf"redirects to {origins[1]}\. If that is trusted too, add"):
                files.read(first.url("x"))
        assert other.requests == 0
        assert files.read(first.url("z")) == b"fine"
        targets["/x"] = "/z"
        assert pickle.loads(pickle.dumps(files)).read(first.url("x")) == b"fine", "it is the same host"
        targets["/x"] = other.url("x")
        assert NamedFiles(allow_urls=origins).read(first.url("x")) == b"secret"
