"""Clients: names of options, versions of objects, and fsspec's stores read like folders."""

import re
from datetime import UTC, datetime

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import midepoch as me
from midepoch._common.checks import log_once
from midepoch.errors import MissingExtraError, StoreError
from midepoch.storage.clients import (
    LEAST_BYTES_A_SECOND,
    UNREAD,
    ArrowClient,
    ArrowHandle,
    FsspecHandle,
    connect,
    known_options,
)
from midepoch.storage.retry import ShortReadError
from midepoch.storage.store import Store
from objects import put, put_rows
from worlds import FORMATS, TEXTS, ids, write_files


def test_options_have_their_usual_names():
    expected = {"access_key": "k", "secret_key": "s", "session_token": "t", "endpoint_override": "e", "anonymous": True}
    for names in (
        ("key", "secret", "token", "endpoint", "anon"),
        ("access_key", "secret_key", "session_token", "endpoint_url", "anonymous"),
        ("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "endpoint_override", "anon"),
    ):
        assert known_options("s3", dict(zip(names, ("k", "s", "t", "e", True), strict=True))) == expected
    assert known_options("abfs", {"whatever": 1}) == {"whatever": 1}


def test_the_endpoint_of_s3_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert known_options("s3", {})["endpoint_override"] == "http://127.0.0.1:1"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:2")
    assert known_options("s3", {})["endpoint_override"] == "http://127.0.0.1:2"
    assert known_options("s3", {"endpoint": "http://127.0.0.1:3"})["endpoint_override"] == "http://127.0.0.1:3"
    assert known_options("gs", {}) == {}
    here, there = Store("s3://bucket/a"), Store("s3://bucket/a", {"endpoint": "http://127.0.0.1:3"})
    assert here.identity != there.identity  # their indexes and caches are not shared
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert known_options("s3", {}) == {}


def test_options_as_fsspec_nests_them():
    nested = {
        "anon": False,
        "client_kwargs": {"endpoint_url": "http://e", "region_name": "r"},
        "config_kwargs": {"connect_timeout": 1, "read_timeout": 2},
    }
    expected = {"anonymous": False, "endpoint_override": "http://e", "region": "r"}
    assert known_options("s3", nested) == {**expected, "connect_timeout": 1, "request_timeout": 2}
    with pytest.raises(TypeError, match="storage_options has 'signature_version', which s3:// does not know"):
        known_options("s3", {"config_kwargs": {"signature_version": "s3v4"}})
    with pytest.raises(TypeError, match="'region' twice, also inside of client_kwargs or config_kwargs"):
        known_options("s3", {"region": "a", "client_kwargs": {"region": "b"}})


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_options_of_the_caches_of_fsspec_are_left_out_and_named(scheme, caplog):
    caches = {"skip_instance_cache": True, "use_listings_cache": False, "default_cache_type": "none"}
    plain = {"endpoint": "http://127.0.0.1:1", "anon": True}
    log_once.cache_clear()
    assert known_options(scheme, {**plain, **caches}) == known_options(scheme, plain)
    known_options(scheme, caches)
    assert len(caplog.messages) == len(caches)
    for name, message in zip(caches, caplog.messages, strict=True):
        assert message.startswith(f"{name} in storage_options has no effect")
        assert "pass cache_dir" in message
    assert Store(f"{scheme}://a/b", {**plain, **caches}).identity == Store(f"{scheme}://a/b", plain).identity


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sekret": "hush-hush"},
            "storage_options has 'sekret', which s3:// does not know. It knows: key, secret, token",
        ),
        ({"key": "hush-hush", "access_key": "hush-hush"}, "which mean the same"),
        ({"key": "hush-hush"}, "needs both key and secret"),
        ({"anon": "hush-hush"}, "anon in storage_options must be True or False, not a str"),
    ],
)
def test_an_error_names_a_wrong_option_but_not_its_value(options, message):
    with pytest.raises(TypeError, match=re.escape(message)) as error:
        Store("s3://bucket/x", options)
    assert "hush" not in str(error.value)


def test_clients_take_their_options():
    given = {"key": "k", "secret": "s", "token": "t", "endpoint": "http://127.0.0.1:9/", "request_timeout": 1.0}
    assert isinstance(connect("s3", "bucket", known_options("s3", given)), ArrowClient)
    for given in ({"anonymous": True, "endpoint": "http://127.0.0.1:9"}, {"token": "t", "project": "p"}):
        assert isinstance(connect("gs", "bucket", known_options("gs", given)), ArrowClient)


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


def test_http_has_time_outs_and_a_least_speed_unless_the_user_sets_one():
    client = connect("http", "", {})
    assert client._system.client_kwargs["timeout"].sock_read == 30
    given = connect("http", "", {"client_kwargs": {"timeout": "theirs"}})
    assert given._system.client_kwargs["timeout"] == "theirs"
    waited = []

    class System:
        def cat_file(self, path, start, end, **options):
            waited.append(options)
            return bytes(end - start)

    for speed in (None, LEAST_BYTES_A_SECOND):
        FsspecHandle(System(), "x", 1 << 30, "", speed).read_at(LEAST_BYTES_A_SECOND * 10, 0)
    assert waited == [{}, {"timeout": 40}]


def test_entries_of_all_kinds_yield_a_version_and_a_change_number():
    from midepoch.storage.clients import _change_number, _version

    moment = datetime(2024, 1, 1, tzinfo=UTC)
    assert _change_number({"mtime": 1.5}) == 1_500_000_000
    assert _change_number({"LastModified": moment}) == int(moment.timestamp() * 1e9)
    assert _change_number({"ETag": "a"}) != _change_number({"ETag": "b"})
    assert _change_number({}) == 0
    assert _version({"ETag": "a", "mtime": 3}) == "a"
    assert _version({"Last-Modified": "Mon, 05 Jan 2026 10:00:00 GMT"}) == "Mon, 05 Jan 2026 10:00:00 GMT"
    assert _change_number({"Last-Modified": "a"}) != _change_number({"Last-Modified": "b"})
    assert _version({"size": 3}) == ""


class Answering:
    """A file whose answers have these contents, one after the other, and which says that each was whole."""

    def __init__(self, *answers):
        self.answers = [*answers]

    def size(self):
        return 100

    def metadata(self):
        return {}

    def get_stream(self, offset, nbytes):
        return self

    def readinto(self, buffer):
        content = self.answers.pop(0)
        memoryview(buffer).cast("B")[: len(content)] = content
        return buffer.size


@pytest.mark.parametrize("last", range(256))
def test_an_answer_that_is_too_short_is_noticed_whatever_its_bytes_are(last):
    whole = bytes([last]) * 7
    for missing in range(1, 8):
        short = whole[:-missing]
        with pytest.raises(ShortReadError, match="got fewer than 7 bytes"):
            ArrowHandle(Answering(short, short), ()).read_at(7, 0)
        if last != UNREAD[1]:  # that one is asked for again
            assert ArrowHandle(Answering(short, whole), ()).read_at(7, 0).to_pybytes() == whole
    assert ArrowHandle(Answering(whole, whole), ()).read_at(7, 0).to_pybytes() == whole
    assert ArrowHandle(Answering(), ()).read_at(0, 0).size == 0
