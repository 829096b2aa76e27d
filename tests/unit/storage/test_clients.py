"""Object stores without a server: names of options, secrets, URLs, what an error means, and fsspec."""

import io
import itertools
import logging
import os
import pickle
import re
import time
from datetime import UTC, datetime

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from midepoch._common.checks import parse_size
from midepoch.errors import DataChangedError, MissingExtraError, NoDataError, StoreError
from midepoch.storage.clients import ArrowClient, connect, known_options
from midepoch.storage.location import SmallFiles
from midepoch.storage.objects import LEAST_BYTES, StoredFile
from midepoch.storage.options import Fetch
from midepoch.storage.retry import RetryPolicy, ShortReadError, error_kind, with_retries
from midepoch.storage.store import REDACTED, Store
from midepoch.storage.urls import check_plain, is_url, local_path, split_glob
from objects import QUICK, SECRETS, find, stored
from worlds import FORMATS, TEXTS, ids, write_files


@pytest.fixture(autouse=True)
def _empty_memory():
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def put(path, content):
    fsspec.filesystem("memory").pipe_file(path, content)


def parquet(first, last, rows=10, *, noise=0):
    sink = io.BytesIO()
    table = pa.table({"id": list(range(first, last)), "noise": [os.urandom(noise) for _ in range(first, last)]})
    pq.write_table(table, sink, row_group_size=rows)
    return sink.getvalue()


def put_rows(folder="data", files=3, rows=40):
    for number in range(files):
        put(f"/{folder}/part-{number}.parquet", parquet(number * rows, (number + 1) * rows))
    return f"memory://{folder}"


def test_options_have_their_usual_names():
    expected = {"access_key": "k", "secret_key": "s", "session_token": "t", "endpoint_override": "e", "anonymous": True}
    for names in (
        ("key", "secret", "token", "endpoint", "anon"),
        ("access_key", "secret_key", "session_token", "endpoint_url", "anonymous"),
        ("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "endpoint_override", "anon"),
    ):
        assert known_options("s3", dict(zip(names, ("k", "s", "t", "e", True), strict=True))) == expected
    assert known_options("abfs", {"whatever": 1}) == {"whatever": 1}


@pytest.mark.parametrize(
    ("options", "told"),
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
def test_a_wrong_option_is_told_by_its_name_alone(options, told):
    with pytest.raises(TypeError, match=re.escape(told)) as error:
        Store("s3://bucket/x", options)
    assert "hush" not in str(error.value)


def test_options_must_be_a_dict():
    with pytest.raises(TypeError, match="storage_options must be a dict, not a str"):
        Store("s3://bucket/x", "hush-hush")


def test_clients_take_their_options():
    given = {"key": "k", "secret": "s", "token": "t", "endpoint": "http://127.0.0.1:9/", "request_timeout": 1.0}
    assert isinstance(connect("s3", "bucket", known_options("s3", given)), ArrowClient)
    for given in ({"anonymous": True, "endpoint": "http://127.0.0.1:9"}, {"token": "t", "project": "p"}):
        assert isinstance(connect("gs", "bucket", known_options("gs", given)), ArrowClient)


def test_a_store_never_shows_its_options():
    store = Store("s3://bucket/x", SECRETS)
    shown = f"{store!r} {store} {store.identity}"
    assert not any(value in shown for value in SECRETS.values())
    assert not hasattr(store, "__dict__")
    again = pickle.loads(pickle.dumps(store))
    assert (again.scheme, again.bucket, again.identity) == ("s3", "bucket", store.identity)
    assert again.redact("a-token-of-it") == REDACTED


def test_texts_of_others_lose_the_values_of_options():
    store = Store("abfs://c/x", {"account": {"keys": ["nested-value"]}, "url": "https://hidden.host/x", "n": 12345})
    told = store.redact("at hidden.host/x with nested-value, and https://hidden.host/x")
    assert told == f"at {REDACTED} with {REDACTED}, and {REDACTED}"


def test_stores_with_other_endpoints_are_others():
    stores = [Store("s3://b/x", {"endpoint": one}) for one in ("http://a", "http://b")] + [Store("s3://b/x")]
    assert len({store.identity for store in stores}) == 3


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError(2, "no"), "gone"),
        (OSError("AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation"), "gone"),
        (OSError("AWS Error UNKNOWN (HTTP status 416) during GetObject operation"), "gone"),
        (OSError("AWS Error ACCESS_DENIED during HeadObject operation: No response body."), "denied"),
        (PermissionError("no"), "denied"),
        (OSError("AWS Error UNKNOWN (HTTP status 503) during HeadObject operation"), "temporary"),
        (OSError("AWS Error UNKNOWN (HTTP status 429) during HeadObject operation"), "temporary"),
        (OSError("AWS Error SLOW_DOWN during GetObject operation: "), "temporary"),
        (
            OSError("AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 18, Transferred a part"),
            "temporary",
        ),
        (ConnectionResetError("reset"), "temporary"),
        (ShortReadError("3 of 4"), "temporary"),
        (OSError("AWS Error UNKNOWN (HTTP status 400) during HeadObject operation"), "wrong"),
        (ValueError("no"), "wrong"),
    ],
)
def test_what_an_error_means(error, kind):
    assert error_kind(error) == kind


def test_a_status_that_an_error_carries_counts():
    class ToldError(Exception):
        def __init__(self, **said):
            self.__dict__ |= said

    assert error_kind(ToldError(status=503)) == "temporary"
    assert error_kind(ToldError(code=403)) == "denied"
    assert error_kind(ToldError(response={"ResponseMetadata": {"HTTPStatusCode": 404}})) == "gone"
    assert error_kind(ToldError(status=422)) == "wrong"


def test_what_passes_is_asked_again_and_the_rest_told_at_once(caplog):
    caplog.set_level(logging.DEBUG)
    store = Store("s3://bucket/x", SECRETS)
    asked = itertools.count(1)

    def action(error, times):
        def act():
            if next(asked) <= times:
                raise error
            return "there"

        return act

    def told(kind, text):
        return StoreError(f"{kind}: {text}")

    assert with_retries(action(ConnectionError("very/secret+value"), 2), told, store.redact, QUICK) == "there"
    asked = itertools.count(1)
    with pytest.raises(StoreError, match=r"temporary: ConnectionError: \*\*\* \(tried 3 times\)") as error:
        with_retries(action(ConnectionError("AKIA12345"), 9), told, store.redact, QUICK)
    assert error.value.__cause__ is None
    assert error.value.__context__ is None
    asked = itertools.count(1)
    with pytest.raises(StoreError, match="denied: PermissionError: no"):
        with_retries(action(PermissionError("no"), 9), told, store.redact, QUICK)
    assert next(asked) == 2
    assert "tried again" in caplog.text
    assert not any(value in caplog.text for value in SECRETS.values())


def test_waits_grow_to_a_limit():
    waits = [RetryPolicy().wait(attempt) for attempt in range(1, 9)]
    assert 0.05 <= waits[0] <= 0.1
    assert all(2.5 <= wait <= 5.0 for wait in waits[6:])


@pytest.mark.parametrize("url", ["s3://key:hush@bucket/x", "s3://hush@bucket/x", "ftp://me:hush@host/x"])
def test_credentials_in_a_url_are_refused_and_not_shown(url):
    with pytest.raises(ValueError, match="holds credentials") as error:
        me.read(url)
    assert "hush" not in str(error.value)
    with pytest.raises(ValueError, match="holds credentials"):
        SmallFiles().read(url)


def test_signed_urls_are_refused_and_containers_are_not():
    with pytest.raises(ValueError, match="holds credentials"):
        check_plain("https://host/x.parquet?X-Amz-Signature=abc")
    check_plain("abfs://container@account.dfs.core.windows.net/x")
    with pytest.raises(ValueError, match="chains file systems"):
        me.read("simplecache::s3://bucket/x")


def test_urls_and_paths():
    assert all(map(is_url, ["s3://b/x", "memory://x", "simplecache::s3://b"]))
    assert not any(map(is_url, ["a/b", "/a/b", "C:/x", "a:b"]))
    assert local_path("file:///a%20b/c") == "/a b/c"
    assert local_path("s3://b/x") is None


def test_a_file_url_is_a_path(tmp_path):
    write_files(tmp_path / "data", [10, 10])
    assert find(f"file://{tmp_path}/data").store is None
    assert ids(me.read(f"file://{tmp_path}/data")) == list(range(20))


@pytest.mark.parametrize(
    ("url", "root", "deep", "yes", "no"),
    [
        ("s3://b/d/*.parquet", "s3://b/d", False, ["a.parquet"], ["x/a.parquet", ".a.parquet", "a.parquet.gz"]),
        ("s3://b/*/a?.csv", "s3://b", True, ["x/a1.csv"], ["a1.csv", "x/a.csv", "x/y/a1.csv"]),
        ("s3://b/**/a.csv", "s3://b", True, ["a.csv", "x/a.csv", "x/y/a.csv"], ["xa.csv", ".x/a.csv"]),
        ("s3://b/d/**", "s3://b/d", True, ["a", "x/y/a"], [".a", "x/.y/a"]),
        ("s3://b/p-[0-3].x", "s3://b", False, ["p-2.x"], ["p-4.x", "p-22x"]),
        ("s3://b/p-[!0-3].x", "s3://b", False, ["p-4.x"], ["p-2.x"]),
    ],
)
def test_globs(url, root, deep, yes, no):
    found, pattern, nested = split_glob(url)
    assert (found, nested) == (root, deep)
    assert all(map(pattern.fullmatch, yes))
    assert not any(map(pattern.fullmatch, no))


@pytest.mark.parametrize(
    ("told", "size"),
    [(7, 7), ("7", 7), ("256MiB", 256 << 20), ("1GB", 10**9), ("1.5 kb", 1500), ("2g", 2 << 30), (0, 0)],
)
def test_sizes(told, size):
    assert parse_size("read_ahead", told) == size


@pytest.mark.parametrize("told", ["much", "-1", "1 parsec", -1])
def test_a_wrong_size_is_told(told):
    with pytest.raises(ValueError, match="read_ahead is"):
        me.read("memory://x", read_ahead=told)
    with pytest.raises(TypeError, match="cache_bytes is a float"):
        Fetch.of(None, None, 1.5)


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


def test_files_lists_and_globs_of_memory():
    url = put_rows()
    put("/data/deep/part-9.parquet", parquet(1000, 1010))
    assert ids(me.read(f"{url}/part-1.parquet")) == list(range(40, 80))
    assert ids(me.read([f"{url}/part-1.parquet", f"{url}/part-0.parquet"])) == [*range(40, 80), *range(40)]
    assert ids(me.read(f"{url}/part-[12].parquet")) == list(range(40, 120))
    assert ids(me.read(f"{url}/**/*.parquet")) == [*range(1000, 1010), *range(120)]
    assert ids(me.read(f"{url}/")) == [*range(1000, 1010), *range(120)]
    listing = find(url)
    assert listing.names[0] == "deep/part-9.parquet"
    assert "memory" not in "".join(listing.names)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("memory://nothing", "memory://nothing does not exist"),
        ("memory://data/*.csv", "memory://data/*.csv matches no object below memory://data"),
        ("memory://other", "has no file that ends in"),
    ],
)
def test_nothing_to_read_says_why(source, told):
    put_rows()
    put("/other/readme.txt", b"text")
    with pytest.raises(NoDataError, match=re.escape(told)):
        me.read(source)


def test_sources_of_two_stores_are_refused(tmp_path):
    with pytest.raises(ValueError, match="different stores or buckets"):
        find(["s3://one/x", "s3://two/x"])
    with pytest.raises(ValueError, match="is a path, and other sources are URLs"):
        find(["memory://x", str(tmp_path)])
    with pytest.raises(ValueError, match="names no bucket"):
        find("s3://")


def test_an_unknown_scheme_is_told():
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


def test_whole_files_of_paths_and_urls(tmp_path):
    (tmp_path / "x").write_bytes(b"here")
    put("/a/x", b"there")
    put("/a/empty", b"")
    files = SmallFiles()
    assert files.read(tmp_path / "x") == files.read(f"file://{tmp_path}/x") == b"here"
    assert files.read("memory://a/x") == b"there"
    assert files.read("memory://a/empty") == b""
    with pytest.raises(NoDataError, match="memory://a/y does not exist in the store"):
        files.read("memory://a/y")
    with pytest.raises(NoDataError, match="cannot be read"):
        files.read(tmp_path / "y")


@given(st.lists(st.tuples(st.integers(0, 300_000), st.integers(0, 150_000)), max_size=12))
def test_ranges_are_those_of_the_object(ranges):
    content = bytes(range(251)) * 1000
    file, client = stored(content)
    for offset, nbytes in ranges:
        assert file.read_at(nbytes, offset) == content[offset : offset + nbytes]
    assert sum(n for _, n in client.read) <= sum(max(LEAST_BYTES, nbytes) for _, nbytes in ranges)


def test_small_reads_share_a_request():
    file, client = stored(bytes(1 << 20))
    for offset in range(0, 4000, 100):
        file.read_at(100, offset)
    assert client.read == [(0, LEAST_BYTES)]
    file.read_at(200_000, 300_000)
    assert client.read[1:] == [(300_000, 200_000)]


def test_an_object_of_another_size_or_version_is_refused():
    for known in ({"size": 3}, {"version": "2"}):
        with pytest.raises(DataChangedError, match="s3://bucket/x was changed"):
            stored(b"1234", **known)[0].read_at(1, 0)
    file, client = stored(b"1234", size=4, version="1")
    assert file.open().read() == b"1234"
    client.version = "2"
    with pytest.raises(DataChangedError, match="same size, another version"):
        file.check()


def test_what_was_looked_at_is_not_looked_at_again(monkeypatch):
    file, client = stored(b"1234")
    opened = []
    monkeypatch.setattr(client, "open", lambda url: opened.append(url) or type(client).open(client, url))
    file.read_at(4, 0)
    file.check()
    file.check()
    assert len(opened) == 2  # to read it, and behind it
    file._recent = ()
    file.read_at(4, 0)
    file.check()
    assert len(opened) == 3


def test_a_short_answer_is_asked_for_again(monkeypatch):
    file, client = stored(b"1234")
    whole, answers = client.read_at, [pa.py_buffer(b"12"), pa.py_buffer(b"")]
    monkeypatch.setattr(client, "read_at", lambda n, at: answers.pop() if answers else whole(n, at))
    assert file.read_at(4, 0) == b"1234"
    answers += [pa.py_buffer(b"")] * 3
    file._recent = ()
    with pytest.raises(StoreError, match="does not answer for s3://bucket/x: ShortReadError: got 0 of 4 bytes"):
        file.read_at(4, 0)


def test_an_error_goes_through_arrow(monkeypatch):
    file, client = stored(parquet(0, 10))

    def broken(nbytes, offset):
        raise PermissionError("AKIA12345 may not")

    monkeypatch.setattr(client, "read_at", broken)
    with pytest.raises(StoreError, match=r"refuses access to s3://bucket/x.*PermissionError: \*\*\* may not"):
        pq.ParquetFile(file.open())


def test_a_changed_object_of_memory_is_noticed_and_indexed_anew():
    url = "memory://data"
    put("/data/part-0.parquet", parquet(0, 40, noise=10_000))
    rows = iter(me.read(url, read_ahead=0))
    first = [next(rows)["id"] for _ in range(10)]
    put("/data/part-0.parquet", parquet(500, 540, noise=10_000))
    with pytest.raises(DataChangedError, match=r"memory:///data/part-0.parquet was changed"):
        first += [row["id"] for row in rows]
    assert first == list(range(10))
    assert ids(me.read(url)) == list(range(500, 540))


def test_times_of_all_kinds_tell_versions():
    from midepoch.storage.clients import _change_number, _version

    moment = datetime(2024, 1, 1, tzinfo=UTC)
    assert _change_number({"mtime": 1.5}) == 1_500_000_000
    assert _change_number({"LastModified": moment}) == int(moment.timestamp() * 1e9)
    assert _change_number({"ETag": "a"}) != _change_number({"ETag": "b"})
    assert _change_number({}) == 0
    assert _version({"ETag": "a", "mtime": 3}) == "a"
    assert _version({"size": 3}) == ""


@pytest.mark.parametrize("shuffled", [False, True])
def test_blocks_of_an_arrow_file_with_dictionaries_are_read_side_by_side(monkeypatch, shuffled):
    schema = pa.schema({"id": pa.int64(), "word": pa.dictionary(pa.int32(), pa.string())})
    words, sink = pa.array(["a", "b", "c"]), io.BytesIO()
    with pa.ipc.new_file(sink, schema) as writer:
        for first in range(0, 200, 5):
            coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 0, 1], pa.int32()), words)
            writer.write_batch(pa.record_batch([pa.array(range(first, first + 5)), coded], schema=schema))
    fsspec.filesystem("memory").pipe_file("/coded/a.arrow", sink.getvalue())
    fetched = StoredFile.buffer_at

    def slowly(self, nbytes, offset):
        time.sleep(0.0005)
        return fetched(self, nbytes, offset)

    monkeypatch.setattr(StoredFile, "buffer_at", slowly)
    for seed in range(3):
        dataset = me.read("memory://coded")
        rows = list(dataset.shuffle(seed) if shuffled else dataset)
        assert sorted((row["id"], row["word"]) for row in rows) == [(row, "abcab"[row % 5]) for row in range(200)]
